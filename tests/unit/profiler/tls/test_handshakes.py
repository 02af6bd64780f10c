import random
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import FlowKey
from cedos.profiler.frame import CapturedPacket
from cedos.profiler.tls import handshakes
from cedos.profiler.tls.client_hello import ClientHello, read_records
from cedos.profiler.tls.handshakes import Handshakes
from cedos.profiler.tls.reassembly import MAX_BYTES

KEY = FlowKey(ip_address("192.0.2.1"), 5000, ip_address("198.51.100.1"), 443)
START = 4_294_966_900  # the numbers wrap within the hello


def hello(name: str = "www.example.org", key_share: int = 1216) -> bytes:
    raw = name.encode()
    names = (len(raw) + 3).to_bytes(2, "big") + b"\x00" + len(raw).to_bytes(2, "big") + raw
    extensions = b"\x00\x33" + key_share.to_bytes(2, "big") + b"\x5a" * key_share
    extensions += b"\x00\x00" + len(names).to_bytes(2, "big") + names
    extensions += b"\xfe\x0d\x00\x40" + bytes(64) + b"\x00\x15\x01\x00" + bytes(256)
    rest = b"\x03\x03" + bytes(32) + b"\x00\x00\x02\x13\x01\x01\x00"
    rest += len(extensions).to_bytes(2, "big") + extensions
    handshake = b"\x01" + len(rest).to_bytes(3, "big") + rest
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake


def in_records(raw: bytes, size: int) -> bytes:
    handshake = raw[5:]
    parts = [handshake[at : at + size] for at in range(0, len(handshake), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


def segment(raw: bytes, at: int, size: int, key: FlowKey = KEY) -> CapturedPacket:
    number = (START + at) % (1 << 32)
    return CapturedPacket(key, True, raw[at : at + size], number, 1, segment=number)


WHOLE = ClientHello("www.example.org", ech=True, complete=True)


@pytest.mark.parametrize("raw", [hello(), in_records(hello(), 200), hello(key_share=9000)])
@pytest.mark.parametrize("size", [300, 536, 1200])
def test_over_many_segments(raw: bytes, size: int) -> None:
    hellos = Handshakes()
    first = hellos.begin(segment(raw, 0, size))
    assert first is None or first.name is None
    told = [hellos.proceed(segment(raw, at, size)) for at in range(size, len(raw), size)]
    assert told[-1] == WHOLE
    assert len(hellos) == 0


def test_out_of_order_and_twice() -> None:
    raw, draw = hello(key_share=3000), random.Random(4)
    for _ in range(20):
        hellos = Handshakes()
        rest = [segment(raw, at, 200) for at in range(200, len(raw), 200)]
        rest += draw.choices(rest, k=4)
        draw.shuffle(rest)
        hellos.begin(segment(raw, 0, 200))
        assert WHOLE in [hellos.proceed(one) for one in rest]


def test_the_name_is_told_before_the_hello_is_complete() -> None:
    raw = hello()
    hellos = Handshakes()
    hellos.begin(segment(raw, 0, 1200))
    assert hellos.proceed(segment(raw, 1200, 100)) == ClientHello(
        "www.example.org", ech=False, complete=False
    )
    assert hellos.proceed(segment(raw, 1300, 2000)) == WHOLE


def test_tiny_pieces_are_read_a_few_times_and_not_each(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def counting(data: bytes) -> ClientHello | None:
        read.append(len(data))
        return read_records(data)

    monkeypatch.setattr(handshakes, "read_records", counting)
    raw = b"\x16\x03\x01\x3f\xf0\x01\x00\x3f\xec\x03\x03" + bytes(MAX_BYTES)
    hellos = Handshakes()
    hellos.begin(segment(raw, 0, 6))
    for at in range(6, MAX_BYTES):
        hellos.proceed(segment(raw, at, 1))
    assert sum(read) < 40 * MAX_BYTES


def test_others_segments_and_other_places_are_not_taken() -> None:
    raw = hello()
    hellos = Handshakes()
    hellos.begin(segment(raw, 0, 1200))
    other = FlowKey(KEY.local, 5001, KEY.remote, 443)
    assert hellos.proceed(segment(raw, 1200, 900, other)) is None
    far = CapturedPacket(KEY, True, raw[1200:], segment=(START + 70_000) % (1 << 32))
    assert hellos.proceed(far) is None
    before = CapturedPacket(KEY, True, raw[1200:], segment=START - 70_000)
    assert hellos.proceed(before) is None
    hellos.forget(KEY)
    assert hellos.proceed(segment(raw, 1200, 900)) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1 << 32), st.binary(max_size=80))))
def test_hostile_segments_are_bounded(steps: list[tuple[int, int, bytes]]) -> None:
    hellos = Handshakes()
    for port, number, data in steps:
        key = FlowKey(KEY.local, port, KEY.remote, 443)
        hellos.begin(CapturedPacket(key, True, b"\x16\x03\x01" + data, segment=number))
        hellos.proceed(CapturedPacket(key, True, data * 50, segment=number + 20))
        hellos.initial(CapturedPacket(key, True, b"\xc3\0\0\0\1" + data))


def test_handshakes_under_way_are_bounded() -> None:
    hellos, raw = Handshakes(), hello()
    for port in range(1000):
        key = FlowKey(KEY.local, port, KEY.remote, 443)
        hellos.begin(segment(raw, 0, 1200, key))
        hellos.initial(CapturedPacket(key, True, raw))
    assert len(hellos) == 512
