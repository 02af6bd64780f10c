"""A UDP socket whose datagrams come with the kernel's time of their arrival."""

import asyncio
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cedos.host.monitor.flows import own_flows
from cedos.kernel.interface_socket import TIMESTAMP_SPACE, arrival_ns, interface_socket
from cedos.model import Address

_LARGEST = 2048
_BUFFER_BYTES = 1 << 20
# If the clock was set by more than this during a train, the arrivals are useless.
CLOCK_S = 0.002

# The most datagrams that are read before the event loop does other work.
_AT_ONCE = 512

# A peer's socket address: address, port, and for IPv6 flow label and scope.
Source = tuple[Any, ...]
Receive = Callable[[bytes, float, Source], None]


class Datagrams:
    """A UDP socket; `receive` takes data, time of arrival and source. OSError: no such interface.

    The kernel's clock is the host's wall clock; `clock_moved_s` says how much it was set meanwhile.
    """

    def __init__(self, version: int, receive: Receive, *, interface: str | None = None) -> None:
        self._receive = receive
        self.socket = interface_socket(interface, version, socket.SOCK_DGRAM, timestamps=True)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._offset_s = clock_offset_s()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.socket.fileno(), self._readable)

    @property
    def clock_moved_s(self) -> float:
        """Return how far the wall clock has moved against the monotonic one since the beginning."""
        return abs(clock_offset_s() - self._offset_s)

    async def send(self, data: bytes, to: Source | None = None) -> None:
        """Send one; wait while the kernel's buffer is full. OSError: the network does not take it."""
        if to is None:
            await self._loop.sock_sendall(self.socket, data)
        else:
            await self._loop.sock_sendto(self.socket, data, to)

    def connect(self, address: Address, port: int, index: int = 0) -> None:
        """Send to, and hears from, this peer alone; `index` is that of a link-local one's interface."""
        own_flows.connect(self.socket, address, port, index)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, ancillary, flags, source = self.socket.recvmsg(_LARGEST, TIMESTAMP_SPACE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # The network's error about an earlier datagram (unreachable, refused). Go on waiting for
                # the answer: it may be on its way, and any host can send such an error.
                continue
            if flags & socket.MSG_TRUNC:
                continue
            self._receive(data, arrival_ns(ancillary) / 1e9 or time.time(), source)

    def close(self) -> None:
        if self.socket.fileno() >= 0:
            with suppress(ValueError):
                self._loop.remove_reader(self.socket.fileno())
            self.socket.close()


def clock_offset_s() -> float:
    """Return the wall clock less the monotonic one, right within microseconds on a busy host too."""
    best = (float("inf"), 0.0)
    for _ in range(3):
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        best = min(best, (after_s - before_s, wall_s - (before_s + after_s) / 2))
    return best[1]
