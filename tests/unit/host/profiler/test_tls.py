import random
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.profiler.tls import MAX_BYTES, ClientHello, Reassembly, read_handshake, read_records
from tests.unit.host.profiler.conftest import crafted_hello, in_records, name_extension


def name_in(payload):
    hello = read_records(payload)
    return hello.name if hello else None


def real_hello(name):
    """Return the ClientHello that OpenSSL sends."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


HELLO = real_hello("www.Example.org")


def test_what_openssl_sends():
    assert name_in(HELLO) == "www.example.org"
    assert name_in(real_hello(None)) is None


def test_the_name_may_come_after_a_large_key_share():
    key_share = (51, bytes(1300))
    hello = crafted_hello((0x2A2A, b""), key_share, name_extension(b"cdn.example.net"))
    assert name_in(hello) == "cdn.example.net"
    assert name_in(hello[:1360]) is None
    session = crafted_hello(name_extension(b"a.example"), session=bytes(32))
    assert name_in(session) == "a.example"


def test_it_says_whether_all_was_there():
    hello = crafted_hello(name_extension(b"a.example"), (0x2A2A, bytes(300)))
    whole = read_records(hello)
    assert whole == ClientHello("a.example", ech=False, complete=True)
    assert read_handshake(hello[5:]) == whole
    for cut in (len(hello) - 1, 200):
        assert read_records(hello[:cut]) == ClientHello("a.example", ech=False, complete=False)
    assert read_records(hello[:60]) == ClientHello(None, ech=False, complete=False)
    assert read_handshake(hello[5:] + b"\x17 what follows") == whole
    lying = bytearray(hello)
    lying[43 + 5] = 0xFF  # cipher suites far beyond the end
    assert read_records(bytes(lying)) == ClientHello(None, ech=False, complete=True)


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_a_hello_over_several_records(size):
    assert name_in(in_records(HELLO, size)) == "www.example.org"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (b"a.example.", "a.example"), (b"", None), (b"a..b", None), (b"a\x00b", None),
        (b"a" * 254, None), (b"b\xc3\xbccher.example", None), (b"192.0.2.1", "192.0.2.1"),
    ],
)  # fmt: skip
def test_names(name, expected):
    assert name_in(crafted_hello(name_extension(name))) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\x16", b"\x16\x03\x01\x00\x00", b"\x17" + HELLO[1:], b"\x16\x02" + HELLO[2:],
        HELLO[:5] + b"\x02" + HELLO[6:],
    ],
)  # fmt: skip
def test_not_a_hello(payload):
    assert name_in(payload) is None


STREAM = random.Random(2).randbytes(3000)


@given(st.randoms(use_true_random=False), st.integers(50, 900))
def test_any_order_with_repetitions_and_overlaps(draw, size):
    pieces = [(at, STREAM[at : at + size + draw.randrange(60)]) for at in range(0, 3000, size)]
    pieces += draw.choices(pieces, k=3)
    draw.shuffle(pieces)
    stream = Reassembly()
    for at, piece in pieces:
        before = stream.prefix
        assert stream.add(at, piece) == (stream.prefix != before)
        assert STREAM.startswith(stream.prefix)
    assert stream.prefix == STREAM


@given(st.lists(st.tuples(st.integers(0, 1 << 62), st.binary(max_size=50)), max_size=200))
def test_memory_is_bounded(pieces):
    stream = Reassembly()
    for at, piece in pieces:
        stream.add(at, piece * 400)
    assert len(stream.prefix) <= MAX_BYTES
    assert len(stream._waiting) <= 64
    assert sum(len(piece) for piece in stream._waiting.values()) <= MAX_BYTES


def test_the_first_copy_counts():
    stream = Reassembly()
    stream.add(0, b"abc")
    stream.add(1, b"XXde")
    assert stream.prefix == b"abcde"
    assert not stream.add(5, b"")
