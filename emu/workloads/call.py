"""A two-way call: both ends send a packet every 20 ms, by UDP.

`python -m emu.workloads.call END ...` is one end; both run on one machine, so that they share a clock.
What was not there 400 ms after it was sent is lost: no call works with more delay (ITU-T G.114).
"""

import argparse
import json
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

EVERY_S: Final = 0.020
TIMELY_S: Final = 0.400
# Twenty milliseconds of G.711, and RTP's header.
PACKET_BYTES: Final = 172
PORT: Final = 7008
_HEAD: Final = struct.Struct("!Id")
_AFTER_S: Final = 1.0
_GIVE_UP_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Heard:
    """A direction of a call; `gap_s`: the longest time without a timely packet."""

    sent: int
    lost: int
    gap_s: float


def heard(sender: Path, receiver: Path) -> Heard:
    """Return what of one end's packets the other has heard, from the files that both left."""
    sent = {int(number): at_s for number, at_s in _read(sender)["sent"].items()}
    came = {int(number): at_s for number, at_s in _read(receiver)["came"].items()}
    timely = sorted(
        came[number]
        for number, at_s in sent.items()
        if number in came and came[number] - at_s <= TIMELY_S
    )
    whole_s = max(sent.values()) - min(sent.values())
    gap_s = max((later - earlier for earlier, later in pairwise(timely)), default=whole_s)
    # (The call's own end may be silent, too.)
    gap_s = max(gap_s, max(sent.values()) - timely[-1]) if timely else whole_s
    return Heard(len(sent), len(sent) - len(timely), gap_s)


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


class CallEnd:
    """Speaks for so long, from when it is told whom to (`to`), or has heard the other end."""

    def __init__(self, own: socket.socket, to: tuple[str, int] | None) -> None:
        self._socket, self._to = own, to
        self.sent: dict[int, float] = {}
        self.came: dict[int, float] = {}

    def talk(self, seconds: float) -> None:
        began_s, give_up_s = time.monotonic(), time.monotonic() + _GIVE_UP_S
        next_s = began_s
        while (now := time.monotonic()) < give_up_s:
            if self._to is None:
                began_s = next_s = now
            elif now >= next_s and now < began_s + seconds:
                self._say(now)
                next_s += EVERY_S
            elif now >= began_s + seconds + _AFTER_S:
                return
            wait_s = next_s - now if now < began_s + seconds else EVERY_S
            if select.select([self._socket], [], [], min(max(0.0, wait_s), EVERY_S))[0]:
                self._hear()

    def _say(self, now: float) -> None:
        number = len(self.sent) + 1
        self.sent[number] = now
        data = _HEAD.pack(number, now).ljust(PACKET_BYTES, b"\0")
        try:
            assert self._to is not None
            self._socket.sendto(data, self._to)
        except OSError:
            pass  # no network: it is lost

    def _hear(self) -> None:
        try:
            data, sender = self._socket.recvfrom(2048)
        except OSError:
            return
        now = time.monotonic()
        self._to = sender
        number, _ = _HEAD.unpack_from(data)
        self.came.setdefault(number, now)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("end", choices=["caller", "callee"])
    parser.add_argument("host")
    parser.add_argument("seconds", type=float)
    parser.add_argument("file", type=Path)
    parser.add_argument("--user", type=int, default=None, help="who it counts as, by number")
    asked = parser.parse_args()
    if asked.user is not None:
        os.setreuid(asked.user, -1)  # it still may write its file
    own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    to: tuple[str, int] | None = asked.host, PORT
    if asked.end == "callee":
        own.bind((asked.host, PORT))
        to = None
        print("ready", flush=True)
    call = CallEnd(own, to)
    call.talk(asked.seconds)
    asked.file.write_text(json.dumps({"sent": call.sent, "came": call.came}))


if __name__ == "__main__":
    main()
