"""The daemon from its start to the signal that ends it; as a service, SIGHUP begins it anew."""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Final

from cedos import logs
from cedos.config import Config, find_file, load
from cedos.errors import CedosError, ConfigError
from cedos.kernel import process_limits
from cedos.kernel.service_manager import Notifier
from cedos.logs import get_logger

MANY: Final = 16_384
_USED_UP: Final = frozenset({errno.EMFILE, errno.ENFILE})
_APART_S: Final = 60.0

_log = get_logger(__name__)


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
            _log.error("no file descriptor is left: new clients wait", why=error.strerror)


# Runs the daemon with a configuration, and the file that it was read from.
Run = Callable[[Config, Path | None], Coroutine[Any, Any, None]]

# The controlling terminal. Services have none.
_TERMINAL: Final = "/dev/tty"


class Life:
    """Runs the daemon; the first signal to end lets it undo everything, further ones are ignored.

    Cutting the undoing short would leave the host half restored. SIGHUP is one of them (the terminal
    was closed) unless a service manager started us: then it means "read the configuration again".
    """

    def __init__(
        self, run: Run, config: Config, config_file: Path | None, complaints: list[str]
    ) -> None:
        """Begin; `complaints` lists the faults of a configuration while an older one is in force."""
        self._run = run
        self._complaints = complaints
        self._config = config
        self._given_file = config_file
        self._next: Config | None = None
        self._previous: Config | None = None
        self._ending = False
        self._running: asyncio.Task[None] | None = None

    @property
    def goes_on(self) -> bool:
        """Return whether the daemon begins anew as soon as it has ended."""
        return self._next is not None and not self._ending

    async def run(self) -> None:
        """Return after a signal, or raise what the daemon raises."""
        process_limits.allow(MANY)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(Complaints())
        handlers: dict[int, Callable[[], None]] = {
            signal.SIGINT: partial(self.end, "Ctrl-C"),
            signal.SIGTERM: partial(self.end, "SIGTERM"),
            signal.SIGQUIT: partial(self.end, "SIGQUIT"),
        }
        # A user who started us with nohup wants us to outlive the terminal.
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            handlers[signal.SIGHUP] = (
                self.reload
                if is_service()
                else partial(self.end, "SIGHUP (a closed terminal; only a service reloads)")
            )
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            while not self._ending:
                await self._run_once()
                if self._next is None:
                    return
                self._previous, self._config, self._next = self._config, self._next, None
                logs.configure(self._config.log.level, self._config.log.format)
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)

    async def _run_once(self) -> None:
        file = find_file(self._given_file)
        self._running = asyncio.create_task(self._run(self._config, file))
        try:
            await self._running
        except asyncio.CancelledError:
            if not self._ending and self._next is None:
                raise
        except ConfigError as error:
            if self._previous is None or self._ending:
                raise
            _log.error("the new configuration cannot be used; back to the old one", why=str(error))
            self._complain(error)
            self._next, self._previous = self._previous, None
        finally:
            self._running = None

    def end(self, why: str) -> None:
        """Undo all changes and end; `why`: the signal."""
        if self._ending:
            return
        self._ending = True
        _log.info("ending", why=why)
        Notifier().stopping("undoing what was changed")
        self._cancel()

    def reload(self) -> None:
        if self._ending:
            return
        try:
            config = load(find_file(self._given_file))
        except CedosError as error:
            _log.error("the configuration was not reloaded; the old one stays", why=str(error))
            self._complain(error)
            return
        self._complaints.clear()
        _log.info("reloading the configuration")
        Notifier().reloading("reloading the configuration")
        undoing = self._next is not None
        self._next = config
        if not undoing:
            self._cancel()

    def _complain(self, error: CedosError) -> None:
        self._complaints[:] = [
            f"the configuration was not reloaded, and the one before is in force: {error}"
        ]

    def _cancel(self) -> None:
        # What undoes already, for a reload, is not told a second time.
        if self._running is not None and self._running.cancelling() == 0:
            self._running.cancel()


def is_service() -> bool:
    """Return whether a service manager runs this process itself.

    INVOCATION_ID alone does not tell: desktops start terminals as services, and shells inherit it.
    """
    if not os.environ.get("INVOCATION_ID"):
        return False
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return True
    return False
