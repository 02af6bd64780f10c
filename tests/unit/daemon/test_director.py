"""The director over a steering that only remembers what it was asked."""

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.daemon.choices import Choices
from cedos.daemon.decider import Decider
from cedos.daemon.director import Director
from cedos.daemon.flows import Flows
from cedos.daemon.living_flow import LivingFlow
from cedos.errors import SteeringError
from cedos.model import (
    Bulk,
    Context,
    Decision,
    Direction,
    FlowKey,
    Indicator,
    Label,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
    Urgency,
)
from cedos.monitor.events import FlowOpened, FlowSample
from cedos.profiler.profiler import SizeLearned
from cedos.profiler.sizes import SizeHistory
from cedos.selector.objective import MaxS, WeightedCost
from predictors.base import Distribution

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
HOST = "198.51.100.1"
KEY = FlowKey(ip_address("10.0.0.2"), 4000, ip_address(HOST), 80)
ONLY_WLAN = Strategy(StrategyKind.SINGLE, ("wlan0",))
ONLY_LTE = Strategy(StrategyKind.SINGLE, ("lte0",))
MOVE = Decision(
    number=1,
    made_unix_s=109.0,
    transfer=Transfer(SizeEstimate(3000, 3000, 3000, "default")),
    context=Context(9.5, {}),
    evaluations=(),
    choice=ONLY_WLAN,
    objective="max-s",
    reason="",
)


class Rates:
    """Predictors to play with: a round trip and a rate per network; MPTCP adds the rates."""

    strategies = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
    features = ("size_bytes",)

    def __init__(self) -> None:
        self.rtt_s = {"wifi": 0.02, "cellular": 0.08}
        self.rate_bps = {"wifi": 1e6, "cellular": 20e6}
        self.alone = False

    def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
        bits = 8 * features["size_bytes"]
        times = {name: 2 * self.rtt_s[name] + bits / self.rate_bps[name] for name in self.rtt_s}
        if self.alone:  # no MPTCP
            return {name: Distribution((time_s,)) for name, time_s in times.items()}
        both = bits / sum(self.rate_bps.values())
        times["mptcp_wifi"] = 3 * self.rtt_s["wifi"] + both + 0.1
        times["mptcp_cellular"] = 3 * self.rtt_s["cellular"] + both + 0.1
        return {name: Distribution((time_s,)) for name, time_s in times.items()}


class Remembering:
    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.refuse = False

    async def set_default(self, network_name: str) -> None:
        self.asked.append(("default", network_name))

    async def set_mark(self, mark: int, network_name: str | None) -> None:
        self.asked.append(("mark", mark, network_name))

    async def set_destination(
        self, prefix: str, port: int | None, network_name: str | None
    ) -> None:
        if self.refuse:
            raise SteeringError("no")
        self.asked.append(("destination", prefix, port, network_name))

    async def steer_connection(self, token: int, strategy: Strategy) -> None:
        self.asked.append(("connection", token, strategy))


class Stage:
    def __init__(self) -> None:
        self.steer, self.flows, self.sizes, self.rates = (
            Remembering(), Flows(), SizeHistory(), Rates(),
        )  # fmt: skip
        self.decisions: list[Decision] = []
        choices = Choices(MaxS(), self.rates, 3000, margin=0.1, switch_cost_s=0.1)
        decider = Decider(choices, self.flows.idle_s, self.decisions.append, first_number=5)
        self.director = Director(self.steer, self.flows, self.sizes, decider)
        self.director.networks_changed([WLAN, LTE])

    async def reconsider(
        self, at_s: float = 10.0, alive: Sequence[str] = ("wlan0", "lte0")
    ) -> None:
        context = Context(
            at_s,
            {
                name: {"available": Indicator(float(name in alive), at_s)}
                for name in ("wlan0", "lte0")
            },
        )
        await self.director.reconsider(context)

    def connection(self) -> LivingFlow:
        flow = self.flows.opened(FlowOpened(KEY, 9.0, 109.0))
        self.flows.joined(7, KEY, 9.0)
        self.director.visited(flow, 9.0)
        return flow

    def asked(self) -> list[tuple[object, ...]]:
        asked, self.steer.asked = self.steer.asked, []
        return asked


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_new_connections_go_where_a_small_transfer_is_quickest(stage: Stage) -> None:
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    await stage.reconsider()
    assert stage.asked() == []  # nothing changed, nothing is done or recorded
    assert [each.number for each in stage.decisions] == [5]
    stage.rates.rtt_s["wifi"] = 0.5
    await stage.reconsider()
    assert stage.asked() == [("default", "lte0")]
    assert stage.director.default.decision is stage.decisions[-1]


async def test_a_program_goes_where_its_transfers_are_quickest(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    large = Transfer(SizeEstimate(10**7, 10**7, 10**7, "hint"), server_name="curl")
    context = Context(11.0, {"wlan0": {}, "lte0": {}})
    assert await stage.director.programs.began(0xCE000001, large, context) == "lte0"
    assert stage.asked() == [("mark", 0xCE000001, "lte0")]
    assert stage.decisions[-1].transfer == large
    await stage.reconsider()
    assert stage.asked() == []
    stage.rates.rate_bps["cellular"] = 1e5
    await stage.reconsider()
    assert stage.asked() == [("mark", 0xCE000001, "wlan0")]
    await stage.director.programs.ended(0xCE000001)
    assert stage.asked() == [("mark", 0xCE000001, None)]
    await stage.director.programs.ended(0xCE000001)
    await stage.reconsider()
    assert stage.asked() == []


async def test_a_small_advantage_does_not_move_the_default(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    bits = 8 * 3000
    stage.rates.rtt_s["cellular"] = 0.02 + bits / 1e6 / 2 - bits / 20e6 / 2 - 0.002
    await stage.reconsider()
    assert stage.asked() == []


async def test_a_dead_network_loses_the_default_at_once(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    await stage.reconsider(alive=("lte0",))
    assert stage.asked() == [("default", "lte0")]


async def test_a_destination_of_large_transfers_gets_its_own_rule_and_loses_it(
    stage: Stage,
) -> None:
    for _ in range(3):
        stage.sizes.learn(HOST, 80, Direction.DOWN, 4_000_000)
    stage.connection()
    await stage.reconsider()
    assert ("destination", f"{HOST}/32", 80, "lte0") in stage.asked()
    await stage.reconsider(at_s=10_000.0)  # nobody has gone there for hours
    assert stage.asked() == [("destination", f"{HOST}/32", 80, None)]


async def test_a_rule_that_was_refused_is_tried_again(stage: Stage) -> None:
    for _ in range(3):
        stage.sizes.learn(HOST, 80, Direction.DOWN, 4_000_000)
    stage.connection()
    stage.steer.refuse = True
    await stage.reconsider()
    stage.steer.refuse = False
    await stage.reconsider()
    assert ("destination", f"{HOST}/32", 80, "lte0") in stage.asked()


async def test_a_living_connection_moves_when_its_size_is_known(stage: Stage) -> None:
    flow = stage.connection()
    stage.director.moves.steerable(7, True)
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, SizeEstimate(3000, 3000, 3000, "default")))
    await stage.reconsider()
    assert flow.strategy == ONLY_WLAN
    assert stage.asked() == [("default", "wlan0")]
    exact = SizeEstimate(5_000_000, 5_000_000, 5_000_000, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, exact))
    await stage.reconsider()
    ((what, token, strategy),) = stage.asked()
    assert (what, token) == ("connection", 7)
    assert isinstance(strategy, Strategy)
    assert "lte0" in strategy.networks
    assert flow.strategy == strategy
    assert flow.decision == stage.decisions[-1].number
    assert stage.decisions[-1].transfer.flow == KEY


async def test_a_connection_without_a_spare_path_stays(stage: Stage) -> None:
    flow = stage.connection()
    exact = SizeEstimate(5_000_000, 5_000_000, 5_000_000, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, exact))
    await stage.reconsider()
    assert flow.strategy == ONLY_WLAN
    assert all(asked[0] != "connection" for asked in stage.asked())


async def test_a_stalled_connection_leaves_a_network_that_promised_more(stage: Stage) -> None:
    stage.rates.rate_bps = {"wifi": 50e6, "cellular": 5e6}
    stage.rates.rtt_s = {"wifi": 0.02, "cellular": 0.1}
    flow = stage.connection()
    stage.director.moves.steerable(7, True)
    exact = SizeEstimate(1_000_000, 1_000_000, 1_000_000, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, exact))
    look = FlowSample(KEY, 9.5, 1, 7, 0.02, 0.02, 1e6, 100_000, 0, 0, 0.01, 0)
    stage.flows.sampled([look], 9.5)
    await stage.reconsider()
    assert flow.strategy == ONLY_WLAN
    stage.flows.sampled([replace(look, idle_down_s=1.0)], 10.5)
    assert flow.rate_bps == 0.0
    await stage.reconsider()
    assert flow.strategy is not None
    assert "lte0" in flow.strategy.networks


async def test_a_hint_gives_its_destination_a_rule_at_once(stage: Stage) -> None:
    await stage.reconsider()
    stage.asked()
    size = SizeEstimate(9_000_000, 9_000_000, 9_000_000, "hint")
    context = Context(11.0, {})
    network = await stage.director.destinations.hinted(
        "203.0.113.0/24", 443, size, Direction.DOWN, 60.0, context
    )
    assert network == "lte0"
    assert stage.asked() == [("destination", "203.0.113.0/24", 443, "lte0")]
    await stage.reconsider(at_s=61.0)
    assert stage.asked() == [("destination", "203.0.113.0/24", 443, None)]


async def test_a_hint_that_is_taken_back_leaves_no_rule(stage: Stage) -> None:
    await stage.reconsider()
    size = SizeEstimate(9_000_000, 9_000_000, 9_000_000, "hint")
    context = Context(11.0, {})
    await stage.director.destinations.hinted(
        "203.0.113.0/24", 443, size, Direction.DOWN, 1e9, context
    )
    stage.asked()
    await stage.director.destinations.hint_ended("203.0.113.0/24", 443, context)
    assert stage.asked() == [("destination", "203.0.113.0/24", 443, None)]


async def test_without_any_network_nothing_is_steered(stage: Stage) -> None:
    stage.director.networks_changed([replace(WLAN, up=False), replace(LTE, up=False)])
    await stage.reconsider()
    assert stage.asked() == []
    assert stage.decisions[-1].choice.kind is StrategyKind.DEFER
    stage.director.networks_changed([WLAN, replace(LTE, up=False)])
    await stage.reconsider()
    assert stage.asked() == [("default", "wlan0")]
    assert stage.director.default.decision is not None
    assert stage.director.default.decision.choice == ONLY_WLAN


class Noise:
    """A context and predictors that wander: the same seed gives the same series."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.draw = random.Random(seed)

    async def second(self, at_s: float) -> None:
        """Both networks are alike but for noise of a third, new every second."""
        for role in ("wifi", "cellular"):
            self.stage.rates.rate_bps[role] = 10e6 * math.exp(self.draw.gauss(0.0, 0.33))
            self.stage.rates.rtt_s[role] = 0.04 * math.exp(self.draw.gauss(0.0, 0.33))
        await self.stage.reconsider(at_s)


@pytest.mark.parametrize("seed", range(5))
async def test_a_flow_does_not_flap_in_noise(stage: Stage, seed: int) -> None:
    """Ten minutes of a large download; every third second one network seems a lot better."""
    flow = stage.connection()
    stage.director.moves.steerable(7, True)
    exact = SizeEstimate(10**9, 10**9, 10**9, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, exact))
    stage.rates.alone = True
    noise = Noise(stage, seed)
    moves, would = 0, 0
    for second in range(600):
        now_s = float(second)
        before = flow.strategy
        await noise.second(now_s)
        moves += flow.strategy != before
        rates = stage.rates.rate_bps
        better = max(rates, key=rates.__getitem__)
        would += {"wifi": "wlan0", "cellular": "lte0"}[better] not in str(before)
    assert would > 150, "the series is not noisy enough to prove anything"
    assert moves <= 600 / 15, f"{moves} moves in ten minutes"


async def test_each_move_makes_the_next_one_dearer_for_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = stage.connection()
    stage.director.moves.steerable(7, True)
    exact = SizeEstimate(10**9, 10**9, 10**9, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, exact))
    stage.rates.alone = True
    now_s = 10.0

    async def moves_at(gain: float) -> bool:
        before = flow.strategy
        here, there = ("wifi", "cellular") if before == ONLY_WLAN else ("cellular", "wifi")
        stage.rates.rate_bps = {here: 10e6, there: 10e6 * gain}
        await stage.reconsider(now_s)
        return flow.strategy != before

    assert await moves_at(1.15)
    assert not await moves_at(1.15)
    # Somebody sets the clock by an hour, to and fro: seconds are seconds.
    for set_to_unix_s in (time.time() + 3600.0, time.time() - 3600.0):
        monkeypatch.setattr(time, "time", lambda now=set_to_unix_s: now)
        assert not await moves_at(1.15)
    assert await moves_at(1.6)
    assert not await moves_at(1.6)
    now_s += 31.0
    # Of what was expected to take 800 s, 31 have passed: 20 % are saved, where 30 % were too few.
    assert await moves_at(1.3)


async def test_a_flow_leaves_a_network_that_fell_silent_however_often_it_moved(
    stage: Stage,
) -> None:
    flow = stage.connection()
    stage.director.moves.steerable(7, True)
    exact = SizeEstimate(10**5, 10**5, 10**5, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, exact))
    stage.rates.rate_bps["wifi"] = 30e6  # before it fell silent
    for choice in (ONLY_LTE, ONLY_WLAN) * 5:
        flow.decided(replace(MOVE, choice=choice))
    stage.rates.alone = True
    silent = {"wlan0": {"silence_s": Indicator(0.4, 10.0)}, "lte0": {}}
    await stage.director.reconsider(Context(10.0, silent))
    assert flow.strategy == ONLY_LTE
    assert stage.director.default.decision is not None
    assert stage.director.default.decision.choice == ONLY_LTE
    said = "wlan0 has been silent for 0.4 s while something was expected of it"
    assert any(said in each.reason for each in stage.decisions)


SHORT, LONG, LATER = Label(), Label(bulk=Bulk.LARGE), Label(Urgency.BACKGROUND)


@pytest.mark.parametrize(("can", "may", "s_per_j", "label", "expected"), [
    (True, True, 0.0, SHORT, "redundant(wlan0, lte0)"), (True, True, 1.0, SHORT, "single(wlan0)"),
    (True, False, 0.0, SHORT, "single(wlan0)"), (False, True, 0.0, SHORT, "single(wlan0)"),
    (True, True, 0.0, LONG, "single(wlan0)"), (True, True, 0.0, LATER, "single(wlan0)"),
])  # fmt: skip
async def test_a_program_that_can_send_twice_does_where_it_may_and_where_it_pays(
    stage: Stage, can: bool, may: bool, s_per_j: float, label: Label, expected: str
) -> None:
    class Gamble(Rates):
        def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
            return {name: Distribution((0.1,) * 9 + (10.0,)) for name in self.rtt_s}

    decisions: list[Decision] = []
    choices = Choices(
        WeightedCost(s_per_j), Gamble(), 3000, margin=0.1, switch_cost_s=0.1, redundant=may
    )
    decider = Decider(choices, stage.flows.idle_s, decisions.append)
    decider.networks = [WLAN, LTE]
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=label)
    decision = decider.choose(transfer, Context(10.0, {}), redundant=can)
    assert str(decision.choice) == expected
    assert decisions == [decision], "it is recorded, so that it can be explained"
    assert ("hedged" in decision.reason) is expected.startswith("redundant")
    assert stage.asked() == [], "whoever asked carries it out"


async def test_a_program_that_can_spread_a_transfer_may_be_told_to(stage: Stage) -> None:
    class Together(Rates):
        def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
            quick, slow = Distribution((1.0,) * 10), Distribution((2.0,) * 10)
            return {"wifi": slow, "cellular": slow, "mptcp_wifi": quick, "mptcp_cellular": slow}

    choices = Choices(WeightedCost(), Together(), 3000, margin=0.1, switch_cost_s=0.1)
    decider = Decider(choices, stage.flows.idle_s, [].append)
    decider.networks = [WLAN, LTE]
    transfer = Transfer(SizeEstimate(10**7, 10**7, 10**7, "hint"), label=LONG)
    chosen = [
        str(decider.choose(transfer, Context(10.0, {}), redundant=False, multipath=can).choice)
        for can in (True, False)
    ]
    assert chosen == ["mptcp(wlan0, lte0)", "single(wlan0)"]
