"""The prefetcher in one process: ahead of time or on demand, cancelling, who waits, closing."""

import asyncio
import gc
from typing import Any

import pytest

from cedos.model import Urgency
from cedos.prefetch.turn import FetchError, Turn

Application = Any


pytestmark = pytest.mark.anyio


async def test_it_is_fetched_ahead_of_time_over_the_network_that_is_worth_it(
    app: Application,
) -> None:
    item = app.item()
    async with app.prefetcher(app.world("lte0", "wlan0")) as mine:
        future = mine.prefetch(item, size=1e5)
        await app.until(lambda: future.ready)
        assert await future.get() == "value"
        assert await future.get() == "value"
    assert [turn.interface for turn in item.turns] == ["wlan0"]
    assert item.turns[0].label.urgency is Urgency.BACKGROUND


async def test_what_is_not_worth_it_is_fetched_on_demand(app: Application) -> None:
    item = app.item()
    async with app.prefetcher(app.world("lte0")) as mine:
        future = mine.prefetch(item, size=1e5)
        await asyncio.sleep(0.1)
        assert item.turns == []
        assert await future.get() == "value"
    # The host chooses the network of what somebody waits for.
    assert item.turns[0].interface is None
    assert item.turns[0].label.urgency is Urgency.FOREGROUND


async def test_who_asks_while_it_is_under_way_waits_for_the_same_attempt(app: Application) -> None:
    go_on = asyncio.Event()

    async def slowly(turn: Turn) -> None:
        turn.received(1000)
        await go_on.wait()

    item = app.item(slowly)
    async with app.prefetcher(app.world("wlan0"), every_s=0.5) as mine:
        future = mine.prefetch(item)
        await app.until(lambda: item.turns)
        with pytest.raises(TimeoutError):
            await future.get(timeout_s=0.05)
        assert item.turns[0].label.urgency is Urgency.FOREGROUND
        go_on.set()
        assert await future.get() == "value"
    assert len(item.turns) == 1


async def test_cancelling_ends_it_and_says_whether_that_spared_anything(app: Application) -> None:
    item, quick = app.item(app.for_ever), app.item()
    async with app.prefetcher(app.world("wlan0")) as mine:
        future = mine.prefetch(item)
        await app.until(lambda: item.turns)
        assert future.cancel()
        assert not future.cancel()
        assert item.turns[0].stopped
        with pytest.raises(FetchError, match="cancelled"):
            await future.get()
        done = mine.prefetch(quick)
        await app.until(lambda: done.ready)
        assert not done.cancel()


async def test_dropping_the_handle_cancels(app: Application) -> None:
    item = app.item(app.for_ever)
    async with app.prefetcher(app.world("wlan0")) as mine:
        future = mine.prefetch(item, cls="c")
        await app.until(lambda: item.turns)
        del future
        gc.collect()
        await app.until(lambda: item.turns[0].stopped, "the implicit cancel")
        await app.until(lambda: not mine.queue.items)
        assert mine.queue.accuracy.application.consumed == 0.0
        assert mine.queue.accuracy.application.resolved == 1.0


async def test_who_waits_for_what_is_cancelled_is_told(app: Application) -> None:
    item = app.item(app.for_ever)
    async with app.prefetcher(app.world("wlan0")) as mine:
        future = mine.prefetch(item)
        waiting = asyncio.create_task(future.get())
        await app.until(lambda: item.turns)
        future.cancel()
        with pytest.raises(FetchError, match="cancelled"):
            await waiting


async def test_a_prefetch_steps_back_while_somebody_waits_for_something_else(
    app: Application,
) -> None:
    passed = 0

    async def by_blocks(turn: Turn) -> None:
        nonlocal passed
        for block in range(10_000):
            turn.received(block)
            await turn.turn()
            passed = block
            await asyncio.sleep(0.001)

    world = app.world("wlan0")
    async with app.prefetcher(world) as mine:
        mine.prefetch(app.item(by_blocks), size=1e7)
        kept = mine.prefetch(app.item(by_blocks), size=1e7)
        await app.until(lambda: passed > 3)
        slow = mine.prefetch(app.item(app.for_ever))
        waiting = asyncio.create_task(slow.get())
        await asyncio.sleep(0.05)
        stood = passed
        await asyncio.sleep(0.1)
        assert passed <= stood + 1
        slow.cancel()
        with pytest.raises(FetchError):
            await waiting
        await app.until(lambda: passed > stood + 3, "going on")
        kept.cancel()


async def test_outside_its_block_it_refuses(app: Application) -> None:
    mine = app.prefetcher(app.world())
    with pytest.raises(FetchError, match="async with"):
        mine.prefetch(app.item())
    async with mine:
        future = mine.prefetch(app.item(app.for_ever))
        waiting = asyncio.create_task(future.get())
        await asyncio.sleep(0.01)
    with pytest.raises(FetchError, match="closed"):
        await waiting
    with pytest.raises(FetchError):
        await future.get()
