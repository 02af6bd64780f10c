"""The parser of connection tracking: it drops strangers' entries early, and nothing else."""

import socket
from ipaddress import IPv4Address, ip_address

from hypothesis import given
from hypothesis import strategies as st

from cedos.kernel import conntrack
from cedos.kernel.netlink import attribute, build_nested, message, messages

OWN, OTHER_OWN = IPv4Address("10.0.0.2"), IPv4Address("10.1.0.2")
FAR, FARTHER = IPv4Address("198.51.100.1"), IPv4Address("203.0.113.9")
ADDRESSES = [OWN, OTHER_OWN, FAR, FARTHER, ip_address("2001:db8::2"), ip_address("2001:db8::9")]
NEW = 0x100


def is_local(address):
    return address in (OWN, OTHER_OWN, ADDRESSES[4])


def direction(kind, source, target, protocol):
    first = 1 if source.version == 4 else 3
    addresses = attribute(first, source.packed), attribute(first + 1, target.packed)
    ports = attribute(1, bytes([protocol])) + attribute(2, b"\x10\x00") + attribute(3, b"\x00\x50")
    return build_nested(kind, build_nested(1, *addresses), build_nested(2, ports))


def event(kind, *ends, protocol=socket.IPPROTO_TCP):
    """`ends`: source and destination of what was sent first, and of the replies."""
    source, target, answers, answered = ends
    body = conntrack.netfilter_head(source.version) + direction(1, source, target, protocol)
    body += direction(2, answers, answered, protocol) + attribute(3, b"\0\0\0\1")
    return message(kind, 0, 0, body)


def test_a_strangers_end_and_datagram_are_left_out_and_his_call_is_not():
    came = FAR, OWN, OWN, FAR
    assert conntrack.of_stranger(event(conntrack.DELETE, *came), is_local)
    assert conntrack.of_stranger(event(NEW, *came, protocol=socket.IPPROTO_UDP), is_local)
    assert not conntrack.of_stranger(event(NEW, *came), is_local), (
        "it may be for one of our sockets"
    )


def test_what_this_host_began_is_read():
    for kind in (NEW, conntrack.DELETE):
        for protocol in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
            ours = event(kind, OWN, FAR, FAR, OWN, protocol=protocol)
            assert not conntrack.of_stranger(ours, is_local)
    # Its address has gone since.
    gone = event(conntrack.DELETE, FARTHER, FAR, FAR, FARTHER)
    assert not conntrack.of_stranger(gone, is_local)


def test_two_events_at_once_are_read():
    one = event(conntrack.DELETE, FAR, OWN, OWN, FAR)
    assert not conntrack.of_stranger(one + one, is_local)


@given(
    st.sampled_from([NEW, conntrack.DELETE, 0x101]),
    st.lists(st.sampled_from(ADDRESSES), min_size=4, max_size=4),
    st.sampled_from([socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP]),
)
def test_what_is_left_out_would_be_thrown_away(kind, ends, protocol):
    datagram = event(kind, *ends, protocol=protocol)
    if not conntrack.of_stranger(datagram, is_local):
        return
    for each in messages(datagram):
        tracked = conntrack.parse(each)
        assert tracked is None or (
            (tracked.ended or tracked.protocol != "tcp")
            and not is_local(tracked.original.source)
            and is_local(tracked.reply.source)
        )


@given(st.binary(max_size=200))
def test_anything_may_come(data):
    conntrack.of_stranger(data, is_local)
    conntrack.of_stranger(event(conntrack.DELETE, FAR, OWN, OWN, FAR)[: len(data)] + data, is_local)
