"""Is somebody there: logind played on a private bus."""

import asyncio

from dbus_fast import Variant
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import until

from cedos.host.monitor.bus import SystemBus
from cedos.host.monitor.providers.screen import Screen, parse_seat, parse_session

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
    bus = SystemBus(address)
    screen = Screen(bus)
    told = []
    screen.on_change(told.append)
    assert screen.active()
    assert not screen.known
    task = asyncio.create_task(screen.run())
    try:
        await until(lambda: screen.known)
        assert screen.active()
        assert told == []
        logind.set(FIRST, session, IdleHint=Variant("b", True))
        await until(lambda: told == [False])
        assert not screen.active()
        logind.set(FIRST, session, LockedHint=Variant("b", True))
        logind.set(FIRST, session, IdleHint=Variant("b", False))
        await asyncio.sleep(0.1)
        assert told == [False]
        # Somebody else sits down; what the first session says from then on is of no account.
        logind.set(SEAT, seat, ActiveSession=Variant("(so)", ["2", SECOND]))
        await until(lambda: told == [False, True])
        logind.set(SECOND, session, IdleHint=Variant("b", True))
        await until(lambda: told == [False, True, False])
        # Its user may go on changing them without end, and nothing of that is heard.
        heard = []
        assert bus._bus is not None
        bus._bus.add_message_handler(lambda message: heard.append(message.path))
        logind.set(FIRST, session, IdleHint=Variant("b", False))
        logind.set(SECOND, session, IdleHint=Variant("b", False))
        await until(lambda: told[3:] == [True])
        assert SECOND in heard
        assert FIRST not in heard
    finally:
        task.cancel()
        await asyncio.wait({task})
        await bus.close()


async def test_a_logind_that_hangs_or_comes_late(address, make_service):
    bus = SystemBus(address, timeout_s=0.1)
    screen = Screen(bus, poll_s=0.1)
    task = asyncio.create_task(screen.run())
    try:
        await asyncio.sleep(0.2)
        assert screen.active()
        logind = await make_service("org.freedesktop.login1")
        logind.objects = {
            SEAT: {"org.freedesktop.login1.Seat": {"ActiveSession": Variant("(so)", ["1", FIRST])}},
            FIRST: {"org.freedesktop.login1.Session": {"IdleHint": Variant("b", True)}},
        }
        await until(lambda: not screen.active())
        logind.silent = True
        await until(screen.active)
    finally:
        task.cancel()
        await asyncio.wait({task})
        await bus.close()


async def test_without_a_bus_somebody_is_there():
    screen = Screen(None)
    await screen.run()
    assert screen.active()
