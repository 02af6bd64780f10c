"""The packets that begin a message, taken from the kernel: a packet socket with a filter.

Of type SOCK_DGRAM: the kernel takes the link header off, so that Ethernet, tunnels, modems and loopback
are alike.
"""

import errno
import struct
from typing import Any, NamedTuple

from cedos.errors import HostError, PrivilegeError
from cedos.kernel.sockets.privileged_sockets import PacketSocket, opened
from cedos.profiler.capture.first_packets import SNAP_BYTES, program
from cedos.profiler.frame import CapturedPacket, parse_frame

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
        return Capture(opened(PacketSocket(code or program(), interface)))
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
