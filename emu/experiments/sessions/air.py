"""The process between the client's and the server's wires: moves their packets as the script says.

It lives in a namespace of its own, where each network has an end towards the client (`near-NAME`) and
one towards the server (`far-NAME`). Coverage that ends takes the client's carrier away, `detection_s`
late, as a radio notices it.
"""

import fcntl
import json
import os
import select
import socket
import struct
import sys
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

OPPORTUNITY_BYTES: Final = 1500


class Direction:
    """Packets in, packets out with the instants at which they arrive, as Mahimahi's link does it.

    An opportunity carries 1500 bytes of one packet or of several; unused ones are lost. A packet leaves
    with its last byte, and arrives one delay later, never before the one ahead of it.
    """

    def __init__(
        self,
        # Opportunities of one period, never decreasing, within 0 and the period.
        times_ms: Sequence[int],
        period_ms: int,  # after it they repeat
        queue_packets: int,  # more than these wait for no opportunity: they are dropped
        # (from second, delay in seconds), the first from 0; they repeat with the period.
        delays: Sequence[tuple[float, float]],
    ) -> None:
        self._times = times_ms
        self._period_ms = period_ms
        self._limit = queue_packets
        self._changes_ms = [1e3 * since_s for since_s, _ in delays]
        self._delays_ms = [1e3 * delay_s for _, delay_s in delays]
        self._queue: deque[tuple[bytes, int]] = deque()
        self._left = 0  # bytes of the first packet that have not been carried yet
        self._next = 0  # the opportunity that comes next, counted over all periods
        self._flying: deque[tuple[float, bytes]] = deque()

    def arrive(self, packet: bytes, size: int, now_ms: float) -> None:
        """Queue a packet of `size` bytes (of IP), or drop it."""
        if len(self._queue) >= self._limit:
            return
        if not self._queue:
            # An idle link starts at the first opportunity from now on.
            self._next = max(self._next, self._first_from(now_ms))
            self._left = size
        self._queue.append((packet, size))

    def leave(self, now_ms: float) -> list[bytes]:
        # Use each opportunity that has passed, then hand over the packets whose delay is over.
        while self._queue and (at_ms := self._at_ms(self._next)) <= now_ms:
            self._carry(at_ms)
            self._next += 1
        arrived = []
        while self._flying and self._flying[0][0] <= now_ms:
            arrived.append(self._flying.popleft()[1])
        return arrived

    def next_ms(self) -> float | None:
        """Return when `leave` has something to do again; None: no packet is on its way."""
        due = [self._flying[0][0]] if self._flying else []
        if self._queue:
            due.append(self._at_ms(self._next))
        return min(due) if due else None

    def clear(self) -> None:
        """Drop all queued and flying packets: the network is gone."""
        self._queue.clear()
        self._flying.clear()

    def _carry(self, at_ms: float) -> None:
        # One opportunity carries so many bytes: several small packets, or a part of a large one.
        budget = OPPORTUNITY_BYTES
        while self._queue and budget > 0:
            carried = min(budget, self._left)
            budget -= carried
            self._left -= carried
            if self._left:
                return
            packet, _ = self._queue.popleft()
            if self._queue:
                self._left = self._queue[0][1]
            # A shorter delay must not let a packet overtake the one before it.
            arrives_ms = at_ms + self._delay_ms(at_ms)
            if self._flying:
                arrives_ms = max(arrives_ms, self._flying[-1][0])
            self._flying.append((arrives_ms, packet))

    def _at_ms(self, number: int) -> float:
        periods, index = divmod(number, len(self._times))
        return periods * self._period_ms + self._times[index]

    def _first_from(self, now_ms: float) -> int:
        periods, within = divmod(now_ms, self._period_ms)
        return int(periods) * len(self._times) + bisect_left(self._times, within)

    def _delay_ms(self, at_ms: float) -> float:
        found = bisect_right(self._changes_ms, at_ms % self._period_ms) - 1
        return self._delays_ms[max(found, 0)]


_ETHERNET_BYTES: Final = 14
_ETH_P_IP: Final = 0x0800
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_UP: Final = 1
_MOST: Final = 256


class Wire:
    """A network between the two ends.

    Args:
        script: `name`, `up` and `down` (arguments of `Direction`), `carrier` ([from second, to second]
            in which the client has a carrier; None: always).
    """

    def __init__(self, script: dict[str, Any]) -> None:
        self.name: str = script["name"]
        self.up, self.down = Direction(**script["up"]), Direction(**script["down"])
        self.near, self.far = _opened(f"near-{self.name}"), _opened(f"far-{self.name}")
        self._changes: list[tuple[float, bool]] = []
        if script["carrier"] is not None:
            # A script that begins without a carrier takes it away at once.
            if not script["carrier"] or script["carrier"][0][0] > 0:
                self._changes.append((0.0, False))
            for begin_s, end_s in script["carrier"]:
                self._changes += [(1e3 * begin_s, True), (1e3 * end_s, False)]
        self._there = True

    def take(self, from_near: bool, now_ms: float) -> None:
        source, direction = (self.near, self.up) if from_near else (self.far, self.down)
        for _ in range(_MOST):
            try:
                packet = source.recv(2048)
            except (BlockingIOError, OSError):
                return
            if self._there:
                direction.arrive(packet, len(packet) - _ETHERNET_BYTES, now_ms)

    def give(self, now_ms: float) -> None:
        """Hand over what has arrived; changes the carrier where it is time."""
        while self._changes and self._changes[0][0] <= now_ms:
            self._carry(self._changes.pop(0)[1])
        for direction, sink in ((self.up, self.far), (self.down, self.near)):
            for packet in direction.leave(now_ms):
                with suppress(OSError):
                    sink.send(packet)

    def next_ms(self) -> float | None:
        due = [at_ms for at_ms in (self.up.next_ms(), self.down.next_ms()) if at_ms is not None]
        due += [self._changes[0][0]] if self._changes else []
        return min(due) if due else None

    def _carry(self, there: bool) -> None:
        if there != self._there:
            self._there = there
            _set_up(f"near-{self.name}", there)
            if not there:
                self.up.clear()
                self.down.clear()


def _opened(interface: str) -> socket.socket:
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_IP))
    raw.bind((interface, _ETH_P_IP))
    raw.setblocking(False)
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
    return raw


def _set_up(interface: str, up: bool) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sH14x", interface.encode(), 0)
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, asked), 16)
        flags = flags | _UP if up else flags & ~_UP
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", interface.encode(), flags))


def main() -> None:
    """Read the script from standard input; says when its clock begins; ends with its parent."""
    wires = [Wire(script) for script in json.loads(sys.stdin.readline())]
    poll = select.epoll()
    ends = {}
    for wire in wires:
        for near, end in ((True, wire.near), (False, wire.far)):
            poll.register(end, select.EPOLLIN)
            ends[end.fileno()] = (wire, near)
    poll.register(sys.stdin.fileno(), select.EPOLLIN)
    if not sys.stdin.readline():  # told to begin
        return
    began_s = time.monotonic()
    print(json.dumps({"began_s": began_s}), flush=True)
    while True:
        now_ms = 1e3 * (time.monotonic() - began_s)
        # Move what is due, then sleep until the next packet is due or one comes in.
        for wire in wires:
            wire.give(now_ms)
        due = [at_ms for wire in wires if (at_ms := wire.next_ms()) is not None]
        wait_s = 1.0 if not due else max(0.0, min(due) / 1e3 - (time.monotonic() - began_s))
        for descriptor, _ in poll.poll(min(wait_s, 1.0)):
            if descriptor == sys.stdin.fileno():
                os._exit(0)
            wire, near = ends[descriptor]
            wire.take(near, 1e3 * (time.monotonic() - began_s))


if __name__ == "__main__":
    main()
