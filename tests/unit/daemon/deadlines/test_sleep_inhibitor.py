"""The host stays awake while a transfer can move: against a private bus with a played logind."""

import asyncio
import os
from contextlib import suppress
from unittest.mock import MagicMock

import pytest
from dbus_fast import ErrorType, Message, MessageType
from dbus_fast.aio import MessageBus
from structlog.testing import capture_logs

from cedos.controller.commands import BarNetworks, KeepAwake
from cedos.daemon.executor import HostExecutor
from cedos.daemon.sleep_inhibitor import StayAwake
from cedos.host.monitor.bus import SystemBus


class Logind:
    """Gives locks as logind does: a pipe, whose end of ours tells when the lock is given back."""

    def __init__(self):
        self.refuses = False
        self.asked = []
        self.locks = []

    def answer(self, message):
        if message.message_type is not MessageType.METHOD_CALL or message.member != "Inhibit":
            return None
        self.asked.append(message.body)
        if self.refuses:
            return Message.new_error(message, ErrorType.ACCESS_DENIED.value, "no")
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        self.locks.append(ours)
        self._given = theirs
        return Message.new_method_return(message, "h", [0], unix_fds=[theirs])

    async def given_back(self):
        """Return whether all are given back within a second: the bus keeps a copy for a moment."""
        for _ in range(100):
            if not self.held():
                return True
            await asyncio.sleep(0.01)
        return False

    def held(self):
        """Return how many of the locks that were given are still held."""
        with suppress(AttributeError, OSError):
            os.close(self._given)  # it has been sent
            del self._given
        held = 0
        for each in self.locks:
            try:
                held += os.read(each, 1) != b""
            except BlockingIOError:
                held += 1
        return held


@pytest.fixture
async def logind(address):
    played = Logind()
    bus = await MessageBus(address, negotiate_unix_fd=True).connect()
    bus.add_message_handler(played.answer)
    await bus.request_name("org.freedesktop.login1")
    yield played
    bus.disconnect()
    await bus.wait_for_disconnect()
    for each in played.locks:
        os.close(each)


async def test_the_lock_is_held_while_something_moves(address, logind):
    bus = SystemBus(address)
    awake = StayAwake(bus)
    try:
        await awake.hold(False)
        assert not logind.asked
        for _ in range(3):
            await awake.hold(True)
        ((what, who, why, mode),) = logind.asked
        assert (what, who, mode) == ("idle", "cedos", "block"), "a lid and a person may do all"
        assert "deadlines" in why
        assert logind.held() == 1
        await awake.hold(False)
        assert await logind.given_back()
        await awake.hold(True)
        assert logind.held() == 1
        awake.release()
        awake.release()
        assert await logind.given_back()
    finally:
        await bus.close()


async def test_a_refusal_is_reported_and_logged_once(address, logind):
    logind.refuses = True
    bus = SystemBus(address)
    awake = StayAwake(bus)
    try:
        with capture_logs() as logs:
            assert [await awake.hold(True) for _ in range(3)] == [False] * 3
        assert len(logs) == 1
        assert logind.held() == 0
        logind.refuses = False
        assert await awake.hold(True)
        assert logind.held() == 1
        awake.release()
    finally:
        await bus.close()


async def test_a_silent_logind_keeps_no_network_open(tmp_path):
    """A spent hard budget's wall waited up to 2 s for the answer to another command."""
    barred, answers = asyncio.Event(), asyncio.Event()

    class Silent:
        async def hold(self, on):
            return await answers.wait()

    async def bar(names):
        barred.set()

    driver, steering = MagicMock(), MagicMock()
    steering.barring.bar = bar
    budgets, none = MagicMock(), (None,) * 2
    executor = HostExecutor(
        tmp_path, driver, steering, *none, MagicMock(), *none, budgets, MagicMock(), Silent()
    )
    executor.carry_out(KeepAwake(True))
    await asyncio.sleep(0)
    executor.carry_out(BarNetworks(("lte0",)))
    await asyncio.wait_for(barred.wait(), 1)
    budgets.keep.assert_called_once()
    answers.set()
    await executor.settle()


async def test_no_wall_waits_for_another_wall(tmp_path):
    """A second spent budget's wall waited while iptables was busy with the first one's."""
    barred, free = [], asyncio.Event()

    async def bar(names):
        barred.append(names)  # the wall at the interface
        await free.wait()  # iptables

    steering, none = MagicMock(), (None,) * 2
    steering.barring.bar = bar
    executor = HostExecutor(
        tmp_path,
        MagicMock(),
        steering,
        *none,
        MagicMock(),
        *none,
        MagicMock(),
        MagicMock(),
        MagicMock(),
    )
    executor.carry_out(BarNetworks(("lte0",)))
    executor.carry_out(BarNetworks(("lte0", "lte1")))
    await asyncio.sleep(0)
    assert barred == [("lte0",), ("lte0", "lte1")]
    free.set()
    await executor.settle()
