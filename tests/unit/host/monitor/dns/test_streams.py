"""Messages in TCP streams are found, however they are cut."""

import struct
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.dns_message import AnswerStreams
from cedos.model import FlowKey

KEY = FlowKey(ip_address("192.0.2.2"), 4000, ip_address("192.0.2.53"), 53)


def numbered(at):
    return at & 0xFFFFFFFF


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    st.lists(st.integers(1, 30), min_size=1),
    st.integers(0, 2**32 - 1),
)
def test_messages_in_tcp_are_found_however_they_are_cut(messages, cuts, first):
    stream = b"".join(struct.pack("!H", len(each)) + each for each in messages)
    streams, found, at = AnswerStreams(), [], 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        part = stream[at : at + size]
        early = (
            streams.messages(KEY, numbered(first + at + 1), stream[at + 1 :] or b"x")
            if at
            else None
        )
        assert early is None
        found += streams.messages(KEY, numbered(first + at), part) or []
        assert streams.messages(KEY, numbered(first + at), part) == []  # it is sent again
        at += len(part)
    assert found == messages
