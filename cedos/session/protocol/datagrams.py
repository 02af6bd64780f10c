"""Datagrams of a session: in time or not at all, and copied where a path does not answer. Pure.

The sender chooses the path of each datagram. A path is a TCP connection: until its kernel has
acknowledged a datagram, the peer's program cannot have it, nor any datagram behind it. So a datagram
that is not acknowledged when it should be (a round trip, and its variance) is copied to another path,
with all behind it. What follows goes over both paths until the first one answers. The networks that a
label may use do not bind copies: they are few, and are sent only while the permitted path is silent
(docs/decisions/datagrams.md).

The receiver delivers each datagram once, none late, and no more than the program takes.
"""

from collections import deque
from collections.abc import Sequence
from typing import Final

from cedos.session.protocol import packing
from cedos.session.protocol.frames import Datagram
from cedos.session.protocol.schedulers.interface import (
    PathDoubt,
    PathState,
    allowed_paths,
    quickest,
    rtt_s,
)

# The length of a window in which the quickest datagram is remembered.
_HALF_S: Final = 15.0
# The sender's milliseconds have 32 bits, and begin again after 49 days.
_CLOCK: Final = 1 << 32


class Lateness:
    """A measure of how late datagrams of one sender are, though the two clocks are independent.

    The quickest datagram of the last half minute is the reference.
    """

    __slots__ = ("_before", "_begun_s", "_least")

    def __init__(self) -> None:
        self._least: int | None = None
        self._before: int | None = None
        self._begun_s = 0.0

    def of(self, sent_ms: int, now: float) -> float:
        """Return by how many seconds a datagram took longer than the quickest one."""
        took = (int(now * 1000) - sent_ms) % _CLOCK
        # Begin a new window of 15 s; the one before counts until the next change.
        if now - self._begun_s >= _HALF_S:
            self._before = self._least if now - self._begun_s < 2 * _HALF_S else None
            self._least, self._begun_s = None, now
        # The quickest one of this window and the window before is the reference.
        if self._least is None or _is_before(took, self._least):
            self._least = took
        least = self._least
        if self._before is not None and _is_before(self._before, least):
            least = self._before
        return (took - least) % _CLOCK / 1000


def _is_before(one: int, other: int) -> bool:
    # Serial number arithmetic (RFC 1982): a difference of half the range or more is negative.
    return (one - other) % _CLOCK >= _CLOCK // 2


class OutgoingDatagram:
    """A datagram that is sent or waits for it.

    `on`: the paths that carry it. `arrived`: the peer's kernel has acknowledged it on one of them.
    """

    __slots__ = ("arrived", "at_s", "expires_s", "frame", "on")

    def __init__(self, frame: bytes, at_s: float, lifetime_s: float) -> None:
        self.frame = frame
        self.at_s = at_s
        self.expires_s = at_s + lifetime_s
        self.on: tuple[int, ...] = ()
        self.arrived = False


LARGEST_BYTES: Final = 65_535
LONGEST_S: Final = 60.0
MOST_WAITING: Final = 512
MOST_WAITING_BYTES: Final = 1 << 19
_RANK: Final = 0  # foreground, small
# A datagram is late after a round trip and this many deviations of it, or the least variation.
_LEAST_VARIATION_S: Final = 0.020
_VARIATIONS: Final = 2.0
# The longest time that a datagram may wait in queues, s. The estimate for a path whose first
# packet was lost is far too long (measured: 0.8 s with a deviation of 0.7 s for a path of 40 ms).
_MOST_QUEUED_S: Final = 0.100
# The shortest time between two checks.
_CHECK_S: Final = 0.010
_EPOCHS: Final = 1 << 32


class DatagramSender:
    """The sending half of one session's datagrams; an expired one is never sent.

    Attributes:
        sent, copies, expired: how many were sent, went over a further path, or expired unsent.
    """

    def __init__(self, now: float) -> None:
        self._epoch = int(now * 1000) % _EPOCHS
        self._number = 0
        self._waiting: deque[OutgoingDatagram] = deque()
        self._waiting_bytes = 0
        # By path, in order: with the path's bytes up to its end; None until they are known.
        self._on_the_way: dict[int, deque[tuple[int | None, OutgoingDatagram]]] = {}
        self._checked_s = now
        self.sent = self.copies = self.expired = 0

    def send(self, payload: bytes, lifetime_s: float, now: float) -> None:
        """Queue a datagram; if too many wait, the oldest is dropped."""
        self._number += 1
        # Numbers that come round begin a new epoch, so that none is used twice.
        if self._number == 1 << 32:
            self._epoch, self._number = (self._epoch + 1) % _EPOCHS, 1
        lifetime_ms = max(1, int(1000 * lifetime_s))
        head = packing.datagram_header(
            self._epoch, self._number, int(now * 1000) % _EPOCHS, lifetime_ms, len(payload)
        )
        self._waiting.append(OutgoingDatagram(head + payload, now, lifetime_s))
        self._waiting_bytes += len(head) + len(payload)
        self.sent += 1
        # An old datagram is worth less than a new one: drop from the front.
        while len(self._waiting) > MOST_WAITING or self._waiting_bytes > MOST_WAITING_BYTES:
            self._on_dropped(self._waiting.popleft())

    @property
    def held_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    def take(
        self, path: PathState, paths: Sequence[PathState], room_bytes: int, now: float
    ) -> list[bytes]:
        """Return the frames that go over a path now."""
        if not self._waiting:
            return []
        may = allowed_paths(paths, _RANK)
        if not may:
            return []
        # The datagram goes over the quickest permitted path; other paths carry copies only.
        target = quickest(may)
        is_target = path is target
        limit_s = self.patience_s(target)
        overdue = self._overdue(target, now)
        frames: list[bytes] = []
        left: deque[OutgoingDatagram] = deque()
        path_id, way = path.path_id, self._on_the_way.setdefault(path.path_id, deque())
        while self._waiting:
            each = self._waiting.popleft()
            # Too late, or acknowledged over another path meanwhile.
            if each.expires_s <= now or each.arrived:
                self._on_dropped(each)
                continue
            copy = bool(each.on)
            # The target owes an acknowledgement, a path has it already, or it has waited for too long.
            late = overdue or copy or now - each.at_s > limit_s
            goes = path_id not in each.on and (is_target or late)
            if goes and len(each.frame) <= room_bytes:
                room_bytes -= len(each.frame)
                frames.append(each.frame)
                each.on += (path_id,)
                way.append((None, each))
                self.copies += copy
            # Keep it for a copy over another path, or for more room on this one.
            if self._waits(each, paths, overdue=overdue):
                left.append(each)
            else:
                self._waiting_bytes -= len(each.frame)
        self._waiting = left
        return frames

    def on_write(self, path_id: int, written_bytes: int) -> None:
        """Note that the datagrams taken for a path end at this byte of the path."""
        way = self._on_the_way.get(path_id)
        if not way:
            return
        # Stamp the datagrams that were taken since the last write, from the end backwards.
        for at in range(len(way) - 1, -1, -1):
            if way[at][0] is not None:
                break
            way[at] = written_bytes, way[at][1]

    def on_acknowledgement(self, path_id: int, written_bytes: int) -> None:
        """Note that the peer has so many of a path's bytes."""
        way = self._on_the_way.get(path_id)
        # The kernel has acknowledged all bytes up to here: these datagrams have arrived.
        while way:
            end, first = way[0]
            if end is None or end > written_bytes:
                break
            first.arrived = True
            way.popleft()

    def path_lost(self, path_id: int, now: float) -> None:
        """Send over other paths what only this path had."""
        way = self._on_the_way.pop(path_id, ())
        self._send_again([each for _, each in way if len(each.on) == 1], now)

    def check(self, paths: Sequence[PathState], now: float) -> bool:
        """Look for datagrams that are overdue; return whether any is to be copied."""
        self._checked_s = now
        due: list[OutgoingDatagram] = []
        for path in paths:
            way = self._on_the_way.get(path.path_id, deque())
            # Forget expired ones: no copy of them is of use.
            while way and way[0][1].expires_s <= now:
                way.popleft()
            if way and len(paths) > 1 and self._overdue(path, now):
                # Those behind it are stuck, too: TCP hands on nothing out of order.
                due += [each for _, each in way if len(each.on) == 1]
        return self._send_again(due, now)

    def next_at(self, paths: Sequence[PathState]) -> float | None:
        """Return when `check` is due; None: no datagram on its way can be copied."""
        if len(paths) < 2:
            return None
        at = []
        for path in paths:
            way = self._on_the_way.get(path.path_id)
            first = next((each for _, each in way or () if len(each.on) == 1), None)
            if first is not None:
                at.append(min(first.expires_s, first.at_s + self.patience_s(path)))
        if self._waiting:
            at.append(self._waiting[0].at_s + min(self.patience_s(path) for path in paths))
        return max(min(at), self._checked_s + _CHECK_S) if at else None

    @property
    def unacknowledged(self) -> bool:
        return any(self._on_the_way.values())

    def patience_s(self, path: PathState) -> float:
        """Return within how many seconds a datagram is acknowledged nearly always."""
        facts = path.facts
        usual_s = rtt_s(path) + max(_LEAST_VARIATION_S, _VARIATIONS * facts.rtt_variation_s)
        return (
            usual_s if facts.rtt_min_s is None else min(usual_s, facts.rtt_min_s + _MOST_QUEUED_S)
        )

    def _overdue(self, path: PathState, now: float) -> bool:
        if path.facts.doubt > PathDoubt.FLAPS:
            return True
        way = self._on_the_way.get(path.path_id)
        # TCP acknowledges in order, so the first datagram on the way is the oldest.
        return way is not None and len(way) > 0 and now - way[0][1].at_s > self.patience_s(path)

    @staticmethod
    def _waits(each: OutgoingDatagram, paths: Sequence[PathState], *, overdue: bool) -> bool:
        """Return whether another path is to carry a datagram as well."""
        # An unsent one waits for any path. A copy is only made while the permitted path is overdue.
        if not each.on:
            return True
        return overdue and len(each.on) == 1 and len(paths) > 1

    def _send_again(self, datagrams: Sequence[OutgoingDatagram], now: float) -> bool:
        waiting = set(map(id, self._waiting))
        due = [
            each
            for each in datagrams
            if each.expires_s > now and not each.arrived and id(each) not in waiting
        ]
        self._waiting.extendleft(reversed(due))
        self._waiting_bytes += sum(len(each.frame) for each in due)
        return bool(due)

    def _on_dropped(self, each: OutgoingDatagram) -> None:
        self._waiting_bytes -= len(each.frame)
        if not each.on:
            self.expired += 1


# The receiver keeps a bit for each of the last numbers, as IPsec's anti-replay window (RFC 4303, 3.4.3).
# An older number is a duplicate or lost.
WINDOW: Final = 1_024

MOST_UNREAD: Final = 1_024
MOST_UNREAD_BYTES: Final = 1 << 20
_RETIRED: Final = 8


class DatagramReceiver:
    """The receiving half."""

    __slots__ = ("_bytes", "_epoch", "_highest", "_lateness", "_retired", "_seen", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._epoch: int | None = None
        self._retired: deque[int] = deque(maxlen=_RETIRED)
        self._highest = 0
        self._seen = 0  # a bit for each number, from the highest down
        self._lateness = Lateness()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def held_bytes(self) -> int:
        return self._bytes

    def on_datagram(self, frame: Datagram, now: float) -> None:
        if not self._is_new(frame.epoch, frame.number):
            return
        if self._lateness.of(frame.sent_ms, now) * 1000 > frame.lifetime_ms:
            return
        self._waiting.append(frame.payload)
        self._bytes += len(frame.payload)
        while self._bytes > MOST_UNREAD_BYTES or len(self._waiting) > MOST_UNREAD:
            self._bytes -= len(self._waiting.popleft())

    def take(self) -> list[bytes]:
        """Return all datagrams in the order of their arrival."""
        taken = list(self._waiting)
        self._waiting.clear()
        self._bytes = 0
        return taken

    def _is_new(self, epoch: int, number: int) -> bool:
        # A new epoch: the sender began anew, or its numbers came round. Old epochs are refused,
        # so that a replayed datagram of theirs counts as a duplicate.
        if epoch != self._epoch:
            if epoch in self._retired:
                return False
            if self._epoch is not None:
                self._retired.append(self._epoch)
            self._epoch, self._highest, self._seen = epoch, number, 1
            self._lateness = Lateness()
            return True
        ahead = number - self._highest
        # Ahead of all others: move the window, and mark the number as its highest bit.
        if ahead > 0:
            self._highest = number
            self._seen = ((self._seen << min(ahead, WINDOW)) | 1) & ((1 << WINDOW) - 1)
            return True
        # Within the window: new if its bit is not set. Below the window it may be a duplicate.
        bit = 1 << -ahead if -ahead < WINDOW else 0
        if not bit or self._seen & bit:
            return False
        self._seen |= bit
        return True
