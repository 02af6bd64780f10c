from hashlib import sha256
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from scapy.packet import Raw

from cedos.host.profiler.frame import parse_frame
from cedos.model import FlowKey

PAIRS = [
    (IP(src="192.0.2.1", dst="198.51.100.1"), "192.0.2.1", "198.51.100.1"),
    (IPv6(src="2001:db8::1", dst="2001:db8::2"), "2001:db8::1", "2001:db8::2"),
    (
        IPv6(src="2001:db8::1", dst="2001:db8::2") / IPv6ExtHdrHopByHop(),
        "2001:db8::1",
        "2001:db8::2",
    ),
]
SEGMENT = TCP(sport=5000, dport=443, seq=4_000_000_000, ack=77, options=[("MSS", 1400)])


@pytest.mark.parametrize(("network", "source", "destination"), PAIRS)
def test_padding_is_left_off(network, source, destination):
    packet = bytes(network / SEGMENT / Raw(b"x")) + bytes(30)
    captured = parse_frame(packet, outgoing=True)
    assert captured.payload == b"x"
    assert parse_frame(bytes(network / SEGMENT) + bytes(30), outgoing=True) is None


def test_a_packet_over_64_kb_states_no_length():
    for network in (IP(len=0), IPv6(plen=0)):
        captured = parse_frame(bytes(network / TCP() / Raw(b"GET / ")), outgoing=True)
        assert captured.payload == b"GET / "


def numbers(*options):
    packet = bytes(IP() / TCP(seq=5, ack=6, options=list(options)) / Raw(b"x"))
    captured = parse_frame(packet, outgoing=True)
    return captured.sequence, captured.acknowledgement, captured.mptcp


def test_mptcp_counts_over_all_subflows():
    stamp = ("Timestamp", (1, 2))
    assert numbers(stamp, ("EOL", None), (30, bytes(18))) == (5, 6, False)
    long, short = bytes.fromhex("1122334455667788"), bytes.fromhex("99aabbcc")
    rest = bytes(6)
    both_long = b"\x20\x0f" + long + long[::-1] + rest
    assert numbers(stamp, (30, both_long)) == (0x44332211, 0x55667788, True)
    assert numbers((30, b"\x20\x05" + short + short[::-1] + rest)) == (0xCCBBAA99, 0x99AABBCC, True)
    assert numbers((30, b"\x20\x01" + short)) == (None, 0x99AABBCC, True)
    assert numbers((30, b"\x20\x04" + short + rest)) == (0x99AABBCC, None, True)
    address = (30, b"\x30" + bytes(5))  # ADD_ADDR beside the mapping
    assert numbers(address, (30, b"\x20\x04" + short + rest)) == (0x99AABBCC, None, True)
    assert numbers(address) == (None, None, True)


def test_mptcps_first_data_begins_where_its_keys_say():
    keys = bytes(range(16))
    first = [int.from_bytes(sha256(key).digest(), "big") + 1 for key in (keys[:8], keys[8:])]
    sequence, acknowledgement, mptcp = numbers((30, b"\x01\x81" + keys + b"\x00\x01"))
    assert (sequence, acknowledgement, mptcp) == (first[0] % 2**32, first[1] % 2**32, True)
    assert numbers((30, b"\x01\x81" + keys[:8])) == (None, None, True)


@given(st.binary(max_size=38))
def test_hostile_options_never_raise(option):
    for options in (option, b"\x1e" + bytes([len(option) + 2]) + option):
        padded = options + bytes(-len(options) % 4)
        raw = bytearray(bytes(IP(len=0) / TCP()) + padded + b"x")
        raw[32] = (5 + len(padded) // 4) << 4
        captured = parse_frame(bytes(raw), outgoing=True)
        assert captured.sequence is None or 0 <= captured.sequence < 2**32


@pytest.mark.parametrize(("network", "source", "destination"), PAIRS)
def test_a_datagram(network, source, destination):
    packet = bytes(network / UDP(sport=5000, dport=443) / Raw(b"hello"))
    here, there = ip_address(source), ip_address(destination)
    sent = parse_frame(packet + b"padding", outgoing=True, interface="wlan0")
    assert sent.key == FlowKey(here, 5000, there, 443, "udp")
    assert (sent.payload, sent.sequence, sent.interface) == (b"hello", None, "wlan0")
    received = parse_frame(packet, outgoing=False)
    assert received.key == FlowKey(there, 443, here, 5000, "udp")
    for cut in range(len(packet) - 5):
        assert parse_frame(packet[:cut], outgoing=True) is None


def test_what_is_no_payload_of_tcp_or_udp_is_none():
    assert parse_frame(bytes(IP() / UDP()), outgoing=True) is None
    assert parse_frame(bytes(IP(proto=132) / Raw(bytes(40))), outgoing=True) is None
    assert parse_frame(bytes(IPv6(nh=132) / Raw(bytes(40))), outgoing=True) is None
    assert parse_frame(bytes(IP(frag=3) / UDP() / Raw(bytes(40))), outgoing=True) is None
    assert parse_frame(bytes(IP(frag=3) / TCP() / Raw(bytes(40))), outgoing=True) is None
    assert parse_frame(bytes(IP(ihl=1) / TCP() / Raw(bytes(40))), outgoing=True) is None
    assert parse_frame(bytes(IP() / TCP(dataofs=2) / Raw(bytes(40))), outgoing=True) is None
    assert parse_frame(bytes([0x70]) + bytes(80), outgoing=True) is None
