"""The prefetcher in one process: handles, cancelling, fetchers that fail or hang, networks that go."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cedos.errors import CedosError, DaemonUnreachableError
from cedos.model import Direction, NetworkKind, Urgency
from cedos.prefetch.blocking import BlockingPrefetcher
from cedos.prefetch.prefetcher import Prefetcher
from cedos.prefetch.surroundings import NetworkFacts, View
from cedos.prefetch.turn import FetchError, NotThereError, Turn

pytestmark = pytest.mark.anyio


class Radio:
    def active_w(self, direction: Direction, rate_bps: float = 0.0) -> float:
        return 1.0

    def added_tail_j(self, idle_s: float | None) -> float:
        return 0.0

    def expected_j(
        self,
        *,
        bytes_up: float = 0.0,
        bytes_down: float = 0.0,
        seconds: float,
        shares: Mapping[str, float],
    ) -> float:
        return seconds


class Dear:
    """Metered bytes are out of reach."""

    def energy_rate(self, amount: float = 0.0, duration_s: float = 1.0) -> float:
        return 0.0

    def data_rate(self, network: str, amount: float = 0.0, duration_s: float = 1.0) -> float:
        return 2.0**200 if network == "lte0" else 0.0


def network(name: str, up: bool = True) -> NetworkFacts:
    kind = NetworkKind.WIFI if name == "wlan0" else NetworkKind.CELLULAR
    return NetworkFacts(name, name, kind, up, name == "lte0", Radio(), 8e6, 0.02)


class World:
    """Surroundings that a test changes."""

    def __init__(self, *networks: NetworkFacts) -> None:
        self.networks = list(networks)
        self.prices: Any = Dear()
        self.fault: Exception | None = None

    async def look(self) -> View:
        if self.fault:
            raise self.fault
        return View(self.networks, self.prices)


class Item:
    """A fetcher that does what a test says, and counts."""

    def __init__(self, do: Callable[[Turn], Any] | None = None, value: str = "value") -> None:
        self.do, self.value = do, value
        self.turns: list[Turn] = []

    async def fetch(self, turn: Turn) -> str:
        self.turns.append(turn)
        if self.do is not None:
            await self.do(turn)
        return self.value


async def until(true: Callable[[], Any], what: str = "it") -> None:
    for _ in range(2000):
        if true():
            return
        await asyncio.sleep(0.005)
    pytest.fail(f"{what} did not happen")


async def for_ever(turn: Turn) -> None:
    await asyncio.Event().wait()


def prefetcher(world: World, **options: Any) -> Prefetcher:
    return Prefetcher(world, **{"every_s": 0.02, **options})


async def test_it_is_fetched_ahead_of_time_over_the_network_that_is_worth_it() -> None:
    item = Item()
    async with prefetcher(World(network("lte0"), network("wlan0"))) as mine:
        future = mine.prefetch(item, size=1e5)
        await until(lambda: future.ready)
        assert await future.get() == "value"
        assert await future.get() == "value"
    assert [turn.interface for turn in item.turns] == ["wlan0"]
    assert item.turns[0].label.urgency is Urgency.BACKGROUND


async def test_what_is_not_worth_it_is_fetched_on_demand() -> None:
    item = Item()
    async with prefetcher(World(network("lte0"))) as mine:
        future = mine.prefetch(item, size=1e5)
        await asyncio.sleep(0.1)
        assert item.turns == []
        assert await future.get() == "value"
    # The host chooses the network of what somebody waits for.
    assert item.turns[0].interface is None
    assert item.turns[0].label.urgency is Urgency.FOREGROUND


async def test_who_asks_while_it_is_under_way_waits_for_the_same_attempt() -> None:
    go_on = asyncio.Event()

    async def slowly(turn: Turn) -> None:
        turn.received(1000)
        await go_on.wait()

    item = Item(slowly)
    async with prefetcher(World(network("wlan0")), every_s=0.5) as mine:
        future = mine.prefetch(item)
        await until(lambda: item.turns)
        with pytest.raises(TimeoutError):
            await future.get(timeout_s=0.05)
        assert item.turns[0].label.urgency is Urgency.FOREGROUND
        go_on.set()
        assert await future.get() == "value"
    assert len(item.turns) == 1


async def test_cancelling_ends_it_and_says_whether_that_spared_anything() -> None:
    item, quick = Item(for_ever), Item()
    async with prefetcher(World(network("wlan0"))) as mine:
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


async def test_dropping_the_handle_cancels() -> None:
    item = Item(for_ever)
    async with prefetcher(World(network("wlan0"))) as mine:
        future = mine.prefetch(item, cls="c")
        await until(lambda: item.turns)
        del future
        gc.collect()
        await until(lambda: item.turns[0].stopped, "the implicit cancel")
        await until(lambda: not mine.queue.items)
        assert mine.queue.accuracy.application.consumed == 0.0
        assert mine.queue.accuracy.application.resolved == 1.0


async def test_who_waits_for_what_is_cancelled_is_told() -> None:
    item = Item(for_ever)
    async with prefetcher(World(network("wlan0"))) as mine:
        future = mine.prefetch(item)
        waiting = asyncio.create_task(future.get())
        await until(lambda: item.turns)
        future.cancel()
        with pytest.raises(FetchError, match="cancelled"):
            await waiting


class Boom(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize(
    "error",
    [Boom("boom"), SystemExit(3), StopIteration(), asyncio.CancelledError(), GeneratorExit()],
)
async def test_a_fetcher_that_raises_disturbs_nobody_and_is_tried_again(
    error: BaseException,
) -> None:
    class Raises:
        calls = 0

        def fetch(self, turn: Turn) -> str:
            self.calls += 1
            if self.calls < 3:
                raise error
            return "third"

    item, other = Raises(), Item()
    async with prefetcher(World(network("wlan0"))) as mine:
        mine.queue.retry_s = 0.01
        future = mine.prefetch(item)
        beside = mine.prefetch(other)
        await until(lambda: future.ready and beside.ready)
        assert await future.get() == "third"


async def test_on_demand_its_error_is_raised_where_it_was_asked_for() -> None:
    async def boom(turn: Turn) -> None:
        raise Boom("boom")

    item = Item(boom)
    async with prefetcher(World(network("lte0"))) as mine:
        future = mine.prefetch(item)
        for _ in range(2):
            with pytest.raises(Boom):
                await future.get()
        item.do = None
        assert await future.get() == "value"


async def test_what_is_not_there_is_not_tried_again() -> None:
    async def gone(turn: Turn) -> None:
        raise NotThereError("gone")

    item = Item(gone)
    async with prefetcher(World(network("wlan0"))) as mine:
        mine.queue.retry_s = 0.0
        future = mine.prefetch(item)
        await until(lambda: item.turns)
        await asyncio.sleep(0.1)
        assert len(item.turns) == 1
        with pytest.raises(NotThereError):
            await future.get()


async def test_a_fetcher_that_hangs_loses_its_turn() -> None:
    first, second = Item(for_ever), Item()
    async with prefetcher(World(network("wlan0")), silence_s=0.1) as mine:
        hanging = mine.prefetch(first)
        after = mine.prefetch(second)
        await until(lambda: after.ready, "the turn of the other")
        assert first.turns[0].stopped
        assert not hanging.ready


async def test_a_thread_that_hangs_keeps_nobody_from_working_nor_from_closing() -> None:
    stuck = threading.Event()

    class Hangs:
        def fetch(self, turn: Turn) -> str:
            stuck.wait(30)
            return "late"

    second = Item()
    try:
        async with prefetcher(World(network("wlan0")), silence_s=0.1) as mine:
            hanging = mine.prefetch(Hangs())
            after = mine.prefetch(second)
            await until(lambda: after.ready, "the turn of the other")
            assert not hanging.ready
            with pytest.raises(TimeoutError):
                await hanging.get(timeout_s=0.05)
            began_s = time.monotonic()
        assert time.monotonic() - began_s < 5.0
    finally:
        stuck.set()


async def test_a_lost_network_stops_it_and_what_it_had_is_used_when_it_goes_on() -> None:
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

    item, world = Resumes(), World(network("wlan0"), network("lte0"))
    async with prefetcher(world) as mine:
        future = mine.prefetch(item, size=1000)
        await until(lambda: item.had == 500)
        world.networks = [network("wlan0", up=False), network("lte0")]
        await asyncio.sleep(0.1)
        assert mine.queue.left_bytes(1) == 500
        assert not future.ready
        world.networks = [network("wlan0"), network("lte0")]
        await until(lambda: future.ready)
    assert item.offsets == [("wlan0", 0), ("wlan0", 500)]


async def test_who_waits_is_taken_off_a_network_that_is_gone() -> None:
    async def hangs_on_wifi(turn: Turn) -> None:
        if turn.interface == "wlan0":
            await asyncio.Event().wait()

    item, world = Item(hangs_on_wifi), World(network("wlan0"))
    async with prefetcher(world) as mine:
        future = mine.prefetch(item)
        await until(lambda: item.turns)
        world.networks = [network("wlan0", up=False)]
        assert await future.get(timeout_s=5) == "value"
    assert [turn.interface for turn in item.turns] == ["wlan0", None]


async def test_a_prefetch_steps_back_while_somebody_waits_for_something_else() -> None:
    passed = 0

    async def by_blocks(turn: Turn) -> None:
        nonlocal passed
        for block in range(10_000):
            turn.received(block)
            await turn.turn()
            passed = block
            await asyncio.sleep(0.001)

    world = World(network("wlan0"))
    async with prefetcher(world) as mine:
        mine.prefetch(Item(by_blocks), size=1e7)
        kept = mine.prefetch(Item(by_blocks), size=1e7)
        await until(lambda: passed > 3)
        slow = mine.prefetch(Item(for_ever))
        waiting = asyncio.create_task(slow.get())
        await asyncio.sleep(0.05)
        stood = passed
        await asyncio.sleep(0.1)
        assert passed <= stood + 1
        slow.cancel()
        with pytest.raises(FetchError):
            await waiting
        await until(lambda: passed > stood + 3, "going on")
        kept.cancel()


@pytest.mark.parametrize("fault", [DaemonUnreachableError("no daemon"), RuntimeError("broken")])
async def test_without_facts_nothing_is_prefetched_and_everything_can_be_had(
    fault: Exception,
) -> None:
    item, world = Item(), World(network("wlan0"))
    world.fault = fault
    async with prefetcher(world) as mine:
        future, other = mine.prefetch(item), mine.prefetch(Item())
        await asyncio.sleep(0.1)
        assert item.turns == []
        assert await future.get() == "value"
        world.fault = None
        await until(lambda: other.ready)


async def test_what_was_learned_is_there_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "state" / "app.json"
    world = World(network("wlan0"))
    async with prefetcher(world, state_file=file) as mine:
        for _ in range(5):
            future = mine.prefetch(Item(), cls="read")
            await future.get()
            mine.prefetch(Item(), cls="skipped").cancel()
        await asyncio.sleep(0.1)
    async with prefetcher(world, state_file=file) as mine:
        assert mine.queue.accuracy.of("read") > 0.7
        assert mine.queue.accuracy.of("skipped") < 0.3
        assert mine.rates.outlook.to_state()["wlan0"]["seconds"] > 0


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"accuracy": 3}', b'{"outlook": {"a": {"x": "y"}}}']
)
async def test_a_broken_file_is_no_reason_not_to_start(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "app.json"
    file.write_bytes(content)
    async with prefetcher(World(network("wlan0")), state_file=file) as mine:
        assert await mine.prefetch(Item()).get() == "value"


async def test_a_disk_that_refuses_loses_nothing_but_what_was_learned(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with prefetcher(World(), state_file=tmp_path / "file" / "app.json") as mine:
        assert await mine.prefetch(Item()).get() == "value"


async def test_outside_its_block_it_refuses() -> None:
    mine = prefetcher(World())
    with pytest.raises(FetchError, match="async with"):
        mine.prefetch(Item())
    async with mine:
        future = mine.prefetch(Item(for_ever))
        waiting = asyncio.create_task(future.get())
        await asyncio.sleep(0.01)
    with pytest.raises(FetchError, match="closed"):
        await waiting
    with pytest.raises(FetchError):
        await future.get()


class TestThreads:
    def test_the_same_for_threads(self) -> None:
        class Blocks:
            def fetch(self, turn: Turn) -> str:
                turn.received(5, 10)
                turn.turn_blocking()
                return threading.current_thread().name

        with BlockingPrefetcher(World(network("wlan0")), every_s=0.02) as mine:
            future = mine.prefetch(Blocks(), size=10, cls="c")
            assert future.get(timeout_s=5) == "prefetch"
            assert future.ready
            assert not future.cancel()

    def test_time_outs_errors_and_cancelling(self) -> None:
        async def boom(turn: Turn) -> None:
            raise Boom("boom")

        with BlockingPrefetcher(World(), every_s=0.02) as mine:
            slow = mine.prefetch(Item(for_ever))
            with pytest.raises(TimeoutError):
                slow.get(timeout_s=0.05)
            assert slow.cancel() is False  # it was being fetched on demand
            with pytest.raises(FetchError):
                slow.get()
            with pytest.raises(Boom):
                mine.prefetch(Item(boom)).get(timeout_s=5)
        with pytest.raises(CedosError):
            mine.prefetch(Item())

    def test_many_threads_at_once(self) -> None:
        with BlockingPrefetcher(World(network("wlan0")), every_s=0.02) as mine:
            results: list[str] = []

            def ask(number: int) -> None:
                results.append(mine.prefetch(Item(value=str(number))).get(timeout_s=10))

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert sorted(results, key=int) == [str(number) for number in range(20)]

    def test_closing_wakes_who_waits(self) -> None:
        mine = BlockingPrefetcher(World(), every_s=0.02)
        raised: list[BaseException] = []
        with mine:
            future = mine.prefetch(Item(for_ever))

            def ask() -> None:
                try:
                    future.get()
                except FetchError as error:
                    raised.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            time.sleep(0.1)
        thread.join(5)
        assert not thread.is_alive()
        assert len(raised) == 1
        mine.close()
