from typing import Any

import pytest

from cedos.model import Context, Indicator
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.own_queue import emptied, own_queues, queued
from cedos.selector.decision.roles import Roles, assign
from predictors.base import Distribution

NOW_S = 100.0


@pytest.fixture
def roles(host: Any) -> Roles:
    return assign(host.both)


def context(*, delivery_age_s: float = 0.1, **indicators: float) -> Context:
    """A cellular network with a round trip of 300 ms, and of 60 ms when it is empty."""
    known = {"rtt_s": 0.3, "rtt_min_s": 0.06} | indicators
    indicators = {
        name: Indicator(value, NOW_S - (delivery_age_s if "delivery" in name else 0.1))
        for name, value in known.items()
    }
    return Context(NOW_S, {"lte0": indicators})


def test_whoever_fills_a_network_has_made_its_queue(roles: Roles) -> None:
    full = context(past1_bps=1e7, delivery_down_bps=8e6)
    assert own_queues(full, roles) == {"cellular": pytest.approx(0.24)}
    up = context(past1_bps=1e7, past1_up_bps=1e6, delivery_up_bps=9e5)
    assert own_queues(up, roles) == {"cellular": pytest.approx(0.24)}


@pytest.mark.parametrize(
    "not_ours",
    [
        context(),
        context(past1_bps=1e7),
        context(past1_bps=1e7, delivery_down_bps=4e6),
        context(past1_bps=1e7, delivery_down_bps=8e6, delivery_age_s=2.0),
        context(past1_bps=1e7, delivery_down_bps=8e6, rtt_s=0.07),
        context(delivery_down_bps=8e6),
        Context(NOW_S, {}),
    ],
)
def test_what_we_did_not_fill_is_long_for_its_own_reasons(not_ours: Context, roles: Roles) -> None:
    assert own_queues(not_ours, roles) == {}


def test_models_see_the_empty_path_and_the_queue_is_added(roles: Roles) -> None:
    columns = {"size_bytes": 3e3, "cellular_rtt_s": 0.3, "wifi_rtt_s": 0.02}
    queues_s = {"cellular": 0.24}
    shown = emptied(columns, queues_s)
    assert shown == columns | {"cellular_rtt_s": pytest.approx(0.06)}
    assert emptied({"size_bytes": 3e3}, queues_s) == {"size_bytes": 3e3}
    time = Distribution((0.1, 0.2))
    assert queued(("cellular",), time, queues_s).samples == pytest.approx((0.58, 0.68))
    assert queued(("cellular", "wifi"), time, queues_s).samples == pytest.approx((0.58, 0.68))
    assert queued(("wifi", "cellular"), time, queues_s) is time


class TwoRoundTrips:
    """Predictors that know of nothing but round trips."""

    features = ("size_bytes", "wifi_rtt_s", "cellular_rtt_s")

    def predict(self, columns: Any, /) -> dict[str, Distribution]:
        return {
            role: Distribution(tuple(2.0 * columns[f"{role}_rtt_s"] for _ in range(5)))
            for role in ("wifi", "cellular")
        }


def test_a_decision_counts_the_queue_once(host: Any) -> None:
    known = context(past1_bps=1e7, delivery_down_bps=8e6).networks
    wifi = {"rtt_s": Indicator(0.02, NOW_S)}
    both = Context(NOW_S, {**known, "wlan0": wifi})
    decision = decide(
        Case(host.transfer(3_000), both, host.both, TwoRoundTrips(), number=1, made_unix_s=1.0)
    )
    times = {each.strategy.networks: each.time_s for each in decision.evaluations}
    assert times["lte0",] == pytest.approx(2 * 0.06 + 2 * 0.24)
    assert times["wlan0",] == pytest.approx(0.04)
