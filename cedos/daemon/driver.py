"""Runs the controller in the event loop: events in, commands carried out at once, its timer.

The host's sleep, which the monotonic clock does not count: after it everything known is old.
"""

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from cedos.controller.commands import AnswerChoice, Command
from cedos.controller.controller import Controller
from cedos.controller.events import ChoiceAsked, ClockRead, Event, HostSlept, TimerFired
from cedos.controller.outbox import next_beat_s
from cedos.daemon.event_log import Recording
from cedos.model import Context

_CLOCK_SET_S: Final = 0.5
# The shortest sleep that counts. The two clocks are read one after the other.
_SHORTEST_S = 0.5
_SAME = 0.01


def asleep_s() -> float:
    """Return for how long the host has slept since its start: CLOCK_BOOTTIME alone counts that time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()


class ControllerDriver:
    """The controller with the host's clock and event loop.

    Until `begin` events wait. A command may post events: they are handled after all commands of the event
    before them.

    Attributes:
        controller: to be read; only `post` changes it.
    """

    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self._carry_out: Callable[[Command], None] | None = None
        self._waiting: deque[Event] = deque()
        self._busy = False
        self._planning: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s: float | None = None
        self._asleep_s = asleep_s()
        self._answer: AnswerChoice | None = None
        self._recording: Recording | None = None
        # The tables that programs follow, their number, and what ends with that.
        self._followed: tuple[object, ...] = ()
        self._number = int.from_bytes(os.urandom(6))
        self._replaced = asyncio.Event()

    def begin(
        self, carry_out: Callable[[Command], None], recording: Recording | None = None
    ) -> None:
        """Handle the events that wait, and all others at once.

        `carry_out` posts what comes of a command as an event.
        """
        self._carry_out, self._recording = carry_out, recording
        self._waiting.appendleft(ClockRead(time.time()))
        self._work()

    def close(self) -> None:
        """Handle no event any more."""
        self._carry_out = None
        if self._timer is not None:
            self._timer.cancel()
        if self._recording is not None:
            self._recording.end()

    def post(self, event: Event) -> None:
        """Hand an event to the controller, and carry out what it decides."""
        self._waiting.append(event)
        self._work()

    def check_clock(self) -> None:
        """Tell the controller if the wall's clock was set."""
        unix_s = time.time()
        if abs(unix_s - self.controller.decider.unix_s(time.monotonic())) > _CLOCK_SET_S:
            self.post(ClockRead(unix_s))

    def now_s(self) -> float:
        """Return the monotonic time."""
        return time.monotonic()

    def context(self) -> Context:
        """Return what is known of the networks now."""
        self._note_sleep()
        self._work()
        return self.controller.context(time.monotonic())

    async def changes(self, seen: int, wait_s: float) -> int:
        """Return the number of the rules, networks and walls of now.

        Another one comes with each change of them. If it is `seen`, wait for the next, or so long.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._number == seen:
                    await self._replaced.wait()
        return self._number

    def choose(self, asked: ChoiceAsked) -> AnswerChoice:
        """Return the controller's answer to a program."""
        self.post(asked)
        answer, self._answer = self._answer, None
        assert answer is not None, "the controller answers at once"
        return answer

    def _work(self) -> None:
        if self._busy or self._carry_out is None:
            return
        self._busy = True
        try:
            self._note_sleep()
            while self._waiting and self._carry_out is not None:
                event, now_s = self._waiting.popleft(), time.monotonic()
                self.controller.handle(event, now_s)
                commands = self.controller.commands()
                if self._recording is not None:
                    self._recording.add(event, now_s, commands)
                for command in commands:
                    if isinstance(command, AnswerChoice):
                        self._answer = command
                    else:
                        self._carry_out(command)
            self._note_changes()
        finally:
            self._busy = False
            # Events come by the dozen: the timer is set once for all of this turn of the loop.
            if self._planning is None:
                self._planning = asyncio.get_running_loop().call_soon(self._set_timer)

    def _note_changes(self) -> None:
        followed = self.controller.followed
        if [*map(id, followed)] != [*map(id, self._followed)]:
            self._followed, self._number = followed, self._number + 1
            self._replaced.set()
            self._replaced = asyncio.Event()

    def _set_timer(self) -> None:
        self._planning = None
        if self._carry_out is None:
            return
        at_s = self.controller.next_timer_s()
        if at_s == self._timer_at_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at_s = None, at_s
        if at_s is not None:
            delay_s = max(0.0, at_s - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = self._timer_at_s = None
        self.post(TimerFired())

    def _note_sleep(self) -> None:
        """Have a sleep handled before all that waits: whatever is known is older by it."""
        slept_s = asleep_s() - self._asleep_s
        if slept_s >= _SHORTEST_S:
            self._asleep_s += slept_s
            self._waiting.extendleft((HostSlept(slept_s), ClockRead(time.time())))


async def aligned_sleep(interval_s: float) -> None:
    """Return at the next beat of the interval, for all callers with the same one at once."""
    now_s = asyncio.get_running_loop().time()
    # Timers may run a moment early: the instant that woke us is not the next one.
    await asyncio.sleep(next_beat_s(now_s + _SAME * interval_s, interval_s) - now_s)
