"""Find out whether a user is at the screen, by logind's hints of the session in front (Delphi, 5.2)."""

from collections.abc import Mapping
from typing import Any

from cedos.host.monitor.bus import BusError, SystemBus

SERVICE = "org.freedesktop.login1"
_SEAT_PATH = "/org/freedesktop/login1/seat/seat0"
_SEAT = "org.freedesktop.login1.Seat"
_SESSION = "org.freedesktop.login1.Session"
_NO_SESSION = "/"


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
        session = parse_seat(await bus.properties(SERVICE, _SEAT_PATH, _SEAT))
        if session is None:
            return None
        return parse_session(await bus.properties(SERVICE, session, _SESSION))
    except BusError:
        return None
