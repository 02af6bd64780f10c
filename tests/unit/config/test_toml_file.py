"""Errors in a TOML file: each is named with its line and with what would be right."""

import enum
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.config import toml_file
from cedos.config.toml_file import key_lines
from cedos.errors import ConfigError


class Colour(enum.StrEnum):
    RED = "red"
    GREEN = "green"


class Inner(msgspec.Struct, frozen=True):
    rate: Annotated[float, msgspec.Meta(ge=0, le=10)] = 1.0
    count: Annotated[int, msgspec.Meta(gt=0)] = 1
    mode: Literal["fast", "slow"] = "fast"
    colour: Colour | None = None
    names: list[str] = []
    pairs: tuple[int, ...] = ()


class Needy(msgspec.Struct, frozen=True):
    low: float
    high: float = 10.0

    def __post_init__(self):
        if self.low > self.high:
            raise ValueError("low must not be above high")


class File(msgspec.Struct, frozen=True):
    inner: Inner = Inner()
    many: list[Needy] = []
    by_name: dict[
        Annotated[str, msgspec.Meta(pattern="^[a-z]+$", description="small letters")], Inner
    ] = {}
    files: dict[str, Path] = {}
    flag: bool = False


def parse(text):
    return toml_file.parse(text, File, name="f.toml", folder=Path("/base"))


def problems(text):
    with pytest.raises(ConfigError) as caught:
        parse(text)
    return str(caught.value).split("\n")


def test_good_file():
    text = """
flag = true
[inner]
rate = 3
mode = "slow"
colour = "green"
names = ["a"]
pairs = [1, 2]
[[many]]
low = 1
[by_name.x]
count = 7
[files]
a = "x/y.csv"
b = "/z.csv"
"""
    assert parse(text) == File(
        flag=True,
        inner=Inner(rate=3.0, mode="slow", colour=Colour.GREEN, names=["a"], pairs=(1, 2)),
        many=[Needy(1.0)],
        by_name={"x": Inner(count=7)},
        files={"a": Path("/base/x/y.csv"), "b": Path("/z.csv")},
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[iner]", "f.toml:1: unknown section [iner], did you mean [inner]?"),
        ("\nrate = 1", "f.toml:2: unknown setting rate; it belongs in [inner]"),
        ("[inner]\n\nrat = 1", "f.toml:3: unknown setting rat in [inner], did you mean rate?"),
        (
            "[inner]\nzzz = 1",
            "f.toml:2: unknown setting zzz in [inner]; known are: rate, count, mode, colour, names,"
            " pairs",
        ),
        ("[inner]\nrate = 11", "f.toml:2: inner.rate must be a number from 0 to 10, not 11"),
        ("inner.rate = nan", "f.toml:1: inner.rate must be a number from 0 to 10, not nan"),
        ("inner.rate = true", "f.toml:1: inner.rate must be a number from 0 to 10, not true"),
        ("inner.count = 0", "f.toml:1: inner.count must be a whole number above 0, not 0"),
        ("inner.count = 1.0", "f.toml:1: inner.count must be a whole number above 0, not 1"),
        (
            'inner.mode = "fats"',
            'f.toml:1: inner.mode must be one of "fast", "slow", not the text "fats",'
            ' did you mean "fast"?',
        ),
        (
            "inner.colour = 2020-01-01",
            'f.toml:1: inner.colour must be one of "red", "green", not the date or time 2020-01-01',
        ),
        ('inner.names = ["a",\n 1]', "f.toml:1: inner.names[1] must be text in quotes, not 1"),
        (
            'inner.names = "a"',
            'f.toml:1: inner.names must be a list, each text in quotes, not the text "a"',
        ),
        ("inner = 1", "f.toml:1: inner must be a table, not 1"),
        ("[[inner]]", "f.toml:1: inner must be a table, not a list"),
        ("flag = {}", "f.toml:1: flag must be true or false, not a table"),
        ("[[many]]\nlow=1\n[[many]]", "f.toml:3: [many[1]] needs low: a number"),
        ("[[many]]\nhigh=0\nlow=1", "f.toml:3: [many[0]]: low must not be above high"),
        ("[by_name.A1]", 'f.toml:1: [by_name]: "A1" must be small letters'),
        ("[by_name]\nx = 3", "f.toml:2: by_name.x must be a table, not 3"),
        ("[files]\nx = 3", "f.toml:2: files.x must be the path of a file, not 3"),
        ('[files]\nx = ""', 'f.toml:2: files.x must be the path of a file, not the text ""'),
    ],
)
def test_one_problem(text, expected):
    assert problems(text) == [expected]


def test_broken_toml_names_the_line():
    assert problems("flag = maybe")[0].endswith(
        'Invalid value (text stands in quotes: "text"; true, false and numbers do not)'
    )
    assert problems("flag = true\nflag = ")[0].startswith("f.toml:2: not valid TOML: ")
    assert problems('a = """x')[0].startswith("f.toml:1: not valid TOML: ")
    assert problems("a = " + "[" * 100_000)[0].startswith("f.toml:1: not valid TOML: ")
    deep = ["f.toml:2: not valid TOML: A key of more than 64 names"]
    assert problems("flag = true\n" + "a." * 4_000 + "a = 1") == deep
    assert problems("flag = true\n['a' . " + "a ." * 4_000 + "a]") == deep
    assert problems("flag = true\n" + """"!" . '?'.""" * 2_000 + "a = 1") == deep
    assert problems('flag = true # """ \'\nx = [{' + '"\\"#".' * 4_000 + "a = 1}]") == deep


def test_dots_in_strings_and_comments_are_no_key():
    dots = "a." * 70
    text = f'# {dots}\n"{dots}" = "\\"{dots}" # {dots}\n'
    text += f'b = """\n{dots}\\"""""\nc = QQQ{dots}QQQQ\n{"d." * 63}d = 1'.replace("Q", "'")
    read = toml_file.loads(text)
    assert [read[key] for key in (dots, "b", "c")] == [f'"{dots}', f'{dots}""', f"{dots}'"]


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        toml_file.read(tmp_path / "none.toml", File)
    with pytest.raises(ConfigError, match="Is a directory"):
        toml_file.read(tmp_path, File)
    (tmp_path / "latin.toml").write_bytes(b'a = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        toml_file.read(tmp_path / "latin.toml", File)


LEAVES = st.sampled_from(
    ["1", "-1", "2.5", "nan", "true", '"fast"', '"red"', '""', "[]", "{}", "[1]"]
)
NAMES = st.sampled_from(
    [
        "inner", "rate", "count", "mode", "colour", "names", "pairs", "many", "low", "by_name", "x",
        "files",
    ]
)  # fmt: skip


@given(
    st.lists(
        st.tuples(st.sampled_from(["[{}]", "[[{}]]", "{} = "]), NAMES, NAMES, LEAVES), max_size=8
    )
)
def test_any_text_is_read_or_refused_with_lines(statements):
    lines = []
    for form, first, second, leaf in statements:
        line = form.format(first if len(form) > 4 else f"{first}.{second}")
        lines.append(line + leaf if line.endswith("= ") else line)
    try:
        parse("\n".join(lines))
    except ConfigError as error:
        for problem in str(error).split("\n"):
            name, number, _ = problem.split(":", 2)
            assert name == "f.toml"
            assert 1 <= int(number) <= max(1, len(lines))


SAMPLE = '''\
# a comment with [brackets] and = signs
top = "a # not a comment" # a comment of """
[one]
plain = 1
"quoted key.with dots" = 2
dotted.inner.'deep' = 3
text = """
[not_a_table]
key = "value" \\"""
"""
literal = \'\'\'
x = ']'\'\'\'\'
list = [ # why
  1, [2,
  3], "]",
  { inline = 4 },
]
when = 1979-05-27 07:32:00
[one.two]
x = { a = 1, b = { c = [
  5 ] } }
[[many]]
y = 1
[[many]]
y = 2
[many.sub]
z = 3
[[many.more]]
w = 4
'''


def test_all_kinds_of_keys():
    lines = key_lines(SAMPLE)
    assert ("one", "not_a_table") not in lines
    expected = {
        ("top",): 2, ("one",): 3, ("one", "plain"): 4, ("one", "quoted key.with dots"): 5,
        ("one", "dotted", "inner", "deep"): 6, ("one", "text"): 7, ("one", "literal"): 11,
        ("one", "list"): 13, ("one", "when"): 18, ("one", "two"): 19, ("many", 0, "y"): 23,
        ("many", 1): 24, ("many", 1, "y"): 25, ("many", 1, "sub", "z"): 27,
        ("many", 1, "more", 0, "w"): 29,
    }  # fmt: skip
    assert {key: lines[key] for key in expected} == expected
