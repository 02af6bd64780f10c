"""Capture of packets that begin a message: a packet socket with a filter.

The filter passes packets whose payload begins a message with a size or a name: HTTP/1.x heads and
TLS ClientHellos over TCP on any port, and clients' QUIC Initials to UDP port 443. Of 10 MB over
HTTP two packets reach the daemon. Offsets count from the network header. The socket is of type
SOCK_DGRAM: the kernel removes the link header, so that Ethernet, tunnels, modems and loopback are
alike.

A ClientHello with post-quantum keys takes two segments, and the filter has no memory: it knows the
second one as a short, pushed segment to TCP port 443 that does not begin a TLS record. The middle
segments of a hello of three or more are not captured.
"""

import errno
import struct
from typing import Any, NamedTuple

from cedos.errors import HostError, PrivilegeError
from cedos.host.profiler.frame import CapturedPacket, parse_frame
from cedos.host.profiler.handshakes import VERSION_1, VERSION_2
from cedos.kernel.classic_bpf import PACKET_TYPE, PROTOCOL, VLAN_TAG_PRESENT, Assembler
from cedos.kernel.privileges import PacketSocket, open_privileged

# The captured bytes of a packet: an HTTP head with cookies, or a post-quantum ClientHello.
#
# Links that split packets themselves show them whole, so a hello of two datagrams or segments is
# one.
SNAP_BYTES = 4096

# The first four bytes of a response, and of a request by its method.
BEGINNINGS = (b"HTTP", b"GET ", b"POST", b"PUT ", b"HEAD", b"PATC", b"DELE", b"OPTI", b"CONN")

_ETHERTYPE_IPV4, _ETHERTYPE_IPV6 = 0x0800, 0x86DD
_TCP, _UDP = 6, 17
_TLS_PORT = 443
_HANDSHAKE_RECORD = 22
_PUSH = 0x08
_LONGEST_END = 1024  # less than any full segment: those of bulk uploads are full
_LONG_HEADER_AND_TYPE = 0xB0
_QUIC_INITIALS = ((VERSION_1, 0x80), (VERSION_2, 0x90))
_DESTINATION_PORT_SLOT, _FLAGS_SLOT = 1, 2
_FOR_THIS_HOST, _OUTGOING = 0, 4
_IPV6_HEADER_BYTES = 40
# Hop-by-hop options (the kernel itself adds them to IPv6 packets over 64 KB), routing, destination.
_IPV6_EXTENSIONS = (0, 43, 60)
_IPV6_EXTENSIONS_FOLLOWED = 2


def program(snap_bytes: int = SNAP_BYTES) -> bytes:
    """Return the filter's bytecode, an array of `struct sock_filter`; at most `snap_bytes` pass."""
    code = Assembler()
    # Neither broadcast nor, on a promiscuous interface, what other hosts tell each other.
    code.load(PACKET_TYPE, 4)
    code.if_equal(_FOR_THIS_HOST, then="ours")
    code.if_equal(_OUTGOING, otherwise="drop")
    code.label("ours")
    # What carries a tag is seen again, without it, on the VLAN's own interface.
    code.load(VLAN_TAG_PRESENT, 4)
    code.if_equal(0, otherwise="drop")
    code.load(PROTOCOL, 4)
    code.if_equal(_ETHERTYPE_IPV4, then="ipv4")
    code.if_equal(_ETHERTYPE_IPV6, then="ipv6", otherwise="drop")
    code.label("ipv4")
    _find_transport_in_ipv4(code)
    code.label("ipv6")
    _find_transport_in_ipv6(code)
    code.label("udp")
    _accept_initials(code)
    code.label("tcp")
    _accept_beginnings(code)
    code.label("neither")
    _accept_ends(code)
    code.label("accept")
    code.give(snap_bytes)
    code.label("drop")
    code.give(0)
    return code.assemble()


def _find_transport_in_ipv4(code: Assembler) -> None:
    """Continue at `tcp` or `udp` with X at its header, or drop."""
    code.load(6, 2)
    code.if_any_bit(0x1FFF, then="drop")  # a later fragment has no such header
    code.load_x_header_length(0)
    code.load(9, 1)
    code.if_equal(_TCP, then="tcp")
    code.if_equal(_UDP, then="udp", otherwise="drop")


def _find_transport_in_ipv6(code: Assembler) -> None:
    """Continue at `tcp` or `udp` with X at its header, or drop."""
    code.load_x(_IPV6_HEADER_BYTES)
    code.load(6, 1)
    for depth in range(_IPV6_EXTENSIONS_FOLLOWED):
        code.if_equal(_TCP, then="tcp")
        code.if_equal(_UDP, then="udp")
        extension = f"extension-{depth}"
        for number in _IPV6_EXTENSIONS[:-1]:
            code.if_equal(number, then=extension)
        code.if_equal(_IPV6_EXTENSIONS[-1], then=extension, otherwise="drop")
        code.label(extension)
        # Its first byte names what follows, its second its own length in units of 8 bytes after 8.
        code.load(0, 1, indexed=True)
        code.save(0)
        code.load(1, 1, indexed=True)
        code.add(1)
        code.shift_left(3)
        code.add_x()
        code.to_x()
        code.recall(0)
    code.if_equal(_TCP, then="tcp")
    code.if_equal(_UDP, otherwise="drop")


def _accept_initials(code: Assembler) -> None:
    """With X at the UDP header: accepts or drops."""
    # Of this host alone: what others send it is theirs to make up, and costs a decryption.
    code.load(PACKET_TYPE, 4)
    code.if_equal(_OUTGOING, otherwise="drop")
    code.load(2, 2, indexed=True)
    code.if_equal(_TLS_PORT, otherwise="drop")
    code.load(8, 1, indexed=True)
    code.mask(_LONG_HEADER_AND_TYPE)
    for version, initial in _QUIC_INITIALS:
        code.if_equal(initial, then=f"version-{version}")
    code.jump("drop")
    for version, _ in _QUIC_INITIALS:
        code.label(f"version-{version}")
        code.load(9, 4, indexed=True)
        code.if_equal(version, then="accept", otherwise="drop")


def _accept_beginnings(code: Assembler) -> None:
    """With X at the TCP header: accepts by the payload's first bytes, or goes on with X at it."""
    code.load(2, 2, indexed=True)
    code.save(_DESTINATION_PORT_SLOT)
    code.load(13, 1, indexed=True)
    code.save(_FLAGS_SLOT)
    code.load(12, 1, indexed=True)
    code.mask(0xF0)
    code.shift_right(2)
    code.add_x()
    code.to_x()
    code.load(0, 4, indexed=True)
    for beginning in BEGINNINGS:
        code.if_equal(int.from_bytes(beginning, "big"), then="accept")
    # TLS: a record of type handshake, version 3.0 to 3.7, with a ClientHello under 64 KB.
    code.mask(0xFFFFF800)
    code.if_equal(0x16030000, otherwise="neither")
    code.load(5, 2, indexed=True)
    code.if_equal(0x0100, then="accept")


def _accept_ends(code: Assembler) -> None:
    """With X at the TCP payload: accepts what may end a ClientHello, drops all else."""
    code.recall(_DESTINATION_PORT_SLOT)
    code.if_equal(_TLS_PORT, otherwise="drop")
    code.load(0, 2, indexed=True)
    code.mask(0xFCFF)
    code.if_equal(0x1403, then="aligned")  # types 20 to 23: a record begins here
    code.recall(_FLAGS_SLOT)
    code.if_any_bit(_PUSH, otherwise="drop")
    code.load_length()
    code.subtract_x()
    code.if_greater(_LONGEST_END, then="drop", otherwise="accept")
    code.label("aligned")
    # A hello may go on in a further record of its kind; all others are data.
    code.load(0, 1, indexed=True)
    code.if_equal(_HANDSHAKE_RECORD, otherwise="drop")


_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_PACKET_OUTGOING = 4
_NO_PACKETS = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)


class CaptureStatistics(NamedTuple):
    """Packets that passed the filter since the last reading, and those lost of them: a full queue."""

    passed: int
    lost: int


class Capture:
    """An open packet socket, which it owns. `fileno` becomes readable when packets wait."""

    def __init__(self, packets: Any) -> None:
        self._socket = packets

    def __enter__(self) -> "Capture":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return int(self._socket.fileno())

    def read(self, limit: int = 64) -> list[CapturedPacket]:
        """Return the waiting packets, at most `limit`; never blocks. A down interface is no error."""
        captured = []
        receive = self._socket.recvfrom
        for _ in range(limit):
            try:
                packet, address = receive(SNAP_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.ENETDOWN, errno.EINTR):
                    continue
                raise
            one = parse_frame(packet, outgoing=address[2] == _PACKET_OUTGOING, interface=address[0])
            if one is not None:
                captured.append(one)
        return captured

    def statistics(self) -> CaptureStatistics:
        raw = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return CaptureStatistics(*struct.unpack("II", raw))

    def close(self) -> None:
        self._socket.close()


def open_capture(interface: str | None = None, code: bytes | None = None) -> Capture:
    """Start capturing on one interface, or on all of this namespace, future ones included.

    `code` is the filter (classic BPF), None: the one for packets that begin a message.

    PrivilegeError: CAP_NET_RAW is missing. HostError: no such interface, or no packet sockets.
    """
    try:
        return Capture(open_privileged(PacketSocket(code or program(), interface)))
    except PermissionError as error:
        raise PrivilegeError(
            "capturing first packets needs CAP_NET_RAW: run as root, or give the service "
            "AmbientCapabilities=CAP_NET_RAW"
        ) from error
    except OSError as error:
        if error.errno in _NO_PACKETS:
            raise HostError(
                f"this kernel has no packet sockets (CONFIG_PACKET): {error}"
            ) from error
        where = f"on {interface}" if interface else "on all interfaces"
        raise HostError(f"cannot capture {where}: {error.strerror or error}") from error
