"""Whether other programs of this host have just begun something."""

import time
from collections.abc import Callable

from cedos.kernel.tcp_info import active_opens

_AFTER_S = 0.4
"""A connection that was begun so short a time ago has priority: small things are over by then."""
_MOST_S = 2.0
_THEN_S = 0.5
"""Where others begin connections all the time, prefetching waits this long at most, then goes on for a
while. It shares then, with a short queue."""


class OtherPrograms:
    """Notices connections that others open, by the kernel's counter; no privilege is needed.

    Args:
        count: connections that were begun on this host so far, None where unknown.
    """

    def __init__(self, count: Callable[[], int | None] = active_opens) -> None:
        self._count = count
        self._seen = count()
        self._own = 0
        self._opened_s = self._since_s = float("-inf")

    def own(self) -> None:
        """The next connection is ours; to be called when it is about to be begun."""
        self._own += 1

    def busy(self, now_s: float | None = None) -> bool:
        """Whether to wait for them."""
        now_s = time.monotonic() if now_s is None else now_s
        seen = self._count()
        if seen is None:
            return False
        new = seen - (seen if self._seen is None else self._seen)
        ours = min(new, self._own)
        self._seen, self._own = seen, self._own - ours
        if new > ours:
            if now_s - self._opened_s >= _AFTER_S:
                self._since_s = now_s
            self._opened_s = now_s
        if now_s - self._opened_s >= _AFTER_S:
            return False
        return (now_s - self._since_s) % (_MOST_S + _THEN_S) < _MOST_S
