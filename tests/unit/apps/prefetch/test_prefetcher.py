"""Prefetching for one application: when items come, what faults do, what is learnt."""

import asyncio

import pytest
from kit.waiting import until

from cedos.apps.prefetch.surroundings import FetchError
from cedos.errors import DaemonUnreachableError
from cedos.model import Urgency


async def test_it_is_fetched_ahead_of_time_over_the_network_that_is_worth_it(app):
    item = app.item()
    async with app.prefetcher(app.world("lte0", "wlan0")) as mine:
        future = mine.prefetch(item, size=1e5)
        await until(lambda: future.ready)
        assert await future.get() == "value"
        assert await future.get() == "value"
    assert [turn.interface for turn in item.turns] == ["wlan0"]
    assert item.turns[0].label.urgency is Urgency.BACKGROUND


async def test_what_is_not_worth_it_is_fetched_on_demand(app):
    item = app.item()
    async with app.prefetcher(app.world("lte0")) as mine:
        future = mine.prefetch(item, size=1e5)
        await asyncio.sleep(0.1)
        assert item.turns == []
        assert await future.get() == "value"
    # The host chooses the network of what somebody waits for.
    assert item.turns[0].interface is None
    assert item.turns[0].label.urgency is Urgency.FOREGROUND


async def test_who_asks_while_it_is_under_way_waits_for_the_same_attempt(app):
    go_on = asyncio.Event()

    async def slowly(turn):
        turn.on_received(1000)
        await go_on.wait()

    item = app.item(slowly)
    async with app.prefetcher(app.world("wlan0"), every_s=0.5) as mine:
        future = mine.prefetch(item)
        await until(lambda: item.turns)
        with pytest.raises(TimeoutError):
            await future.get(timeout_s=0.05)
        assert item.turns[0].label.urgency is Urgency.FOREGROUND
        go_on.set()
        assert await future.get() == "value"
    assert len(item.turns) == 1


async def test_cancelling_ends_it_and_says_whether_that_spared_anything(app):
    item, quick = app.item(app.for_ever), app.item()
    async with app.prefetcher(app.world("wlan0")) as mine:
        future = mine.prefetch(item)
        await until(lambda: item.turns)
        assert future.cancel()
        assert not future.cancel()
        assert item.turns[0].stopped
        with pytest.raises(FetchError, match="cancelled"):
            await future.get()
        done = mine.prefetch(quick)
        await until(lambda: done.ready)
        assert not done.cancel()


async def test_who_waits_for_what_is_cancelled_is_told(app):
    item = app.item(app.for_ever)
    async with app.prefetcher(app.world("wlan0")) as mine:
        future = mine.prefetch(item)
        waiting = asyncio.create_task(future.get())
        await until(lambda: item.turns)
        future.cancel()
        with pytest.raises(FetchError, match="cancelled"):
            await waiting


async def test_a_prefetch_steps_back_while_somebody_waits_for_something_else(app):
    passed = 0

    async def by_blocks(turn):
        nonlocal passed
        for block in range(10_000):
            turn.on_received(block)
            await turn.turn()
            passed = block
            await asyncio.sleep(0.001)

    world = app.world("wlan0")
    async with app.prefetcher(world) as mine:
        mine.prefetch(app.item(by_blocks), size=1e7)
        kept = mine.prefetch(app.item(by_blocks), size=1e7)
        await until(lambda: passed > 3)
        slow = mine.prefetch(app.item(app.for_ever))
        waiting = asyncio.create_task(slow.get())
        await asyncio.sleep(0.05)
        stood = passed
        await asyncio.sleep(0.1)
        assert passed <= stood + 1
        slow.cancel()
        with pytest.raises(FetchError):
            await waiting
        await until(lambda: passed > stood + 3)
        kept.cancel()


async def test_outside_its_block_it_refuses(app):
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


class BoomError(Exception):
    pass


@pytest.mark.parametrize("error", [BoomError("boom"), SystemExit(3), asyncio.CancelledError()])
async def test_a_fetcher_that_raises_disturbs_nobody_and_is_tried_again(app, error):
    class Raises:
        calls = 0

        async def fetch(self, turn):
            self.calls += 1
            if self.calls < 3:
                raise error
            return "third"

    item, other = Raises(), app.item()
    async with app.prefetcher(app.world("wlan0")) as mine:
        mine.queue.retry_s = 0.01
        future = mine.prefetch(item)
        beside = mine.prefetch(other)
        await until(lambda: future.ready and beside.ready)
        assert await future.get() == "third"


async def test_on_demand_its_error_is_raised_where_it_was_asked_for(app):
    async def boom(turn):
        raise BoomError("boom")

    item = app.item(boom)
    async with app.prefetcher(app.world("lte0")) as mine:
        future = mine.prefetch(item)
        for _ in range(2):
            with pytest.raises(BoomError):
                await future.get()
        item.do = None
        assert await future.get() == "value"


async def test_a_fetcher_that_hangs_loses_its_turn(app):
    first, second = app.item(app.for_ever), app.item()
    async with app.prefetcher(app.world("wlan0"), silence_s=0.1) as mine:
        hanging = mine.prefetch(first)
        after = mine.prefetch(second)
        await until(lambda: after.ready)
        assert first.turns[0].stopped
        assert not hanging.ready


async def test_a_lost_network_stops_it_and_what_it_had_is_used_when_it_goes_on(app):
    class Resumes:
        def __init__(self):
            self.had = 0
            self.offsets = []

        async def fetch(self, turn):
            self.offsets.append((turn.interface, self.had))
            while self.had < 1000:
                self.had += 100
                turn.on_received(self.had, 1000)
                if self.had == 500 and len(self.offsets) == 1:
                    await asyncio.Event().wait()
            return self.had

    item, world = Resumes(), app.world("wlan0", "lte0")
    async with app.prefetcher(world) as mine:
        future = mine.prefetch(item, size=1000)
        await until(lambda: item.had == 500)
        world.become(wlan0=False, lte0=True)
        await asyncio.sleep(0.1)
        assert mine.queue.left_bytes(1) == 500
        assert not future.ready
        world.become(wlan0=True, lte0=True)
        await until(lambda: future.ready)
    assert item.offsets == [("wlan0", 0), ("wlan0", 500)]


async def test_who_waits_is_taken_off_a_network_that_is_gone(app):
    async def hangs_on_wifi(turn):
        if turn.interface == "wlan0":
            await asyncio.Event().wait()

    item, world = app.item(hangs_on_wifi), app.world("wlan0")
    async with app.prefetcher(world) as mine:
        future = mine.prefetch(item)
        await until(lambda: item.turns)
        world.become(wlan0=False)
        assert await future.get(timeout_s=5) == "value"
    assert [turn.interface for turn in item.turns] == ["wlan0", None]


@pytest.mark.parametrize("fault", [DaemonUnreachableError("no daemon"), RuntimeError("broken")])
async def test_without_facts_nothing_is_prefetched_and_everything_can_be_had(app, fault):
    item, world = app.item(), app.world("wlan0")
    world.fault = fault
    async with app.prefetcher(world) as mine:
        future, other = mine.prefetch(item), mine.prefetch(app.item())
        await asyncio.sleep(0.1)
        assert item.turns == []
        assert await future.get() == "value"
        world.fault = None
        await until(lambda: other.ready)


async def test_what_was_learned_of_classes_counts_at_once(app):
    async with app.prefetcher(app.world("wlan0")) as mine:
        for _ in range(5):
            await mine.prefetch(app.item(), cls="read").get()
            mine.prefetch(app.item(), cls="skipped").cancel()
        assert mine.queue.accuracy.of("read") > 0.7
        assert mine.queue.accuracy.of("skipped") < 0.3
