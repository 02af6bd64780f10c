"""Every key of any TOML text has its line."""

import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cedos.config.toml_lines import Key, key_lines

SAMPLE = '''\
# a comment with [brackets] and = signs
top = "a # not a comment" # a comment
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


def every_key(value: Any, path: Key = ()) -> list[Key]:
    found = [path] if path else []
    if isinstance(value, dict):
        for name, item in value.items():
            found += every_key(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += every_key(item, (*path, index))
    return found


def test_all_kinds_of_keys() -> None:
    lines = key_lines(SAMPLE)
    assert set(every_key(tomllib.loads(SAMPLE))) == set(lines)
    expected: dict[Key, int] = {
        ("top",): 2,
        ("one",): 3,
        ("one", "plain"): 4,
        ("one", "quoted key.with dots"): 5,
        ("one", "dotted", "inner", "deep"): 6,
        ("one", "text"): 7,
        ("one", "literal"): 11,
        ("one", "list"): 13,
        ("one", "list", 0): 14,
        ("one", "list", 1, 1): 15,
        ("one", "list", 3, "inline"): 16,
        ("one", "when"): 18,
        ("one", "two"): 19,
        ("one", "two", "x", "b", "c", 0): 21,
        ("many", 0, "y"): 23,
        ("many", 1): 24,
        ("many", 1, "y"): 25,
        ("many", 1, "sub", "z"): 27,
        ("many", 1, "more", 0, "w"): 29,
    }
    assert {key: lines[key] for key in expected} == expected


KEYS = st.sampled_from(["a", "b", "c-d", '"e f"', "'g.h'", "1", '"\\u00e9"', "i.j", "k . l"])
SCALARS = st.sampled_from(
    [
        "1",
        "-2.5e3",
        "true",
        '"x"',
        '"\\""',
        "'#'",
        '"""\n"\n\\\n"""',
        "'''\n]\n'''",
        "07:32:00",
        "inf",
    ]
)
BLANKS = st.sampled_from(["", " ", "\n", "\r\n", " # c ]}\n", "\n\n\t"])


def arrays(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.tuples(BLANKS, items, BLANKS).map("".join), max_size=3).map(
        lambda parts: "[" + ",".join(parts) + "]"
    )


def inline_tables(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(st.tuples(KEYS, items), max_size=3).map(
        lambda pairs: "{ " + ", ".join(f"{key} = {value}" for key, value in pairs) + " }"
    )


VALUES = st.recursive(SCALARS, lambda items: arrays(items) | inline_tables(items), max_leaves=8)
STATEMENTS = st.one_of(
    st.tuples(KEYS, VALUES).map(lambda pair: f"{pair[0]} = {pair[1]}"),
    KEYS.map(lambda key: f"[{key}]"),
    KEYS.map(lambda key: f"[[ {key} ]]"),
    st.tuples(KEYS, KEYS).map(lambda pair: f"[ {pair[0]}.{pair[1]}]"),
    st.just("# [x]"),
    st.just(""),
)


@given(st.lists(STATEMENTS, max_size=12), st.sampled_from(["\n", "\r\n", " # c\n"]))
def test_whatever_tomllib_accepts(statements: list[str], end: str) -> None:
    text = end.join(statements)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    lines = key_lines(text)
    assert set(lines) == set(every_key(document))
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


@given(st.lists(st.tuples(VALUES, st.integers(0, 3)), max_size=6))
def test_lines_of_pairs_are_exact(pairs: list[tuple[str, int]]) -> None:
    text, expected = "", {}
    for index, (value, gap) in enumerate(pairs):
        candidate = f"{text}{chr(10) * gap}key{index} = {value}\n"
        try:
            tomllib.loads(candidate)
        except tomllib.TOMLDecodeError:  # e.g. one inline table with one key twice
            continue
        expected[(f"key{index}",)] = text.count("\n") + gap + 1
        text = candidate
    lines = key_lines(text)
    assert {key: lines[key] for key in expected} == expected
