import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.objective import MaxS, MaxSPerE, Objective, Outcome, WeightedCost

positive = st.floats(1e-3, 1e6)
outcomes = st.builds(
    Outcome, positive, positive, st.floats(0, 1e9), st.floats(1, 1e9), st.floats(0, 1e6)
)
objectives = st.one_of(
    st.just(MaxS()),
    st.builds(WeightedCost, st.floats(0, 10), st.floats(0, 1e-3)),
    st.builds(MaxSPerE, st.floats(0, 3), st.floats(0, 3), st.floats(0, 3)),
)


def papers_objective(outcome: Outcome, alpha: float, beta: float, gamma: float) -> float:
    """Delphi, equations 3 to 5, as printed."""
    f, t = outcome.size_bytes, outcome.time_s
    s = f / t
    e = outcome.energy_j / f
    m = outcome.money / f
    return s**alpha / (e**beta * m**gamma)


@given(
    st.lists(
        st.builds(Outcome, positive, positive, st.just(0.0), st.just(1e6), st.floats(1e-2, 1e6)),
        min_size=2,
        max_size=5,
    ),
    st.sampled_from([(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (1.0, 1.0, 0.0), (1.0, 2.0, 1.0)]),
)
def test_the_order_is_that_of_the_papers_objective(
    outcomes: list[Outcome], exponents: tuple[float, float, float]
) -> None:
    objective = MaxSPerE(*exponents)
    best = min(outcomes, key=objective.cost)
    papers = [papers_objective(outcome, *exponents) for outcome in outcomes]
    assert papers_objective(best, *exponents) == pytest.approx(max(papers), rel=1e-6)


@given(objectives, outcomes, st.floats(1.0, 10.0), st.sampled_from([0, 1, 2, 4]))
def test_more_of_anything_never_costs_less(
    objective: Objective, outcome: Outcome, factor: float, which: int
) -> None:
    dearer = list(outcome)
    dearer[which] *= factor
    assert objective.cost(Outcome(*dearer)) >= objective.cost(outcome)


def test_seconds_joules_and_bytes_add_up_in_one_currency() -> None:
    cost = WeightedCost(s_per_j=0.2, s_per_metered_byte=1e-6).cost(Outcome(3.0, 10.0, 2e6, 2e6))
    assert math.isclose(cost, 3.0 + 2.0 + 2.0)
    assert WeightedCost().cost(Outcome(3.0, 10.0, 2e6, 2e6)) == 3.0
    assert MaxS().cost(Outcome(3.0, 10.0, 2e6, 2e6)) == 3.0


def test_free_networks_are_better_than_any_price_and_still_differ() -> None:
    objective = MaxSPerE(gamma=1.0)
    free_fast = objective.cost(Outcome(1.0, 1.0, 0.0, 1e6))
    free_slow = objective.cost(Outcome(2.0, 1.0, 0.0, 1e6))
    paid = objective.cost(Outcome(0.5, 1.0, 1e6, 1e6, 0.01))
    assert free_fast < free_slow < paid


def test_a_transfer_of_no_bytes_has_a_cost() -> None:
    assert MaxSPerE().cost(Outcome(0.1, 0.1, 0.0, 0.0)) > 0.0


def test_a_metered_network_must_save_what_people_notice_and_a_free_one_nothing() -> None:
    balanced = WeightedCost(s_per_metered_byte=1e-7, noticeable_s=0.1)
    free, metered = Outcome(0.5, 0.0, 0.0, 1e4), Outcome(0.45, 0.0, 1e4, 1e4)
    assert balanced.cost(free) < balanced.cost(metered)
    assert balanced.cost(metered._replace(time_s=0.39)) < balanced.cost(free)
    assert WeightedCost(s_per_metered_byte=1e-7).cost(metered) < balanced.cost(free)
