"""One limit for what all sessions of a process keep in order to send it again."""

from typing import Final

DEFAULT_BYTES: Final = 512 * 1024 * 1024
_SHARE: Final = 8
_WAKES: Final = 4_096


class Memory:
    """Bytes that sessions hold until the peer has acknowledged them: counted together, limited together.

    No session may hold more than an eighth of what is free for all: a few that are slow would otherwise
    keep what thousands need. So something is always free for one that has nothing yet.

    A session that found no room is remembered by its `waiter`; once room is given back, `woken()` names
    it, so that whoever drives the sessions looks at it again.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: dict[int, object] = {}
        self._woken: list[object] = []

    @property
    def share_bytes(self) -> int:
        """The most that one session may hold now."""
        return (self.limit_bytes - self.used_bytes) // _SHARE

    def wait(self, waiter: object) -> None:
        """The waiter wants more than it may have now."""
        self._waiting[id(waiter)] = waiter

    def take(self, count: int, waiter: object) -> bool:
        """Takes `count` bytes; False if that exceeds the limit: `waiter` is told when there is room."""
        if self.used_bytes + count > self.limit_bytes:
            self.wait(waiter)
            return False
        self.used_bytes += count
        return True

    def give(self, count: int) -> None:
        """Gives bytes back."""
        self.used_bytes -= count
        free = self.limit_bytes - self.used_bytes
        if self._waiting and free >= self.limit_bytes // _WAKES:
            self._woken += self._waiting.values()
            self._waiting.clear()

    def forget(self, waiter: object) -> None:
        """The waiter has ended."""
        self._waiting.pop(id(waiter), None)

    def woken(self) -> list[object]:
        """Those that found no room and may try again; each is named once."""
        woken, self._woken = self._woken, []
        return woken
