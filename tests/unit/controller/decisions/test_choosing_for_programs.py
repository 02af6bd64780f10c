"""What is chosen for a program that carries its transfer out itself."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.api.programs import ChoiceRequest
from cedos.controller.decisions.decider import Decider
from cedos.daemon.api_backend import ApiBackend
from cedos.daemon.decisions.choices import Choices
from cedos.errors import ConfigError
from cedos.model import (
    Bulk,
    Context,
    Decision,
    Indicator,
    Label,
    SizeEstimate,
    Transfer,
    Urgency,
)
from cedos.selector.decision.case import Sent
from cedos.selector.decision.sessions import Detour
from cedos.selector.objective import WeightedCost
from predictors.base import Distribution

pytestmark = pytest.mark.anyio

Stage = Any
SHORT, LONG, LATER = Label(), Label(bulk=Bulk.LARGE), Label(Urgency.BACKGROUND)


class Fixed:
    """Predictions that no size changes."""

    features: Sequence[str] = ()

    def __init__(self, **times: Distribution) -> None:
        self.times = times

    def predict(self, features: Mapping[str, float]) -> dict[str, Distribution]:
        return self.times


@pytest.mark.parametrize(("can", "may", "s_per_j", "label", "expected"), [
    (True, True, 0.0, SHORT, "redundant(wlan0, lte0)"), (True, True, 1.0, SHORT, "single(wlan0)"),
    (True, False, 0.0, SHORT, "single(wlan0)"), (False, True, 0.0, SHORT, "single(wlan0)"),
    (True, True, 0.0, LONG, "single(wlan0)"), (True, True, 0.0, LATER, "single(wlan0)"),
])  # fmt: skip
async def test_a_program_that_can_send_twice_does_where_it_may_and_where_it_pays(
    stage: Stage, can: bool, may: bool, s_per_j: float, label: Label, expected: str
) -> None:
    gamble = Distribution((0.1,) * 9 + (10.0,))
    model = Fixed(wifi=gamble, cellular=gamble)
    decisions: list[Decision] = []
    choices = Choices(
        WeightedCost(s_per_j), model, 3000, margin=0.1, switch_cost_s=0.1, redundant=may
    )
    decider = Decider(choices, stage.flows.idle_s, decisions.append)
    decider.networks_changed([stage.wlan, stage.lte])
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=label)
    decision = decider.choose(transfer, Context(10.0, {}), redundant=can)
    assert str(decision.choice) == expected
    assert decisions == [decision], "it is recorded, so that it can be explained"
    assert ("Sending twice saves" in decision.reason) is expected.startswith("redundant")
    # Who asked for both and gets one is told where that is switched on.
    off = can and not may and label == SHORT
    assert ("[decision] redundant = false" in decision.reason) is off
    assert stage.asked() == [], "whoever asked carries it out"


async def test_a_program_that_can_spread_a_transfer_may_be_told_to(stage: Stage) -> None:
    quick, slow = Distribution((1.0,) * 10), Distribution((2.0,) * 10)
    model = Fixed(wifi=slow, cellular=slow, mptcp_wifi=quick, mptcp_cellular=slow)
    choices = Choices(WeightedCost(), model, 3000, margin=0.1, switch_cost_s=0.1)
    decider = Decider(choices, stage.flows.idle_s, [].append)
    decider.networks_changed([stage.wlan, stage.lte])
    transfer = Transfer(SizeEstimate(10**7, 10**7, 10**7, "hint"), label=LONG)
    chosen = [
        str(decider.choose(transfer, Context(10.0, {}), redundant=False, multipath=can).choice)
        for can in (True, False)
    ]
    assert chosen == ["mptcp(wlan0, lte0)", "single(wlan0)"]


@pytest.mark.parametrize(("waited_s", "expected"), [
    (0.0, "single(wlan0)"), (0.05, "single(wlan0)"), (0.2, "redundant(wlan0, lte0)"),
    (0.3, "single(lte0)"),
])  # fmt: skip
async def test_sending_twice_begins_when_the_first_copy_stays_silent(
    stage: Stage, waited_s: float, expected: str
) -> None:
    wifi, cellular = Distribution((0.1,) * 18 + (0.25, 10.0)), Distribution((0.3,) * 20)
    choices = Choices(
        WeightedCost(0.0, 3e-4),  # 1.2 s for 4 kB: not worth it for a mean of 0.6 s
        Fixed(wifi=wifi, cellular=cellular), 3000, margin=0.1, switch_cost_s=0.1, redundant=True,
    )  # fmt: skip
    decider = Decider(choices, stage.flows.idle_s, [].append)
    decider.networks_changed([stage.wlan, stage.lte])
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=SHORT)
    decision = decider.choose(
        transfer, Context(10.0, {}), redundant=True, sent=Sent("wlan0", waited_s)
    )
    assert str(decision.choice) == expected
    assert "No answer over wlan0 for " in decision.reason
    staying = decision.evaluations[0]
    left_s = [time_s - waited_s for time_s in wifi.samples if time_s > waited_s]
    assert staying.time_s == pytest.approx(sum(left_s) / len(left_s))


async def test_what_was_sent_over_a_metered_network_is_paid(stage: Stage) -> None:
    """Of both copies only the second one still costs."""
    times = Fixed(wifi=Distribution((1.0,) * 5), cellular=Distribution((1.0,) * 5))
    choices = Choices(
        WeightedCost(0.0, 1.0), times, 3000, margin=0.1, switch_cost_s=0.1, redundant=True
    )
    decider = Decider(choices, stage.flows.idle_s, [].append)
    decider.networks_changed([stage.wlan, stage.lte])
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=SHORT)
    for sent, metered in (None, [0, 4000, 4000]), (Sent("lte0", 0.1), [0, 0, 0]):
        decision = decider.choose(transfer, Context(10.0, {}), redundant=True, sent=sent)
        assert [each.metered_bytes for each in decision.evaluations] == metered


async def test_a_route_is_recorded_with_its_reason(stage: Stage) -> None:
    same = Distribution((0.2,) * 10)
    decisions: list[Decision] = []
    choices = Choices(
        WeightedCost(), Fixed(wifi=same, cellular=same), 3000, margin=0.1, switch_cost_s=0.1
    )
    decider = Decider(choices, stage.flows.idle_s, decisions.append)
    decider.networks_changed([stage.wlan, stage.lte])
    transfer = Transfer(SizeEstimate(4000, 4000, 4000, "hint"), label=SHORT)
    for rtt_s, direct in ((0.01, False), (2.0, True)):
        decision, route = decider.choose_route(
            transfer, Context(10.0, {}), redundant=True, multipath=True, detour=Detour(rtt_s, 443)
        )
        assert route is not None
        assert route.direct is direct
        assert decision.reason.startswith("direct: " if direct else "through the gateway")
        assert decisions[-1] == decision


async def test_the_control_socket_knows_networks_by_name_and_interface(stage: Stage) -> None:
    others = (
        "flows reliability hints log budgets hard_budgets prefetching transfers probing problems"
        " usage history history_file"
    )
    others += (
        " open_sockets config_file usage history_file carried closed host_defaults rules_changed"
    )
    parts: Any = dict.fromkeys(others.split())
    observer: Any = SimpleNamespace(context=lambda: Context(10.0, {}))
    backend = ApiBackend(director=stage.director, observer=observer, dry_run=False, **parts)
    stage.director.decider.networks_changed([replace(stage.wlan, name="home"), stage.lte])
    for name in ("home", "wlan0"):
        request = ChoiceRequest(size_bytes=4000, redundant=True, sent_over=name, waited_s=0.25)
        assert "No answer over home for 0.25 s so far" in (await backend.choose(request)).reason
    with pytest.raises(ConfigError, match=r"no network eth7. The networks are: home, lte0"):
        await backend.choose(ChoiceRequest(size_bytes=4000, sent_over="eth7"))


@pytest.mark.parametrize("multipath", [True, False])
async def test_what_can_be_spread_looks_at_a_network_whose_rate_is_old(
    stage: Stage, multipath: bool
) -> None:
    slow_once = Distribution((2.0,) * 3 + (40.0,) * 17)
    model = Fixed(
        wifi=slow_once, cellular=Distribution((6.0,)), mptcp_cellular=Distribution((7.0,))
    )
    decisions: list[Decision] = []
    decider = Decider(
        Choices(WeightedCost(), model, 3000, margin=0.1, switch_cost_s=0.1),
        stage.flows.idle_s,
        decisions.append,
    )
    decider.networks_changed([stage.wlan, stage.lte])
    transfer = Transfer(SizeEstimate(16_000_000, 16_000_000, 16_000_000, "hint"), label=LONG)
    known = {"wlan0": {"past1_bps": Indicator(4e6, 0.0)}}
    made = decider.choose(transfer, Context(10.0, known), redundant=False, multipath=multipath)
    assert str(made.choice) == ("mptcp(lte0, wlan0)" if multipath else "single(lte0)")
    assert ("to show what it does" in made.reason) is multipath
    assert decisions == [made]
