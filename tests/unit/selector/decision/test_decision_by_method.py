"""The methods of taking uncertainty, in the daemon's own decision: when each sends twice, and says so."""

from typing import Any

import pytest

from cedos.model import Context, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.objective import WeightedCost
from cedos.selector.uncertainty.bayesian import Bayesian
from cedos.selector.uncertainty.brute_force import BruteForce
from cedos.selector.uncertainty.error_bounds import ErrorBounds, prediction_interval
from cedos.selector.uncertainty.evaluator import Evaluator
from cedos.selector.uncertainty.trusting import Trusting

HEDGED = frozenset({StrategyKind.SINGLE, StrategyKind.REDUNDANT})
# Wi-Fi is usually faster, and sometimes hangs; cellular is a little slower and sure.
WIFI = (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 2.0)
SURE = (0.4,) * 10


def decided(host: Any, method: type[Evaluator], s_per_j: float = 0.0, wifi: Any = WIFI) -> Any:
    return decide(Case(
        host.transfer(3_000), Context(1000.0, {}), host.both, host.oracle(wifi=wifi, cellular=SURE),
        WeightedCost(s_per_j), number=1, made_unix_s=0.0, kinds=HEDGED, method=method,
    ))  # fmt: skip


@pytest.mark.parametrize("method", [BruteForce, Bayesian, ErrorBounds])
def test_what_is_not_certain_is_sent_twice_where_that_is_free(
    host: Any, method: type[Evaluator]
) -> None:
    decision = decided(host, method)
    assert decision.choice.kind == StrategyKind.REDUNDANT
    # What everybody does by default need not be said.
    assert (method.words in decision.reason) is (method is not BruteForce)


def test_who_trusts_predictions_never_sends_twice_and_takes_the_usual_time(host: Any) -> None:
    decision = decided(host, Trusting)
    assert str(decision.choice) == "single(wlan0)"
    times = {str(each.strategy): each.time_s for each in decision.evaluations}
    assert times["single(wlan0)"] == pytest.approx(0.1)
    assert times["redundant(wlan0, lte0)"] == pytest.approx(0.1)
    assert "taken as certain" in decision.reason


def test_error_bounds_pay_for_what_can_be_saved_at_most(host: Any) -> None:
    """Cellular is on until its earliest end, and Wi-Fi at its worst: from bound to bound is saved."""
    bounds = {network: prediction_interval(of) for network, of in (("wlan0", WIFI), ("lte0", SURE))}
    free = {str(each.strategy): each for each in decided(host, ErrorBounds).evaluations}
    alone = free["single(wlan0)"]
    saved_s = bounds["wlan0"][2] - bounds["lte0"][0]
    assert free["redundant(wlan0, lte0)"].cost == pytest.approx(alone.cost - saved_s)
    # Cellular's tail alone is 6.5 J: no brute force would pay so much for a hang in ten.
    price = 0.9 * saved_s / 7.2
    assert decided(host, ErrorBounds, price).choice.kind == StrategyKind.REDUNDANT
    assert decided(host, BruteForce, price).choice.kind == StrategyKind.SINGLE
    assert decided(host, ErrorBounds, 1.2 * saved_s / 6.5).choice.kind == StrategyKind.SINGLE


def test_bounds_that_do_not_overlap_leave_nothing_to_hedge(host: Any) -> None:
    decision = decided(host, ErrorBounds, 0.01, wifi=(0.1,) * 10)
    assert str(decision.choice) == "single(wlan0)"
