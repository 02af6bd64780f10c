"""What travels in datagrams, to bytes and back, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.streams.frames import (
    NameAnswer,
    NameQuestion,
    Obstacle,
    Packet,
    ProgramPacket,
    UndeliveredPacket,
    parse,
)

NUMBERS = st.integers(0, 2**32 - 1)
HOSTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=253)
PACKETS = st.one_of(
    st.builds(ProgramPacket, NUMBERS, HOSTS, st.integers(1, 65_535), st.binary(max_size=100)),
    st.builds(UndeliveredPacket, NUMBERS, HOSTS, st.integers(1, 65_535), st.sampled_from(Obstacle)),
    st.builds(NameQuestion, NUMBERS, st.binary(max_size=100)),
    st.builds(NameAnswer, NUMBERS, st.binary(max_size=100)),
)


@given(PACKETS)
def test_to_bytes_and_back(packet: Packet) -> None:
    assert parse(packet.pack()) == packet


@given(st.binary(max_size=80))
def test_anything_is_a_packet_or_an_error(data: bytes) -> None:
    try:
        packet = parse(data)
    except ValueError:
        return
    assert packet.pack() == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\0\0\0",
        b"\x01\0\0\0\x01\0\x50\0",  # no host
        b"\x01\0\0\0\x01\0\0\x01h",  # no port
        b"\x01\0\0\0\x01\0\x50\x05host",  # a host that is cut
        b"\x01\0\0\0\x01\0\x50\x01\xff",
        b"\x00\0\0\0\x01",
        b"\x04\0\0\0\x01\0\x50\x01h",  # no reason
        b"\x04\0\0\0\x01\0\x50\x01h\x01\x01",
        b"\x04\0\0\0\x01\0\x50\x01h\x09",
        b"\x05\0\0\0\x01",
    ],
)
def test_what_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"packet|kind|Obstacle"):
        parse(data)
