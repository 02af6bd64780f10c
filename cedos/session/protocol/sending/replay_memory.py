"""One limit for what all sessions of a process keep in order to send it again."""

from typing import Final

DEFAULT_BYTES: Final = 512 * 1024 * 1024
SPARE: Final = 8
_QUANTUM_BYTES: Final = 4_096
_NEVER: Final = 1 << 63


class ReplayMemory:
    """What all sessions keep until it is acknowledged: each may hold an equal part of what is *free*.

    With n sessions that hold something, free / (n + 8) (docs/decisions/replay-memory.md). One that holds
    nothing and found no room is named by `woken()` once there is some.
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
        """The waiter holds nothing and wants so many bytes; if there are not so many, all there are."""
        self._waiting[id(waiter)] = waiter
        # Twice as much as it wants: else all that wait would be woken by each byte that is given back.
        needed = 2 * wanted_bytes * (self.holders + SPARE)
        # But not more than is free while others go on sending (where each holds what it may, half is):
        # else it would wait until nobody sends any more.
        most = min(max(self.limit_bytes // 2, SPARE * wanted_bytes), self.limit_bytes)
        self._wake_at_bytes = min(self._wake_at_bytes, needed, most)

    def take(self, count: int, *, first: bool) -> None:
        """They must be free. `first`: for one that held nothing."""
        self.used_bytes += count
        self.holders += first

    def give(self, count: int, *, last: bool) -> None:
        """`last`: of one that holds nothing then."""
        self.used_bytes -= count
        self.holders -= last
        if self._waiting and self.free_bytes >= self._wake_at_bytes:
            self._woken += self._waiting.values()
            self._waiting.clear()
            self._wake_at_bytes = _NEVER

    def forget(self, waiter: object) -> None:
        self._waiting.pop(id(waiter), None)

    def woken(self) -> list[object]:
        """Those that found no room and may try again; each is named once."""
        woken, self._woken = self._woken, []
        return woken
