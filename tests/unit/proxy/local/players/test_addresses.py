"""Listed addresses are what the library says of them."""

from urllib.parse import urljoin, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cedos.proxy.local.players.addresses import MOST_WORK, Addresses, TooMuchWorkError

_SPECIAL = [
    *(
        "/",
        "//",
        "/./",
        "/../",
        ".",
        "..",
        "...",
        "?",
        "#",
        ";",
        ":",
        "@",
        "&",
        "=",
        "%2F",
        "\\",
        "[",
        "]",
    ),
    *(
        " ",
        "\t",
        "\n",
        "\x1f",
        "\x85",
        "\xa0",
        "http:",
        "https://",
        "http://a.test",
        "javascript:",
        "ftp:",
    ),
    *(
        "//a.test:80",
        "x",
        "X",
        "7",
        "+",
        "-",
        "_",
        "~",
        "$$",
        "*",
        "é",
        "ж",
        "ﬀ",
        "℀",
        "segment7.ts",
    ),
]
references = st.lists(st.one_of(st.sampled_from(_SPECIAL), st.text(max_size=3)), max_size=9).map(
    "".join
)
bases = st.one_of(
    st.sampled_from(["http://a.test", "http://a.test/", "http://a.test/b/c//d/../e.m3u8;p?q=/r#s"]),
    references.map("http://a.test/".__add__),
    references,
)


def _by_library(base: str, address: str) -> tuple[str, str, str] | None:
    try:
        joined = urljoin(base, address)
        there = urlsplit(joined)
    except ValueError:
        return None
    return joined, there.netloc, f"{there.path}?{there.query}" if there.query else there.path


def _by_us(addresses: Addresses, base: str, address: str) -> tuple[str, str, str] | None:
    try:
        return addresses.joined(base, address), *addresses.target(base, address)
    except ValueError:
        return None


@given(bases, st.lists(references, max_size=6))
@example("http://a.test/b/c", ["//x", "//y", "http://x", "http:x", "a:b", "a/b:c", "./a:b", "1:x"])
@example(
    "http://a.test/b/c", ["a;", "a;b", ";", ";b", "..;b", "a;b;", "a/..;b/c", "a?", "a?b?c/d", "?a"]
)
@example(
    "http://a.test/b//c/../d", ["x", "x/", "x//y", "/x//y", "..", "../", "../..", "../../../x", "/"]
)
def test_they_are_what_the_library_says(base: str, listed: list[str]) -> None:
    addresses = Addresses()  # which learns of each what it may use for the next
    for each in listed:
        assert _by_us(addresses, base, each) == _by_library(base, each)


folders = st.lists(
    st.sampled_from(["a/", "b1/", "../", "./", "/", "//c.test/", "http://a.test/", ";p/"]),
    max_size=3,
)
names = st.sampled_from(
    ["s1.ts", "s2.ts?k=/1", "s;p", "12:30.ts", "", ".", "..", ".s", "s 3.ts", "s ", "s?", "s#1"]
)


@given(bases, st.lists(st.tuples(folders.map("".join), names).map("".join), max_size=20))
def test_so_are_names_in_the_same_folders(base: str, listed: list[str]) -> None:
    addresses = Addresses()
    for each in listed:
        assert _by_us(addresses, base, each) == _by_library(base, each)


@pytest.mark.parametrize(
    "listed", ["s%d.ts", "%d/s.ts?k=1", "../s%d.ts", "/a/s%d:1.ts", "http://a.test/%d"]
)
def test_of_usual_ones_there_may_be_any_number(listed: str) -> None:
    addresses = Addresses()
    for number in range(20_000):
        addresses.target("http://a.test/b/c.m3u8", listed % number)


def test_of_strange_ones_there_may_be_some_thousands() -> None:
    addresses = Addresses()
    for number in range(3_500):
        addresses.target("http://a.test/b/c.m3u8", f".s{number}")
    asked = (
        addresses.joined("http://a.test/b/c.m3u8", f".s{each}") for each in range(MOST_WORK >> 10)
    )
    with pytest.raises(TooMuchWorkError):
        list(asked)
