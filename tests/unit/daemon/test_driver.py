"""The controller in the event loop: in which order events are handled, and when its timer fires."""

import asyncio
import time
from unittest.mock import MagicMock

import pytest

from cedos.controller import events as on
from cedos.controller.commands import AnswerChoice, AskName, AskNetwork, SetRuled
from cedos.daemon import driver
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.executor import HostExecutor
from cedos.errors import SteeringError

pytestmark = pytest.mark.jumping


class Played:
    """A controller that gives the commands that a test puts in."""

    def __init__(self):
        # The events and the commands, in the order in which they were handled and carried out.
        self.said = []
        self.gives = {}  # what it gives at each kind of event
        self.timer_s = None  # when its timer is due
        self.followed = ()
        self.posts = {}  # what comes of a command at once
        self._given = []
        self.driver = ControllerDriver(self)

    # -- the controller
    def handle(self, event, now_s):
        self.said.append(type(event) if isinstance(event, on.ClockRead) else event)
        self._given += self.gives.get(type(event), [])
        if isinstance(event, on.TimerFired):
            self.timer_s = None

    def commands(self):
        given, self._given = self._given, []
        return given

    def next_timer_s(self):
        return self.timer_s

    # -- the executor
    def carry_out(self, command):
        self.said.append(command)
        for event in self.posts.get(command, []):
            self.driver.post(event)

    def heard(self):
        said, self.said = self.said, []
        return said


async def test_events_wait_until_the_daemon_begins_and_are_handled_in_order():
    played = Played()
    played.driver.post(on.HostSlept(1.0))
    played.driver.post(on.ProvidersRead())
    assert played.heard() == []
    played.driver.begin(played.carry_out)
    assert played.heard() == [on.ClockRead, on.HostSlept(1.0), on.ProvidersRead()]
    played.driver.close()
    played.driver.post(on.ProvidersRead())
    assert played.heard() == []


async def test_what_comes_of_a_command_is_handled_after_all_commands_of_its_event():
    played = Played()
    played.driver.begin(played.carry_out)
    played.heard()
    first, second = AskNetwork("wlan0"), AskName("wlan0")
    played.gives = {on.ProvidersRead: [first, second]}
    played.posts = {first: [on.HostSlept(1.0)]}
    played.driver.post(on.ProvidersRead())
    assert played.heard() == [on.ProvidersRead(), first, second, on.HostSlept(1.0)]


async def test_changes_have_numbers_that_can_be_waited_for():
    played = Played()
    played.driver.begin(played.carry_out)
    number = await played.driver.changes(-1, 60.0)
    played.driver.post(on.ProvidersRead())
    assert await played.driver.changes(number, 1.0) == number, (
        "nothing that is followed has changed"
    )
    waiting = [asyncio.ensure_future(played.driver.changes(number, 60.0)) for _ in range(3)]
    await asyncio.sleep(0.01)
    played.followed = ([],)
    played.driver.post(on.ProvidersRead())
    numbers = {number, *await asyncio.gather(*waiting)}
    played.followed = ([],)  # an equal one
    played.driver.post(on.ProvidersRead())
    numbers.add(await played.driver.changes(-1, 0.0))
    assert len(numbers) == 3


async def test_a_failure_of_the_executor_does_not_stop_the_driver():
    played = Played()
    played.driver.begin(played.carry_out)
    played.gives = {on.ProvidersRead: [AskNetwork("wlan0")]}
    played.driver._carry_out = lambda command: 1 / 0
    with pytest.raises(ZeroDivisionError):
        played.driver.post(on.ProvidersRead())
    played.driver._carry_out = played.carry_out
    played.heard()
    played.driver.post(on.HostSlept(1.0))
    assert played.heard() == [on.HostSlept(1.0)]


async def test_events_that_come_together_ask_for_the_next_timer_once():
    played = Played()
    asked = 0

    def next_timer_s():
        nonlocal asked
        asked += 1
        return played.timer_s

    played.next_timer_s = next_timer_s
    played.driver.begin(played.carry_out)
    for _ in range(20):
        played.driver.post(on.ProvidersRead())
    await asyncio.sleep(0)
    assert asked == 1


async def test_the_timer_fires_when_it_is_due_and_follows_the_controller():
    played = Played()
    played.driver.begin(played.carry_out)
    played.heard()
    now_s = time.monotonic()
    played.timer_s = now_s + 5.0
    played.driver.post(on.ProvidersRead())
    played.timer_s = now_s + 2.0
    played.driver.post(on.ProvidersRead())
    await asyncio.sleep(1.9)
    assert on.TimerFired() not in played.heard()
    await asyncio.sleep(0.2)
    assert played.heard() == [on.TimerFired()]
    await asyncio.sleep(10.0)
    assert played.heard() == [], "it wants none"
    played.timer_s = time.monotonic() - 1.0
    played.driver.post(on.ProvidersRead())
    await asyncio.sleep(0.01)
    assert played.heard() == [on.ProvidersRead(), on.TimerFired()], "a time that is over is now"


@pytest.mark.parametrize("first", ["an event", "a timer"])
async def test_a_sleep_is_told_before_anything_else_is_decided(first, monkeypatch):
    """The monotonic clock stands still in a sleep, so all indicators are older than it says."""
    asleep_s = 5000.0
    monkeypatch.setattr(driver, "asleep_s", lambda: asleep_s)
    played = Played()
    played.driver.begin(played.carry_out)
    played.heard()
    asleep_s += 0.1  # between two readings
    played.driver.post(on.ProvidersRead())
    assert played.heard() == [on.ProvidersRead()]
    asleep_s += 7200.0
    if first == "an event":
        played.driver.post(on.ProvidersRead())
        assert played.heard() == [
            on.ClockRead,
            on.HostSlept(pytest.approx(7200.1)),
            on.ProvidersRead(),
        ]
        played.driver.post(on.ProvidersRead())
        assert played.heard() == [on.ProvidersRead()], "it is told once"
    else:
        played.timer_s = time.monotonic() + 1.0
        played.driver._set_timer()
        await asyncio.sleep(1.1)
        assert played.heard() == [
            on.ClockRead,
            on.HostSlept(pytest.approx(7200.1)),
            on.TimerFired(),
        ]


async def test_who_asks_is_answered_at_once():
    played = Played()
    played.driver.begin(played.carry_out)
    asked = on.ChoiceAsked(None, redundant=False, multipath=False)
    answer = AnswerChoice("the decision", None)
    played.gives = {on.ChoiceAsked: [AskNetwork("wlan0"), answer]}
    played.heard()
    assert played.driver.choose(asked) is answer
    assert played.heard() == [asked, AskNetwork("wlan0")]


def leading(folder, lead):
    """Return an executor whose kernel leads by this function, and its driver."""
    control, steering = MagicMock(), MagicMock()
    steering.set_ruled = lead
    none = (None,) * 2
    three = (MagicMock(),) * 3
    return HostExecutor(folder, control, steering, *none, MagicMock(), *none, *three), control


@pytest.mark.parametrize(("refused", "failed", "most"), [({77}, {77}, 20), (range(256), None, 64)])
def test_a_refused_change_of_many_places_is_tried_in_parts(tmp_path, refused, failed, most):
    """Try halves, and not for long: each try is waited for, and each of 256 places was one."""
    places = {(f"198.18.0.{n}/32", None): "wlan0" for n in range(256)}
    led, tries = {}, []

    def lead(wanted):
        tries.append(len(wanted))
        if any(f"198.18.0.{n}/32" == place for n in refused for place, _ in wanted):
            raise SteeringError("refused")
        led.update(wanted)

    executor, control = leading(tmp_path, lead)
    executor.carry_out(SetRuled(places))
    assert len(tries) <= most
    (told,) = [call.args[0] for call in control.post.call_args_list]
    assert isinstance(told, on.CommandFailed)
    expected = {f"198.18.0.{n}/32" for n in failed} if failed else {place for place, _ in places}
    assert {place for place, _ in told.places} == expected
    assert led.keys() == {each for each in places if each[0] not in expected}


def test_what_is_refused_each_time_keeps_nothing_new_waiting(tmp_path):
    """A kernel without IPv6 refuses a name's old addresses of it: no new one of IPv4 had a try left."""
    old = {(f"2001:db8::{n}/128", None): "wlan0" for n in range(64)}
    new, led = {("198.18.0.1/32", None): "wlan0"}, {}

    def lead(wanted):
        if not old.keys().isdisjoint(wanted):
            raise SteeringError("refused")
        led.update(wanted)

    executor, _ = leading(tmp_path, lead)
    for _ in range(3):
        executor.carry_out(SetRuled(old | new))
    assert led == new
