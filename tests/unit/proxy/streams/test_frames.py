"""Frames and datagrams of the stream protocol, there and back."""

from http import HTTPStatus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.streams.frames import (
    USERS,
    GatewayAnswer,
    GatewayQuestion,
    Obstacle,
    OpenAssociation,
    OpenStream,
    ProgramPacket,
    StreamAccepted,
    StreamBytes,
    StreamEnd,
    StreamRefused,
    StreamReset,
    StreamWindow,
    UndeliveredPacket,
    parse,
    parse_packet,
)

STREAMS = st.integers(1, 2**32 - 1)
USER_NUMBERS = st.integers(0, USERS - 1)
OFFSETS = st.integers(0, 2**64 - 1)
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60)
FRAMES = st.one_of(
    st.builds(OpenStream, STREAMS, TEXT.filter(bool), st.integers(1, 65_535), USER_NUMBERS),
    st.builds(StreamAccepted, STREAMS),
    st.builds(
        StreamRefused,
        STREAMS,
        st.sampled_from([each for each in HTTPStatus if each >= HTTPStatus.BAD_REQUEST]),
        st.text("abc_", min_size=1, max_size=60),
        TEXT,
    ),
    st.builds(StreamBytes, STREAMS, OFFSETS, st.binary(max_size=100)),
    st.builds(StreamEnd, STREAMS, OFFSETS),
    st.builds(StreamReset, STREAMS),
    st.builds(StreamWindow, STREAMS, OFFSETS),
    st.builds(OpenAssociation, STREAMS, USER_NUMBERS),
)


@given(FRAMES)
def test_to_bytes_and_back(frame):
    assert parse(frame.pack()) == frame
    assert parse(memoryview(frame.pack())) == frame


@pytest.mark.parametrize("read", [parse, parse_packet])
@given(data=st.binary(max_size=80))
def test_anything_is_a_frame_or_a_packet_or_an_error(read, data):
    try:
        found = read(data)
    except ValueError:
        return
    assert found.pack() == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02\0\0\0",
        b"\x02\0\0\0\0",  # stream 0
        b"\x02\0\0\0\x01more",
        b"\x01\0\0\0\x01\0\x50\x00",  # no host
        b"\x01\0\0\0\x01\0\0\x01h",  # no port
        b"\x01\0\0\0\x01\0\x50\x04hos",
        b"\x03\0\0\0\x01\0\x01\0",  # no status of HTTP
        b"\x03\0\0\0\x01\0\xc8\x02ok",  # status 200
        b"\x03\0\0\0\x01\1\xf6\x07a\r\nB: c",  # a line of its own in the proxy's answer
        b"\x09\0\0\0\x01",
        b"\x05\0\0\0\x01\0\0",
    ],
)
def test_what_is_none_is_told(data):
    with pytest.raises(ValueError, match=r".+"):
        parse(data)


NUMBERS = st.integers(0, 2**32 - 1)
HOSTS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=253)
PACKETS = st.one_of(
    st.builds(ProgramPacket, NUMBERS, HOSTS, st.integers(1, 65_535), st.binary(max_size=100)),
    st.builds(UndeliveredPacket, NUMBERS, HOSTS, st.integers(1, 65_535), st.sampled_from(Obstacle)),
    st.builds(GatewayQuestion, NUMBERS, st.binary(max_size=100), st.booleans()),
    st.builds(GatewayAnswer, NUMBERS, st.binary(max_size=100), st.booleans()),
)


@given(PACKETS)
def test_packets_to_bytes_and_back(packet):
    assert parse_packet(packet.pack()) == packet


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
        b"\x07\0\0\0\x01",
    ],
)
def test_what_is_refused(data):
    with pytest.raises(ValueError, match=r"packet|kind|Obstacle"):
        parse_packet(data)
