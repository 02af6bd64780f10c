"""What players say of themselves: by the grammar, within bounds, or it is no word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.local.players.cmcd import PlayerWord, parse, without

OBJECT = (b"CMCD-Object", b"br=640,d=2000,ot=v,tb=640")
STATUS = (b"cmcd-status", b"bs")
REQUEST = (b"CMCD-Request", b'bl=24100,mtp=25400,nor="..%2F300kbps%2Fsegment35.m4v"')
SESSION = (b"CMCD-Session", b'cid="faec5fc2",pr=1.08,sf=d,sid="6e2fb550-c457-11e9"')


def test_fields_are_one_word() -> None:
    found = parse(b"/a", [OBJECT, REQUEST, SESSION, (b"Accept", b"*/*")])
    assert found == PlayerWord("6e2fb550-c457-11e9", "v", 24.1, 640e3, 2.0, 1.08, False)
    found = parse(b"/a", [OBJECT, STATUS])
    assert found is not None
    assert found.urgent
    assert found.buffer_s is None


def test_the_query_argument_is_one_too() -> None:
    found = parse(b"/a.m4s?x=1&CMCD=bl%3D3000%2Cbr%3D500%2Csid%3D%22s%22%2Csu&y", [])
    assert found == PlayerWord("s", None, 3.0, 500e3, None, 1.0, True)
    assert parse(b"/a.m4s?x=CMCD%3Dbl%3D3000", []) is None
    assert without(b"/a?x=1&CMCD=bl%3D3000&y") == b"/a?x=1&y"
    both = parse(b"/a?CMCD=bl%3D3000", [OBJECT])
    assert both is not None
    assert both.buffer_s is None


@pytest.mark.parametrize(
    "text",
    [
        b"", b",", b"bl", b"bl=", b"bl=-1", b"bl=1e3", b"bl=1.5", b'bl="1"', b"bl=1,", b"bl=1,,br=2",
        b"bl=1,bl=2", b"bl=9999999999", b"bl=1;br=2", b'sid=x', b'sid="a', b'sid="a\\n"',
        b'sid="' + b"a" * 65 + b'"', b"ot=vid", b'ot="v"', b"su=1", b'bs="true"', b"pr=fast",
        b"bl=1 2", b"bl = 1", b"x" * 5000, b",".join(b"k%d" % n for n in range(65)),
    ],
)  # fmt: skip
def test_what_is_no_word(text: bytes) -> None:
    assert parse(b"/", [(b"CMCD-Request", text)]) is None


def test_false_is_said_aloud_and_unknown_keys_are_let_be() -> None:
    found = parse(b"/", [(b"CMCD-Status", b'bs=false, com.example-x="a, \\"b\\"" ,su=true')])
    assert found == PlayerWord(urgent=True)
    assert parse(b"/", [(b"CMCD-Request", b"BL=1,com.example-MyKey=x")]) == PlayerWord()


@given(st.binary(max_size=200))
def test_anything_may_come(text: bytes) -> None:
    for found in (parse(b"/?CMCD=" + text, []), parse(b"/", [(b"cmcd-object", text)])):
        if found is not None:
            assert found.buffer_s is None or 0 <= found.buffer_s < 1e6
            assert found.bitrate_bps is None or 0 < found.bitrate_bps < 1e12
            assert found.session is None or len(found.session) <= 64


_KEYS = {
    "bl": st.integers(0, 999_999_999),
    "br": st.integers(1, 999_999_999),
    "d": st.integers(0, 999_999_999),
}


@given(st.fixed_dictionaries({}, optional=_KEYS), st.randoms())
def test_what_was_said_is_heard_in_any_order(values: dict[str, int], random: object) -> None:
    if not values:
        return
    pairs = [f"{key}={value}" for key, value in values.items()]
    random.shuffle(pairs)  # type: ignore[attr-defined]
    found = parse(b"/", [(b"CMCD-Request", ",".join(pairs).encode())])
    assert found is not None
    assert found.buffer_s == (values["bl"] / 1e3 if "bl" in values else None)
    assert found.bitrate_bps == (values["br"] * 1e3 if "br" in values else None)
    assert found.duration_s == (values["d"] / 1e3 if "d" in values else None)
