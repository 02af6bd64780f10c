"""Room to send: the peer's credit for IROBs, and this host's replay memory. Pure.

An IROB is delivered whole, so the peer needs room for all of it before its first byte is sent. One that
waits for others keeps its room until they are delivered; those have theirs, too.

Replay memory has one limit for all sessions of a process (`ReplayMemory`); each session has an account.
"""

from typing import Final

from cedos.session.protocol.schedulers.interface import BACKGROUND_RANKS

# The credit of an IROB beside its bytes, for the peer's bookkeeping.
IROB_COST: Final = 256

# Every peer grants this much before its first Window frame.
INITIAL_STREAM_BYTES: Final = 262_144
INITIAL_IROB_CREDIT: Final = 655_360
INITIAL_IROB_BYTES: Final = 262_144

# The part of the window and of replay memory that only foreground data may use.
URGENT_BYTES: Final = 65_536


class Credit:
    """Reservations of the peer's memory for IROBs; all amounts count since the session began."""

    __slots__ = ("credit", "irob_bytes", "reserved", "window_known")

    def __init__(
        self,
        credit: int = INITIAL_IROB_CREDIT,
        irob_bytes: int = INITIAL_IROB_BYTES,
        *,
        reserved: int = 0,
        window_known: bool = False,
    ) -> None:
        self.credit = credit
        self.irob_bytes = irob_bytes
        self.reserved = reserved
        # Whether the peer has sent a Window; until then the initial values hold.
        self.window_known = window_known

    def take(self, cost: int, rank: int) -> bool:
        """Reserve for a whole IROB; return False if there is no room."""
        left_alone = URGENT_BYTES if rank in BACKGROUND_RANKS else 0
        if cost > self.credit - self.reserved - left_alone:
            return False
        self.reserved += cost
        return True

    def give_back(self, cost: int) -> None:
        self.reserved -= cost


DEFAULT_BYTES: Final = 512 * 1024 * 1024
# The number of further sessions for which shares are left free.
SPARE: Final = 8
_QUANTUM_BYTES: Final = 4_096
_NEVER: Final = 1 << 63


class ReplayMemory:
    """The memory for unacknowledged data of all sessions; each may hold an equal part of the free rest.

    With n sessions that hold data, that is free / (n + 8) (docs/decisions/replay-memory.md).
    `take_woken()` names a session that holds nothing and found no room, once there is some.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        # Less room than this is none: its frame and its wake-up would cost more than it carries.
        self.quantum_bytes = min(_QUANTUM_BYTES, limit_bytes // SPARE)
        self.used_bytes = 0
        self.holders = 0
        self._waiting: dict[int, object] = {}
        self._wake_at_bytes = _NEVER
        self._woken: list[object] = []

    @property
    def free_bytes(self) -> int:
        return self.limit_bytes - self.used_bytes

    @property
    def share_bytes(self) -> int:
        return (self.limit_bytes - self.used_bytes) // (self.holders + SPARE)

    def wait(self, waiter: object, wanted_bytes: int) -> None:
        """Note that a session that holds nothing wants so many bytes, or all if there are fewer."""
        self._waiting[id(waiter)] = waiter
        # A session gets its wish once its share of the free memory is as large. Wake all only at twice
        # that: else each byte that is given back would wake them, mostly in vain.
        needed = 2 * wanted_bytes * (self.holders + SPARE)
        # But wait for no more than half of the memory: other sessions that go on sending may never
        # leave more free.
        most = min(max(self.limit_bytes // 2, SPARE * wanted_bytes), self.limit_bytes)
        self._wake_at_bytes = min(self._wake_at_bytes, needed, most)

    def take(self, count: int, *, first: bool) -> None:
        """Take bytes that must be free. `first`: for a session that held nothing."""
        self.used_bytes += count
        self.holders += first

    def give(self, count: int, *, last: bool) -> None:
        """Give bytes back. `last`: the session holds nothing then."""
        self.used_bytes -= count
        self.holders -= last
        if self._waiting and self.free_bytes >= self._wake_at_bytes:
            self._woken += self._waiting.values()
            self._waiting.clear()
            self._wake_at_bytes = _NEVER

    def forget(self, waiter: object) -> None:
        self._waiting.pop(id(waiter), None)

    def take_woken(self) -> list[object]:
        """Return, once each, those that found no room and may try again."""
        woken, self._woken = self._woken, []
        return woken


class ReplayAccount:
    """A session's share of `memory`: it holds `held_bytes`; `owner` names it there.

    While a path is up, the stream may hold the first window and as much again as was acknowledged,
    which grows ahead of any congestion window (docs/decisions/replay-memory.md). Bytes on a path that
    pauses beside others (`stuck_bytes`) do not count, so that the others can go on.
    """

    def __init__(self, memory: ReplayMemory, limit_bytes: int, owner: object) -> None:
        self.held_bytes = 0
        self._absent = True
        self._stuck_bytes = 0
        self.limit_bytes = limit_bytes
        self.earned_bytes = INITIAL_STREAM_BYTES
        self._memory = memory
        self._least_bytes = min(limit_bytes, memory.quantum_bytes)
        self._owner = owner

    def set_absent(self, absent: bool) -> None:
        self._absent = absent

    def set_stuck(self, stuck_bytes: int) -> None:
        self._stuck_bytes = stuck_bytes

    def most_bytes(self, rank: int = 0) -> int:
        """Return how much this session may hold now if data of a label is to be taken."""
        most = min(self.limit_bytes, self._memory.share_bytes)
        return most - min(URGENT_BYTES, most // 4) if rank in BACKGROUND_RANKS else most

    def stream_room_bytes(self, rank: int) -> int:
        """Return the room for the stream; 0 where it is too little to begin with."""
        most = self.most_bytes(rank)
        if not self._absent:
            most = min(most, self.earned_bytes + self._stuck_bytes)
        room = most - self.held_bytes
        return room if room >= self._least_bytes else 0

    def fitting(self, data: bytes, rank: int, room: int) -> bytes:
        """Take and return as much of the data as there is room for."""
        if len(data) > room:
            if room < self._least_bytes:
                self._wait(self._least_bytes)
                return b""
            data = data[:room]
        return data if self.take(len(data), rank) else b""

    def _wait(self, wanted: int) -> None:
        if not self.held_bytes:  # else an acknowledgement of its own data wakes it
            self._memory.wait(self._owner, wanted)

    def take(self, size: int, rank: int) -> bool:
        held = self.held_bytes
        # A session that holds nothing may exceed its share once: a large IROB could never go otherwise.
        if held + size > self.most_bytes(rank) and (held or not self._fits_alone(size)):
            self._wait(size)
            return False
        if size:
            self._memory.take(size, first=not held)
            self.held_bytes = held + size
        return True

    def _fits_alone(self, size: int) -> bool:
        """Return whether a session that holds nothing else may take so much at once."""
        return size <= min(self.limit_bytes, self._memory.free_bytes // SPARE)

    def give(self, size: int) -> None:
        if size:
            self.held_bytes -= size
            self.earned_bytes += size
            self._memory.give(size, last=not self.held_bytes)

    def give_all(self) -> None:
        self.give(self.held_bytes)
        self._memory.forget(self._owner)
