"""The netlink codec, and parsers that no bytes can break."""

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from cedos.kernel import conntrack, netlink, sock_diag

TYPES = st.sampled_from([2, 3, 16, 20, 28, 0x100, 0x102])


@given(
    st.lists(
        st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)),
        max_size=8,
        unique_by=lambda pair: pair[0],
    )
)
def test_attributes_come_back(pairs: list[tuple[int, bytes]]) -> None:
    data = b"".join(netlink.attribute(kind, value) for kind, value in pairs)
    assert netlink.attributes(data) == dict(pairs)
    assert netlink.attributes(b"1234" + data, 4) == dict(pairs)


@given(
    st.lists(st.tuples(TYPES, st.integers(0, 0xFFFF), st.binary(max_size=30)), max_size=5),
    st.integers(0, 40),
)
def test_messages_come_back_and_a_truncated_one_ends_them(
    parts: list[tuple[int, int, bytes]], cut: int
) -> None:
    datagram = b""
    for kind, flags, payload in parts:
        one = netlink.message(kind, flags, 7, payload)
        datagram += one + b"\0" * (-len(one) % 4)
    found = list(netlink.messages(datagram))
    assert [(m.type, m.flags, m.payload) for m in found] == parts
    shorter = list(netlink.messages(datagram[: max(0, len(datagram) - cut)]))
    assert shorter == found[: len(shorter)]


def test_flags_in_an_attributes_type_are_not_its_type() -> None:
    assert netlink.attributes(struct.pack("=HH", 4, 0x8000 | 5)) == {5: b""}


@given(st.binary(max_size=400), TYPES)
@example(b"\2" + b"\xff" * 200, 20)
@example(b"\0" * 72, 20)
def test_no_payload_breaks_a_parser(payload: bytes, kind: int) -> None:
    message = netlink.NetlinkMessage(kind, 0, 0, payload)
    sock_diag.parse(message)
    conntrack.parse(message)


@given(st.binary(max_size=200))
def test_no_datagram_breaks_the_splitter(datagram: bytes) -> None:
    for message in netlink.messages(datagram):
        assert len(message.payload) <= len(datagram)


def test_numbers() -> None:
    assert netlink.unsigned(struct.pack("=I", 77)) == 77
    assert netlink.unsigned(struct.pack("=Q", 1 << 40)) == 1 << 40
    assert netlink.unsigned(None) is None
    assert netlink.unsigned(b"") is None
