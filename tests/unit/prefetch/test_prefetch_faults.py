"""Fetchers that fail or hang, networks that go, and surroundings that cannot be looked at."""

import asyncio
import threading
import time
from typing import Any

import pytest

from cedos.errors import DaemonUnreachableError
from cedos.prefetch.turn import NotThereError, Turn

Application = Any


pytestmark = pytest.mark.anyio


class BoomError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [BoomError("boom"), SystemExit(3), StopIteration(), asyncio.CancelledError(), GeneratorExit()],
)
async def test_a_fetcher_that_raises_disturbs_nobody_and_is_tried_again(
    app: Application,
    error: BaseException,
) -> None:
    class Raises:
        calls = 0

        def fetch(self, turn: Turn) -> str:
            self.calls += 1
            if self.calls < 3:
                raise error
            return "third"

    item, other = Raises(), app.item()
    async with app.prefetcher(app.world("wlan0")) as mine:
        mine.queue.retry_s = 0.01
        future = mine.prefetch(item)
        beside = mine.prefetch(other)
        await app.until(lambda: future.ready and beside.ready)
        assert await future.get() == "third"


async def test_on_demand_its_error_is_raised_where_it_was_asked_for(app: Application) -> None:
    async def boom(turn: Turn) -> None:
        raise BoomError("boom")

    item = app.item(boom)
    async with app.prefetcher(app.world("lte0")) as mine:
        future = mine.prefetch(item)
        for _ in range(2):
            with pytest.raises(BoomError):
                await future.get()
        item.do = None
        assert await future.get() == "value"


async def test_what_is_not_there_is_not_tried_again(app: Application) -> None:
    async def gone(turn: Turn) -> None:
        raise NotThereError("gone")

    item = app.item(gone)
    async with app.prefetcher(app.world("wlan0")) as mine:
        mine.queue.retry_s = 0.0
        future = mine.prefetch(item)
        await app.until(lambda: item.turns)
        await asyncio.sleep(0.1)
        assert len(item.turns) == 1
        with pytest.raises(NotThereError):
            await future.get()


async def test_a_fetcher_that_hangs_loses_its_turn(app: Application) -> None:
    first, second = app.item(app.for_ever), app.item()
    async with app.prefetcher(app.world("wlan0"), silence_s=0.1) as mine:
        hanging = mine.prefetch(first)
        after = mine.prefetch(second)
        await app.until(lambda: after.ready, "the turn of the other")
        assert first.turns[0].stopped
        assert not hanging.ready


async def test_a_thread_that_hangs_keeps_nobody_from_working_nor_from_closing(
    app: Application,
) -> None:
    stuck = threading.Event()

    class Hangs:
        def fetch(self, turn: Turn) -> str:
            stuck.wait(30)
            return "late"

    second = app.item()
    try:
        async with app.prefetcher(app.world("wlan0"), silence_s=0.1) as mine:
            hanging = mine.prefetch(Hangs())
            after = mine.prefetch(second)
            await app.until(lambda: after.ready, "the turn of the other")
            assert not hanging.ready
            with pytest.raises(TimeoutError):
                await hanging.get(timeout_s=0.05)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5.0
    finally:
        stuck.set()


async def test_a_lost_network_stops_it_and_what_it_had_is_used_when_it_goes_on(
    app: Application,
) -> None:
    class Resumes:
        def __init__(self) -> None:
            self.had = 0
            self.offsets: list[tuple[str | None, int]] = []

        async def fetch(self, turn: Turn) -> int:
            self.offsets.append((turn.interface, self.had))
            while self.had < 1000:
                self.had += 100
                turn.received(self.had, 1000)
                if self.had == 500 and len(self.offsets) == 1:
                    await asyncio.Event().wait()
            return self.had

    item, world = Resumes(), app.world("wlan0", "lte0")
    async with app.prefetcher(world) as mine:
        future = mine.prefetch(item, size=1000)
        await app.until(lambda: item.had == 500)
        world.become(wlan0=False, lte0=True)
        await asyncio.sleep(0.1)
        assert mine.queue.left_bytes(1) == 500
        assert not future.ready
        world.become(wlan0=True, lte0=True)
        await app.until(lambda: future.ready)
    assert item.offsets == [("wlan0", 0), ("wlan0", 500)]


async def test_who_waits_is_taken_off_a_network_that_is_gone(app: Application) -> None:
    async def hangs_on_wifi(turn: Turn) -> None:
        if turn.interface == "wlan0":
            await asyncio.Event().wait()

    item, world = app.item(hangs_on_wifi), app.world("wlan0")
    async with app.prefetcher(world) as mine:
        future = mine.prefetch(item)
        await app.until(lambda: item.turns)
        world.become(wlan0=False)
        assert await future.get(timeout_s=5) == "value"
    assert [turn.interface for turn in item.turns] == ["wlan0", None]


@pytest.mark.parametrize("fault", [DaemonUnreachableError("no daemon"), RuntimeError("broken")])
async def test_without_facts_nothing_is_prefetched_and_everything_can_be_had(
    app: Application,
    fault: Exception,
) -> None:
    item, world = app.item(), app.world("wlan0")
    world.fault = fault
    async with app.prefetcher(world) as mine:
        future, other = mine.prefetch(item), mine.prefetch(app.item())
        await asyncio.sleep(0.1)
        assert item.turns == []
        assert await future.get() == "value"
        world.fault = None
        await app.until(lambda: other.ready)
