"""The packets that begin a message, taken from the kernel: a packet socket with a filter.

Of type SOCK_DGRAM: the kernel takes the link header off, so that Ethernet, tunnels, modems and loopback
are alike.
"""

import ctypes
import errno
import os
import socket
import struct
from typing import Any, NamedTuple

from cedos.errors import HostError, PrivilegeError
from cedos.profiler.capture.first_packets import SNAP_BYTES, program
from cedos.profiler.frame import CapturedPacket, parse_frame

_ETH_P_ALL = 0x0003
_ALL_INTERFACES = 0
_SO_ATTACH_FILTER = 26
_SO_RCVBUFFORCE = 33
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
_PACKET_OUTGOING = 4
_INSTRUCTION_BYTES = 8
_libc = ctypes.CDLL(None, use_errno=True)
# A queued packet counts with all the memory that it was received in, up to 64 KB and more.
_BUFFER_BYTES = 4 << 20


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
        """The packets that wait, of at most `limit`; never blocks. A down interface is no error."""
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
    """Starts capturing on one interface, or on all of this namespace, those to come included.

    `code` is the filter (classic BPF), None: the one for packets that begin a message.

    PrivilegeError: CAP_NET_RAW is missing. HostError: no such interface, or no packet sockets.
    """
    try:
        # Protocol 0 hears nothing: no packet gets in before the filter is there.
        packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
    except PermissionError as error:
        raise PrivilegeError(
            "capturing first packets needs CAP_NET_RAW: run as root, or give the service "
            "AmbientCapabilities=CAP_NET_RAW"
        ) from error
    except OSError as error:
        raise HostError(f"this kernel has no packet sockets (CONFIG_PACKET): {error}") from error
    try:
        _attach(packets, code or program())
        _enlarge(packets)
        _bind(packets, socket.if_nametoindex(interface) if interface else _ALL_INTERFACES)
    except OSError as error:
        packets.close()
        where = f"on {interface}" if interface else "on all interfaces"
        raise HostError(f"cannot capture {where}: {error.strerror or error}") from error
    return Capture(packets)


def _attach(packets: socket.socket, code: bytes) -> None:
    instructions = ctypes.create_string_buffer(code, len(code))
    length = len(code) // _INSTRUCTION_BYTES
    packets.setsockopt(
        socket.SOL_SOCKET,
        _SO_ATTACH_FILTER,
        struct.pack("HL", length, ctypes.addressof(instructions)),
    )


def _bind(packets: socket.socket, index: int) -> None:
    # By hand, as Python's own bind wants the name of one interface.
    address = struct.pack(
        "=HHiHBB8s", socket.AF_PACKET, socket.htons(_ETH_P_ALL), index, 0, 0, 0, b""
    )
    if _libc.bind(packets.fileno(), address, len(address)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _enlarge(packets: socket.socket) -> None:
    try:
        packets.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
    except PermissionError:  # without CAP_NET_ADMIN the system's limit holds
        packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
