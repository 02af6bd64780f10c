"""When packets with data pass a host's interfaces, by the kernel's own clock."""

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from cedos.kernel.interface_socket import SO_TIMESTAMPNS, TIMESTAMP_SPACE, arrival_ns
from emu.testbed.netns import Namespace

_ALL_PROTOCOLS = 3
_OUTGOING = 4
_IPV4, _TCP = 0x0800, 6
_POLL_S = 0.1
_SNAPSHOT_BYTES = 128


@dataclass(frozen=True, slots=True)
class Passed:
    """A packet with data; `at_s` is monotonic."""

    at_s: float
    interface: str
    outgoing: bool
    payload_bytes: int


class Tap:
    """Watches TCP packets with data to or from a port in a namespace, as a `with` block (root).

    Attributes:
        passed: what has passed, in the order in which it did.
    """

    def __init__(self, namespace: Namespace, port: int) -> None:
        self._port = port
        with namespace.entered():
            self._socket = socket.socket(
                socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL_PROTOCOLS)
            )
        self._socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self._socket.settimeout(_POLL_S)
        # The kernel's stamps are of the wall clock.
        self._ahead_s = time.time() - time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.passed: list[Passed] = []

    def __enter__(self) -> "Tap":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        time.sleep(2 * _POLL_S)
        self._over.set()
        self._thread.join()
        self._socket.close()

    def _watch(self) -> None:
        while not self._over.is_set():
            with suppress(TimeoutError):
                data, ancillary, _, address = self._socket.recvmsg(_SNAPSHOT_BYTES, TIMESTAMP_SPACE)
                stamp_ns = arrival_ns(ancillary)
                size = payload_bytes(data, self._port) if address[1] == _IPV4 else 0
                if stamp_ns and size:
                    at_s = 1e-9 * stamp_ns - self._ahead_s
                    outgoing = address[2] == _OUTGOING
                    self.passed.append(Passed(at_s, address[0], outgoing, size))


def payload_bytes(packet: bytes, port: int) -> int:
    """How much data an IPv4 packet carries to or from a TCP port; 0 where it is another one."""
    if len(packet) < 40 or packet[9] != _TCP:
        return 0
    header = 4 * (packet[0] & 15)
    if len(packet) < header + 20 or port not in struct.unpack_from("!HH", packet, header):
        return 0
    (total,) = struct.unpack_from("!H", packet, 2)
    size: int = total - header - 4 * (packet[header + 12] >> 4)
    return size
