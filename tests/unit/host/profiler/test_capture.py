"""The socket's side without a kernel."""

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.packet import Raw

from cedos.errors import HostError, PrivilegeError
from cedos.host.profiler import capture
from cedos.host.profiler.capture import BEGINNINGS, SNAP_BYTES, Capture, open_capture, program
from cedos.host.profiler.frame import parse_frame

PROGRAM = program()


HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(500)


OPTIONS = [("NOP", None), ("NOP", None), ("Timestamp", (1, 2)), (30, bytes(18))]


HEADERS = {
    "IPv4": IP(src="192.0.2.1", dst="198.51.100.1") / TCP(sport=1234, dport=80),
    "IPv4 with options": IP(src="192.0.2.1", dst="198.51.100.1", options=b"\x01" * 8)
    / TCP(sport=1234, dport=80, options=OPTIONS),
    "IPv6": IPv6(src="2001:db8::1", dst="2001:db8::2") / TCP(sport=1234, dport=80, options=OPTIONS),
    "IPv6 hop-by-hop": IPv6() / IPv6ExtHdrHopByHop() / TCP(sport=1234, dport=80),
    "IPv6 two extensions": IPv6()
    / IPv6ExtHdrRouting(addresses=["2001:db8::3"])
    / IPv6ExtHdrDestOpt()
    / TCP(sport=1234, dport=80),
}


def raw(packet, payload):
    return bytes(packet / Raw(payload))


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize("payload", [*(b + b"/ HTTP" for b in BEGINNINGS), HELLO])
@pytest.mark.parametrize("packet_type", [0, 4])
def test_beginnings_get_through(headers, payload, packet_type, run_bpf):
    packet = raw(headers, payload)
    assert run_bpf(PROGRAM, packet, packet_type) == SNAP_BYTES
    captured = parse_frame(packet, outgoing=packet_type == 4)
    assert captured.payload == payload


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS.keys())
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"GE",
        b"xGET / HTTP/1.1\r\n",
        b"get / HTTP/1.1\r\n",
        b"\x16\x03",
        b"\x17\x03\x03\x01\x00\x01" + bytes(100),  # application data
        b"\x16\x03\x03\x00\x50\x02" + bytes(100),  # a ServerHello
        b"\x16\x03\x03\x00\x50\x01\x01" + bytes(100),  # over 64 KB
        b"\x16\x04\x03\x00\x50\x01" + bytes(100),
        bytes(1400),
    ],
)
def test_all_else_is_dropped(headers, payload, run_bpf):
    assert run_bpf(PROGRAM, raw(headers, payload)) == 0


TLS = {
    "IPv4": IP(src="192.0.2.1", dst="198.51.100.1"),
    "IPv6": IPv6(src="2001:db8::1", dst="2001:db8::2") / IPv6ExtHdrHopByHop(),
}


@pytest.mark.parametrize("network", TLS.values(), ids=TLS.keys())
def test_the_end_of_a_hello_gets_through(network, run_bpf):
    def passes(payload, flags="PA", port=443, source=1234):
        segment = TCP(sport=source, dport=port, flags=flags, options=OPTIONS)
        return run_bpf(PROGRAM, raw(network / segment, payload), 4) == SNAP_BYTES

    end, handshake = bytes(range(100, 200)), b"\x16\x03\x03\x00\x50\x01\x01"
    assert passes(end)
    assert passes(bytes(1024))
    assert passes(handshake + bytes(2000), "A")  # a hello in several records
    assert not passes(bytes(1025))  # as bulk data is
    assert not passes(end, "A")
    assert not passes(end, port=8080)
    assert not passes(end, port=5000, source=443)
    assert not passes(b"\x17\x03\x03\x00\x50" + end)  # a request
    assert not passes(b"\x14\x03\x03\x00\x01\x01")
    assert not passes(b"")


def test_what_is_not_tcp_for_us_is_dropped(run_bpf):
    get = b"GET / HTTP/1.1\r\n\r\n"
    good = raw(HEADERS["IPv4"], get)
    assert run_bpf(PROGRAM, good) == SNAP_BYTES
    for packet_type in (1, 2, 3, 5, 6, 7):
        assert run_bpf(PROGRAM, good, packet_type) == 0
    assert run_bpf(PROGRAM, good, tagged=1) == 0  # the frame comes again without its tag
    for ethertype in (0x8100, 0x88A8, 0x0806, 0):
        assert run_bpf(PROGRAM, good, ethertype=ethertype) == 0
    assert run_bpf(PROGRAM, raw(IP() / UDP(), bytes(12) + get)) == 0
    assert run_bpf(PROGRAM, raw(IP(frag=5) / TCP(), get)) == 0
    assert run_bpf(PROGRAM, raw(IP(flags="MF") / TCP(), get)) == SNAP_BYTES
    assert run_bpf(PROGRAM, raw(IPv6() / UDP(), get)) == 0
    assert run_bpf(PROGRAM, raw(IPv6() / IPv6ExtHdrFragment(offset=9, nh=6) / TCP(), get)) == 0
    three = IPv6() / IPv6ExtHdrHopByHop() / IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt() / TCP()
    assert run_bpf(PROGRAM, raw(three, get)) == 0


@given(
    packet=st.binary(max_size=200),
    packet_type=st.integers(0, 7),
    ethertype=st.sampled_from([0x0800, 0x86DD, 0x0806]),
)
def test_any_packet_is_let_through_or_dropped(run_bpf, packet, packet_type, ethertype):
    assert run_bpf(PROGRAM, packet, packet_type, ethertype) in (0, SNAP_BYTES)


PACKET = bytes(IP(src="192.0.2.1", dst="198.51.100.1") / TCP() / Raw(b"GET / HTTP/1.1\r\n"))


class FakeSocket:
    """Gives packets, and raises errors, in the order of a script."""

    def __init__(self, script):
        self.script = script
        self.closed = False

    def recvfrom(self, size):
        if not self.script:
            raise BlockingIOError
        one = self.script.pop(0)
        if isinstance(one, OSError):
            raise one
        packet, interface, packet_type = one
        return packet[:size], (interface, 0x0800, packet_type, 1, b"")

    def getsockopt(self, level, option, length):
        assert (level, option, length) == (263, 6, 8)
        return struct.pack("II", 12, 3)

    def fileno(self):
        return -1 if self.closed else 77

    def close(self):
        self.closed = True


def test_packets_come_with_their_side_and_interface():
    fake = FakeSocket([(PACKET, "wlan0", 4), (b"no packet", "wlan0", 0), (PACKET, "lte0", 0)])
    with Capture(fake) as source:
        sent, received = source.read()
        assert source.read() == []
        assert source.fileno() == 77
        assert source.statistics() == (12, 3)
    assert (sent.outgoing, sent.interface, sent.key.remote_port) == (True, "wlan0", 80)
    assert (received.outgoing, received.interface, received.key.remote_port) == (False, "lte0", 20)
    assert source.fileno() == -1


def test_reading_is_bounded():
    source = Capture(FakeSocket([(PACKET, "wlan0", 4)] * 100))
    assert [len(source.read(limit=64)), len(source.read(limit=64))] == [64, 36]


def test_an_interface_that_goes_down_is_survived():
    down = OSError(errno.ENETDOWN, "Network is down")
    source = Capture(FakeSocket([down, (PACKET, "wlan0", 4)]))
    assert len(source.read()) == 1
    broken = Capture(FakeSocket([OSError(errno.EBADF, "Bad file descriptor")]))
    with pytest.raises(OSError, match="Bad file"):
        broken.read()


@pytest.mark.parametrize(
    ("error", "expected", "says"),
    [
        (PermissionError(errno.EPERM, "no"), PrivilegeError, "CAP_NET_RAW"),
        (OSError(errno.EAFNOSUPPORT, "no"), HostError, "CONFIG_PACKET"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, error, expected, says):
    def refuse(wanted):
        raise error

    monkeypatch.setattr(capture, "open_privileged", refuse)
    with pytest.raises(expected, match=says):
        open_capture()
