"""Signals that end a program must not leave a testbed behind."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class ExitOnSignals:
    """While a laptop stands, SIGTERM and SIGHUP end the program by an exception, as Ctrl-C does.

    Only where nobody else handles them, and only in the main thread.
    """

    _users = 0
    _signals = (signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self._active = False

    def begin(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._active = True
        ExitOnSignals._users += 1
        for number in self._signals:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit)

    def end(self) -> None:
        """Until now; the last one gives the signals back. Again does nothing."""
        if not self._active:
            return
        self._active = False
        ExitOnSignals._users -= 1
        for number in self._signals if ExitOnSignals._users == 0 else ():
            if signal.getsignal(number) is _exit:
                signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Signals that arrive while the block runs are handled after it."""
    wanted = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
