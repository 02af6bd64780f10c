"""A UDP socket whose datagrams come with the kernel's time of their arrival."""

import asyncio
import os
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cedos.model import Address
from cedos.monitor.flows import own_flows

_SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("=qq")
_SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
_LARGEST = 2048
_BUFFER_BYTES = 1 << 20
CLOCK_S = 0.002
"""A clock that was set by more than this while a train came in has spoilt its arrivals."""

_AT_ONCE = 512
"""After so many datagrams the loop may do other things first."""

Source = tuple[Any, ...]
"""A peer as sockets name it: address, port, and for IPv6 what follows."""
Receive = Callable[[bytes, float, Source], None]


class Datagrams:
    """Sends datagrams, and hands on what comes with its arrival in seconds of the kernel's clock.

    The kernel's clock is the host's wall clock; `clock_moved_s` says how much it was set meanwhile.

    Args:
        version: 4 or 6.
        receive: called with data, time of arrival and source.
        interface: leave and arrive through this one alone (SO_BINDTODEVICE).

    Raises:
        OSError: no such interface, or it may not be chosen.
    """

    def __init__(self, version: int, receive: Receive, *, interface: str | None = None) -> None:
        self._receive = receive
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        try:
            self.socket.setblocking(False)
            if interface is not None:
                self.socket.setsockopt(
                    socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(interface)
                )
            self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                self.socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        except OSError:
            self.socket.close()
            raise
        self._offset_s = clock_offset_s()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.socket.fileno(), self._readable)

    @property
    def clock_moved_s(self) -> float:
        """How far the wall clock has moved against the monotonic one since the beginning."""
        return abs(clock_offset_s() - self._offset_s)

    async def send(self, data: bytes, to: Source | None = None) -> None:
        """Sends one; waits while the kernel's buffer is full.

        Raises:
            OSError: the network does not take it.
        """
        if to is None:
            await self._loop.sock_sendall(self.socket, data)
        else:
            await self._loop.sock_sendto(self.socket, data, to)

    def connect(self, address: Address, port: int, index: int = 0) -> None:
        """Sends to, and hears from, this peer alone; `index` is that of a link-local one's interface."""
        scope = (0, index) if address.version == 6 and address.is_link_local else ()
        own_flows.connect(self.socket, (str(address), port, *scope))

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, extra, flags, source = self.socket.recvmsg(_LARGEST, _SPACE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                # What the network said of an earlier datagram (unreachable, refused): whoever waits
                # for an answer waits on, for it may be on its way, and anybody can send such a thing.
                continue
            if flags & socket.MSG_TRUNC:
                continue
            at_s = time.time()
            for level, kind, value in extra:
                if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS):
                    seconds, nanoseconds = _TIMESPEC.unpack(value[: _TIMESPEC.size])
                    at_s = seconds + nanoseconds / 1e9
            self._receive(data, at_s, source)

    def close(self) -> None:
        """Ends it; again does nothing."""
        if self.socket.fileno() >= 0:
            with suppress(ValueError):
                self._loop.remove_reader(self.socket.fileno())
            self.socket.close()


def clock_offset_s() -> float:
    """The wall clock less the monotonic one, right within microseconds on a busy host too."""
    best = (float("inf"), 0.0)
    for _ in range(3):
        before_s, wall_s, after_s = time.monotonic(), time.time(), time.monotonic()
        best = min(best, (after_s - before_s, wall_s - (before_s + after_s) / 2))
    return best[1]
