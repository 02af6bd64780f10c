"""Tasks that look again and again wake together."""

import asyncio
import itertools
import math

import pytest

from cedos.controller.outbox import LATE_S
from cedos.daemon.driver import aligned_sleep


class Clock:
    """Sleeps at once; notes when whoever slept would have woken."""

    def __init__(self, monkeypatch, now_s):
        self.now_s = now_s
        self.woken_s = []
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now_s)
        monkeypatch.setattr("cedos.daemon.driver.asyncio.sleep", self.sleep)

    async def sleep(self, seconds):
        assert seconds > 0
        self.now_s += seconds
        self.woken_s.append(self.now_s)


@pytest.mark.parametrize("now_s", [0.0, 5.3, 5.02, 5.019999999, 5.0200001, 1e6 + 0.7])
@pytest.mark.parametrize("interval_s", [0.25, 1.0, 5.0])
async def test_all_wake_at_the_same_instants(monkeypatch, now_s, interval_s):
    with monkeypatch.context() as patch:
        clock = Clock(patch, now_s)
        for _ in range(4):
            await aligned_sleep(interval_s)
            clock.now_s -= 1e-7  # timers may run a moment early
    assert clock.woken_s[0] - now_s <= interval_s * 1.02
    for woken_s in clock.woken_s:
        beats = (woken_s - LATE_S) / interval_s
        assert math.isclose(beats, round(beats), abs_tol=1e-5)
    steps = [later - before for before, later in itertools.pairwise(clock.woken_s)]
    assert steps == pytest.approx([interval_s] * 3)


async def test_those_that_began_apart_are_woken_as_one():
    woken_s = []
    now_s = asyncio.get_running_loop().time

    async def look():
        for _ in range(3):
            await aligned_sleep(0.2)
            woken_s.append(now_s())

    async with asyncio.TaskGroup() as tasks:
        for _ in range(5):
            tasks.create_task(look())
            await asyncio.sleep(0.03)
    beats = {math.floor((each - LATE_S) / 0.2) for each in woken_s}
    assert len(woken_s) == 15
    assert len(beats) <= 5, "15 looks, but few wake-ups"
