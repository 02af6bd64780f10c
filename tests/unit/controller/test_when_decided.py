"""When is decided again: each second while a transfer runs, every five without one, events at once."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address as Address
from ipaddress import ip_address, ip_interface
from types import SimpleNamespace
from typing import Any, cast

import pytest
from cedos.daemon.loop.decision_loop import DecisionLoop, Wakeup

from cedos.config import Config
from cedos.controller.decisions.decider import Decider
from cedos.controller.decisions.user_rules import UserRules
from cedos.controller.events import FlowOpened, FlowSample, SizeLearned
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.decisions.choices import Choices
from cedos.daemon.loop import decision_loop, flow_sampler
from cedos.daemon.loop.flow_sampler import CLOSE_S, FlowSampler
from cedos.model import (
    Context,
    Direction,
    FlowKey,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
)
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
KEY = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 80)
SAMPLE = FlowSample(KEY, 10.0, 1, None, 0.02, 0.02, None, 0, 300, 0, 0.01, 0, idle_ack_s=0.1)


class Stage:
    """A daemon of which only the part that waits for reasons is real."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.loss = 0.0
        self.looks = 0
        self.decided_at_s: list[float] = []
        self.flows = LivingFlows()
        self.director = SimpleNamespace(
            ruled=SimpleNamespace(rules=UserRules()),
            turn=asyncio.Lock(),
            networks=(WLAN, LTE),
            decider=Decider(Choices(MaxS(), None, 3000, 0.1, 0.1), lambda _: {}, lambda _: None),
            reconsider=self._reconsider,
        )
        self.wakeup = Wakeup()
        self.subject = DecisionLoop(
            self.wakeup,
            Config(),
            cast(Any, SimpleNamespace(context=self._context, portals=self)),
            self.flows,
            cast(Any, self.director),
            cast(Any, SimpleNamespace(context_changed=self._looked)),
            cast(Any, None),
        )

    def on_the_way(self) -> list[tuple[str, list[Address]]]:
        return []

    def _context(self) -> Context:
        available = Indicator(1.0 - self.loss, self.now_s)
        return Context(self.now_s, {"wlan0": {"available": available}, "lte0": {}})

    def _looked(self, context: Context) -> None:
        self.looks += 1

    async def _reconsider(self, context: Context) -> None:
        self.decided_at_s.append(context.at_s)

    async def changed(self, now_s: float, tell: Callable[[], None] | None = None) -> None:
        """Something is told at an instant; returns when it was taken in."""
        before, self.now_s = self.looks, now_s
        (tell or self.wakeup.wake)()
        while self.looks == before:
            await asyncio.sleep(0)
        for _ in range(5):
            await asyncio.sleep(0)


async def playing(play: Callable[[Stage], Awaitable[None]]) -> Stage:
    stage = Stage()
    running = asyncio.create_task(stage.subject.run())
    await play(stage)
    running.cancel()
    return stage


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_loop, "_CHANGED_AT_MOST_S", 0.0)


@pytest.mark.parametrize(("transfer", "seconds"), [(False, [0, 5, 10, 15]), (True, range(20))])
async def test_each_second_while_a_transfer_runs_and_every_five_without(
    transfer: bool, seconds: Any
) -> None:
    async def play(stage: Stage) -> None:
        if transfer:
            stage.flows.on_open(FlowOpened(KEY, 99.0, 1.0))
        for second in range(20):
            await stage.changed(100.0 + second)

    stage = await playing(play)
    assert stage.looks == 20, "first packets follow what is known at once"
    assert stage.decided_at_s == [100.0 + second for second in seconds]


async def test_a_network_that_dies_or_returns_counts_at_once() -> None:
    async def play(stage: Stage) -> None:
        await stage.changed(100.0)
        await stage.changed(101.0)
        stage.loss = 1.0
        await stage.changed(101.2)
        await stage.changed(101.4)
        stage.loss = 0.0
        await stage.changed(102.6)

    assert (await playing(play)).decided_at_s == [100.0, 101.2, 102.6]


async def test_what_is_urgent_counts_at_once_and_a_burst_as_one() -> None:
    async def play(stage: Stage) -> None:
        await stage.changed(100.0)

        def burst() -> None:
            for urgent in (False, True, False, True):
                stage.wakeup.wake(urgent)

        await stage.changed(100.5, burst)
        await stage.changed(101.0)

    assert (await playing(play)).decided_at_s == [100.0, 100.5]


async def test_who_rests_is_not_woken_and_a_burst_is_answered_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses_s: list[float] = []
    now_s = [10.0]

    async def sleep(pause_s: float) -> None:
        pauses_s.append(round(pause_s, 3))
        now_s[0] += pause_s

    monkeypatch.setattr(decision_loop, "_CHANGED_AT_MOST_S", 0.1)
    monkeypatch.setattr(decision_loop, "time", SimpleNamespace(monotonic=lambda: now_s[0]))

    async def play(stage: Stage) -> None:
        monkeypatch.setattr(decision_loop.asyncio, "sleep", sleep)
        real = asyncio.get_running_loop()

        async def settled() -> None:
            for _ in range(20):
                turn = real.create_future()
                real.call_soon(turn.set_result, None)
                await turn

        for apart_s, pauses in ((1.0, []), (1.0, []), (0.03, [0.07]), (0.1, [0.07])):
            now_s[0] += apart_s
            stage.now_s = now_s[0]
            stage.wakeup.wake(urgent=True)
            await settled()
            assert pauses_s == pauses, "it answers at once, or when the burst is over"
        monkeypatch.undo()

    stage = await playing(play)
    assert stage.looks == 4


async def test_exponents_that_follow_the_battery_count_at_once() -> None:
    hungry, hungrier = MaxSPerE(beta=1.0), MaxSPerE(beta=2.0)

    async def play(stage: Stage) -> None:
        await stage.changed(100.0, lambda: stage.subject.prefer(hungry, urgent=False))
        await stage.changed(101.0, lambda: stage.subject.prefer(hungrier, urgent=False))
        stage.subject.prefer(hungrier, urgent=False)
        await stage.changed(102.0)
        assert stage.director.decider.objective is hungrier
        await stage.changed(103.0, lambda: stage.subject.prefer(WeightedCost(1.0), urgent=True))

    assert (await playing(play)).decided_at_s == [100.0, 101.0, 103.0]


class Sockets:
    """The kernel's sockets, a clock that only sleeping moves on, and who is told what."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pauses_s: list[float] = []
        self.told: list[tuple[float, bool]] = []
        self.received = 0
        self.delivered_at_s: list[float] = []
        self.delivered = self.answers = 0
        self.elsewhere = 0
        self.flows = LivingFlows()
        self.subject = FlowSampler(
            cast(Any, self),
            self.flows,
            cast(Any, self),
            cast(Any, SimpleNamespace(progressed=lambda *_: [])),
            lambda urgent: self.told.append((round(self.now_s, 3), urgent)),
            1.0,
        )

    def answered_elsewhere(self, samples: list[FlowSample]) -> None:
        self.elsewhere = len(samples)

    def asked_at_s(self) -> dict[str, float]:
        return {}

    async def snapshot(self) -> list[FlowSample]:
        self.received += 50_000
        return [replace(SAMPLE, at_s=self.now_s, bytes_down=self.received)]

    def observe_flows(self, samples: Any) -> None: ...

    def observe_answers(self, samples: Any) -> None:
        self.answers += len(samples)

    def observe_delivery(self, samples: Any, now_s: float) -> None:
        self.delivered_at_s.append(round(now_s, 3))
        self.delivered += len(samples)

    def silent(
        self, networks: Mapping[str, float], pauses: Mapping[str, tuple[float, ...]], now_s: float
    ) -> None: ...

    def context(self) -> Context:
        return Context(self.now_s, {"wlan0": {"rtt_s": Indicator(0.02, self.now_s)}})

    async def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s
        if self.now_s > 110.1:
            raise asyncio.CancelledError
        self.pauses_s.append(round(pause_s, 3))


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Sockets:
    made = Sockets()
    monkeypatch.setattr(flow_sampler, "asyncio", SimpleNamespace(sleep=made.sleep))
    monkeypatch.setattr(flow_sampler, "aligned_sleep", made.sleep)
    monkeypatch.setattr(flow_sampler, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


async def run(sockets: Sockets) -> None:
    with pytest.raises(asyncio.CancelledError):
        await sockets.subject.run()


async def test_a_transfer_under_way_is_sampled_closely_and_told_each_second(
    sockets: Sockets,
) -> None:
    sockets.flows.on_open(FlowOpened(KEY, 99.0, 1.0))
    whole = SizeEstimate(10**9, 10**9, 10**9, "content-length")
    sockets.flows.on_size(SizeLearned(KEY, Direction.DOWN, whole))
    await run(sockets)
    assert set(sockets.pauses_s[1:]) == {CLOSE_S}
    # What it carries is measured with each look.
    assert sockets.delivered == len(sockets.delivered_at_s) == sockets.received / 50_000
    assert sockets.answers == sockets.delivered, "every look tells which networks carry"
    assert [at_s for at_s, _ in sockets.told] == [float(second) for second in range(101, 111)]
    assert not any(urgent for _, urgent in sockets.told)


async def test_what_a_rescued_flow_carries_is_not_told_of_the_network_of_its_address(
    sockets: Sockets,
) -> None:
    sockets.flows.networks_changed([WLAN, LTE])
    sockets.flows.on_open(FlowOpened(KEY, 99.0, 1.0))
    sockets.flows.on_rescue(KEY, "lte0")
    await run(sockets)
    assert sockets.received > 0
    assert sockets.delivered == 0


async def test_a_flow_that_rests_is_sampled_each_second_and_no_flow_never(
    sockets: Sockets,
) -> None:
    sockets.flows.on_open(FlowOpened(KEY, 99.0, 1.0))
    await run(sockets)
    assert set(sockets.pauses_s) == {1.0}
    assert sockets.received == 50_000 * 10


async def test_without_flows_no_socket_is_sampled(sockets: Sockets) -> None:
    await run(sockets)
    assert sockets.received == 0
    assert sockets.told == []
    # What ended between two beats is counted with the next one.
    assert sockets.delivered_at_s == [float(second) for second in range(101, 111)]
