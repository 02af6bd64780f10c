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
from typing import Any, Final

from emu.experiments.sessions.air.direction import Direction

_ETHERNET_BYTES: Final = 14
_ETH_P_IP: Final = 0x0800
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_UP: Final = 1
_MOST: Final = 256


class Wire:
    """One network between the two ends.

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
        """Hands over what has arrived; changes the carrier where it is time."""
        while self._changes and self._changes[0][0] <= now_ms:
            self._carry(self._changes.pop(0)[1])
        for direction, sink in ((self.up, self.far), (self.down, self.near)):
            for packet in direction.leave(now_ms):
                try:
                    sink.send(packet)
                except OSError:
                    direction.lost()

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
    """Reads the script from standard input; says when its clock begins; ends with its parent."""
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
        for wire in wires:
            wire.give(now_ms)
        due = [at_ms for wire in wires if (at_ms := wire.next_ms()) is not None]
        wait_s = 1.0 if not due else max(0.0, min(due) / 1e3 - (time.monotonic() - began_s))
        for descriptor, _ in poll.poll(min(wait_s, 1.0)):
            if descriptor == sys.stdin.fileno():
                print(
                    json.dumps({w.name: w.up.dropped + w.down.dropped for w in wires}), flush=True
                )
                os._exit(0)
            wire, near = ends[descriptor]
            wire.take(near, 1e3 * (time.monotonic() - began_s))


if __name__ == "__main__":
    main()
