"""Which finished flows tell the budgets of a choice."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.controller.events import FlowClosed, FlowOpened
from cedos.controller.flows.living_flow import LivingFlow
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.loop.opportunities import Opportunities
from cedos.model import (
    Context,
    Decision,
    Direction,
    FlowKey,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
)

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
OVER_LTE = FlowKey(ip_address("10.1.0.2"), 4000, ip_address("198.51.100.1"), 80)
CONTEXT = Context(9.0, {})


def decision(network: str) -> Decision:
    size = SizeEstimate(3000, 3000, 3000, "prior")
    return Decision(
        number=5, made_unix_s=100.0, transfer=Transfer(size, Direction.DOWN), context=CONTEXT,
        evaluations=(), choice=Strategy(StrategyKind.SINGLE, (network,)), objective="balanced",
        reason="",
    )  # fmt: skip


@pytest.fixture
def offered() -> list[Any]:
    return []


@pytest.fixture
def finish(offered: list[Any]) -> Any:
    """A flow over LTE begins while a network is chosen, carries a megabyte and ends."""
    budgets = SimpleNamespace(
        keepers={"data": None}, offered=lambda options, taken: offered.append((options, taken))
    )
    ways = [
        SimpleNamespace(
            strategy=Strategy(StrategyKind.SINGLE, (name,)), time_s=time_s, energy_j=1.0
        )
        for name, time_s in (("wlan0", 2.0), ("lte0", 1.0))
    ]
    decider = SimpleNamespace(weighed=lambda transfer, context: ways)
    opportunities = Opportunities(budgets, decider)  # type: ignore[arg-type]

    def finish(chosen: str | None, key: FlowKey = OVER_LTE) -> LivingFlow:
        flows = LivingFlows()
        flows.networks_changed([WLAN, LTE])
        flow = flows.on_open(FlowOpened(key, 9.0, 100.0))
        if key.protocol == "tcp":
            flow.note_leading(None if chosen is None else decision(chosen))
        record = flows.on_close(FlowClosed(key, 102.0, 1_000_000, 80))
        assert record is not None
        opportunities.finished(flow, record, lambda: CONTEXT)
        return flow

    return finish


def test_what_followed_the_choice_is_one(finish: Any, offered: list[Any]) -> None:
    assert finish("lte0").decision == 5
    ((options, taken),) = offered
    assert [name for name, *_ in options] == ["wlan0", "lte0"]
    assert taken == 1


@pytest.mark.parametrize("chosen", ["wlan0", None])
def test_a_program_bound_to_an_interface_bought_nothing(
    finish: Any, offered: list[Any], chosen: str | None
) -> None:
    """Wi-Fi was chosen, the program went over LTE all the same: no demand, and no seconds saved."""
    assert finish(chosen).decision is None
    assert not offered


def test_udp_flows_are_not_told_apart(finish: Any, offered: list[Any]) -> None:
    finish(None, replace(OVER_LTE, protocol="udp"))
    assert len(offered) == 1
