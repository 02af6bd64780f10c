"""Is somebody there: logind played on a private bus."""

from dbus_fast import Variant
from hypothesis import given
from hypothesis import strategies as st

from cedos.host.monitor.bus import SystemBus
from cedos.host.monitor.providers.screen import parse_seat, parse_session, read

SEAT = "/org/freedesktop/login1/seat/seat0"
FIRST, SECOND = (f"/org/freedesktop/login1/session/_3{n}" for n in (1, 2))
ANYTHING = st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.lists(st.integers())


@given(st.dictionaries(st.sampled_from(["ActiveSession", "IdleHint", "LockedHint"]), ANYTHING))
def test_nonsense_is_nothing_known(properties):
    assert parse_seat(properties) is None
    assert parse_session(properties) in (None, True, False)


async def test_idle_locked_and_another_session(address, make_service):
    logind = await make_service("org.freedesktop.login1")
    session, seat = "org.freedesktop.login1.Session", "org.freedesktop.login1.Seat"
    logind.objects = {
        SEAT: {seat: {"ActiveSession": Variant("(so)", ["1", FIRST])}},
        FIRST: {session: {"IdleHint": Variant("b", False), "LockedHint": Variant("b", False)}},
        SECOND: {session: {"IdleHint": Variant("b", False)}},
    }
    bus = SystemBus(address, timeout_s=0.2)
    try:
        assert await read(bus) is True
        logind.set(FIRST, session, IdleHint=Variant("b", True))
        assert await read(bus) is False
        logind.set(FIRST, session, IdleHint=Variant("b", False), LockedHint=Variant("b", True))
        assert await read(bus) is False
        logind.set(SEAT, seat, ActiveSession=Variant("(so)", ["2", SECOND]))
        assert await read(bus) is True
        logind.silent = True
        assert await read(bus) is None
    finally:
        await bus.close()
