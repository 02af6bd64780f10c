"""One limit for what all sessions of a process keep in order to send it again."""

from typing import Final

DEFAULT_BYTES: Final = 512 * 1024 * 1024


class Memory:
    """Bytes that sessions hold until the peer has acknowledged them: counted together, limited together.

    A session that found no room is remembered by its `waiter`; once room is given back, `woken()` names
    it, so that whoever drives the sessions looks at it again.
    """

    def __init__(self, limit_bytes: int = DEFAULT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiting: dict[int, object] = {}
        self._woken: list[object] = []

    def take(self, count: int, waiter: object) -> bool:
        """Takes `count` bytes; False if that exceeds the limit: `waiter` is told when there is room."""
        if self.used_bytes + count > self.limit_bytes:
            self._waiting[id(waiter)] = waiter
            return False
        self.used_bytes += count
        return True

    def give(self, count: int) -> None:
        """Gives bytes back."""
        self.used_bytes -= count
        if self._waiting and self.used_bytes <= self.limit_bytes * 3 // 4:  # not one by one
            self._woken += self._waiting.values()
            self._waiting.clear()

    def forget(self, waiter: object) -> None:
        """The waiter has ended."""
        self._waiting.pop(id(waiter), None)

    def woken(self) -> list[object]:
        """Those that found no room and may try again; each is named once."""
        woken, self._woken = self._woken, []
        return woken
