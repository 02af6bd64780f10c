"""Find out whether a user is at the screen, by logind's hints of the session in front (Delphi, 5.2)."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus

SERVICE = "org.freedesktop.login1"
_SEAT_PATH = "/org/freedesktop/login1/seat/seat0"
_SEAT = "org.freedesktop.login1.Seat"
_SESSION = "org.freedesktop.login1.Session"
_NO_SESSION = "/"

# The time between two polls. Signals report changes, but logind may have been restarted.
_POLL_S = 30.0
# A burst of signals (a session that is locked also becomes idle) is one change.
_SETTLE_S = 0.02


def parse_seat(properties: Mapping[str, Any]) -> str | None:
    """Return the path of the session in front, from the seat's properties; None without one."""
    session = properties.get("ActiveSession")
    if isinstance(session, list | tuple) and len(session) == 2 and isinstance(session[1], str):
        path = session[1]
        return path if path.startswith("/") and path != _NO_SESSION else None
    return None


def parse_session(properties: Mapping[str, Any]) -> bool | None:
    """Return whether a user is there, from the properties of a session; None if they do not say."""
    hints = [properties.get(name) for name in ("IdleHint", "LockedHint")]
    known = [hint for hint in hints if isinstance(hint, bool)]
    return not any(known) if known else None


async def read(bus: SystemBus) -> bool | None:
    """Return whether a user is there now; None if unknown. Never raise."""
    try:
        session = await _session(bus)
        if session is None:
            return None
        return parse_session(await bus.properties(SERVICE, session, _SESSION))
    except BusError:
        return None


async def _session(bus: SystemBus) -> str | None:
    return parse_seat(await bus.properties(SERVICE, _SEAT_PATH, _SEAT))


class Screen:
    """The screen: in use, or not. An unknown state (no bus, logind or seat) counts as in use."""

    def __init__(self, bus: SystemBus | None, *, poll_s: float = _POLL_S) -> None:
        self._bus = bus
        self._poll_s = poll_s
        self._known: bool | None = None
        self._callbacks: list[Callable[[bool], None]] = []
        self._watches = False
        self._session: str | None = None
        self._wake = asyncio.Event()

    def active(self) -> bool:
        return self._known is not False

    @property
    def known(self) -> bool:
        return self._known is not None

    def on_change(self, callback: Callable[[bool], None]) -> None:
        """Have `callback` called with the new state whenever `active()` changes."""
        self._callbacks.append(callback)

    async def run(self) -> None:
        """Follow the state until it is cancelled; return at once without a bus."""
        if self._bus is None:
            return
        while True:
            self._wake.clear()
            self._learned(await self._read(self._bus))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await self._wake.wait()
            await asyncio.sleep(_SETTLE_S)

    def _learned(self, state: bool | None) -> None:
        before = self.active()
        self._known = state
        if self.active() != before:
            for callback in self._callbacks:
                callback(self.active())

    async def _read(self, bus: SystemBus) -> bool | None:
        with contextlib.suppress(BusError):
            if not self._watches:
                self._watches = True
                await bus.watch(SERVICE, _SEAT_PATH, _SEAT, self._changed)
            session = await _session(bus)
            # Watch this session alone: the users of others may change their hints without end.
            before, self._session = self._session, session
            if before is not None and before != session:
                with contextlib.suppress(BusError):
                    await bus.unwatch(SERVICE, before, _SESSION)
            if session is not None and before != session:
                await bus.watch(SERVICE, session, _SESSION, self._changed)
        return await read(bus)

    def _changed(self, path: str) -> None:
        self._wake.set()
