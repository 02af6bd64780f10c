"""File descriptors: enough of them, and one line instead of thousands where they are used up."""

import asyncio
import errno
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

MANY: Final = 16_384
_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})
_APART_S: Final = 60.0

_log = structlog.get_logger(__name__)


class Complaints:
    """The event loop's exception handler: that descriptors are used up is told once a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at_s: float | None = None

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in _USED_UP:
            loop.default_exception_handler(context)
            return
        now_s = self._clock()
        if self._told_at_s is None or now_s - self._told_at_s >= _APART_S:
            self._told_at_s = now_s
            _log.error("no file descriptor is left: who asks now waits", why=error.strerror)
