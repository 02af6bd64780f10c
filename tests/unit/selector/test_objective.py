import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.models import shipped

from cedos.model import (
    Context,
    Direction,
    Indicator,
    Network,
    NetworkKind,
    PhoneUse,
    SizeEstimate,
    Transfer,
)
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.objective import MaxS, MaxSPerE, Outcome, WeightedCost

positive = st.floats(1e-3, 1e6)


outcomes = st.builds(
    Outcome, positive, positive, st.floats(0, 1e9), st.floats(1, 1e9), st.floats(0, 1e6)
)


objectives = st.one_of(
    st.just(MaxS()),
    st.builds(WeightedCost, st.floats(0, 10), st.floats(0, 1e-3)),
    st.builds(MaxSPerE, st.floats(0, 3), st.floats(0, 3), st.floats(0, 3)),
)


def papers_objective(outcome, alpha, beta, gamma):
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
def test_the_order_is_that_of_the_papers_objective(outcomes, exponents):
    objective = MaxSPerE(*exponents)
    best = min(outcomes, key=objective.cost)
    papers = [papers_objective(outcome, *exponents) for outcome in outcomes]
    assert papers_objective(best, *exponents) == pytest.approx(max(papers), rel=1e-6)


@given(objectives, outcomes, st.floats(1.0, 10.0), st.sampled_from([0, 1, 2, 4]))
def test_more_of_anything_never_costs_less(objective, outcome, factor, which):
    dearer = list(outcome)
    dearer[which] *= factor
    assert objective.cost(Outcome(*dearer)) >= objective.cost(outcome)


def test_seconds_joules_and_bytes_add_up_in_one_currency():
    cost = WeightedCost(s_per_j=0.2, s_per_metered_byte=1e-6).cost(Outcome(3.0, 10.0, 2e6, 2e6))
    assert math.isclose(cost, 3.0 + 2.0 + 2.0)
    assert WeightedCost().cost(Outcome(3.0, 10.0, 2e6, 2e6)) == 3.0
    assert MaxS().cost(Outcome(3.0, 10.0, 2e6, 2e6)) == 3.0


def test_a_metered_network_must_save_what_people_notice_and_a_free_one_nothing():
    balanced = WeightedCost(s_per_metered_byte=1e-7, noticeable_s=0.1)
    free, metered = Outcome(0.5, 0.0, 0.0, 1e4), Outcome(0.45, 0.0, 1e4, 1e4)
    assert balanced.cost(free) < balanced.cost(metered)
    assert balanced.cost(metered._replace(time_s=0.39)) < balanced.cost(free)
    assert WeightedCost(s_per_metered_byte=1e-7).cost(metered) < balanced.cost(free)


RECORD = {"number": 7, "made_unix_s": 1.7e9}


def test_a_network_with_a_price_is_left_for_a_cheaper_one(host):
    model = host.oracle(wifi=1.2, cellular=1.0)
    objective = MaxSPerE(beta=0.0, gamma=1.0)
    nothing = Context(1000.0, {})
    for prices, expected in (
        ({"wlan0": 0.002, "lte0": 0.001}, "single(lte0)"),
        ({"wlan0": 0.001, "lte0": 0.002}, "single(wlan0)"),
    ):
        decision = decide(
            Case(
                host.transfer(), nothing, host.both, model, objective, price_per_mb=prices, **RECORD
            )
        )
        assert str(decision.choice) == expected


@pytest.mark.parametrize("size_mb", [1.0, 5.0, 30.0])
@pytest.mark.parametrize(
    ("wifi_mbps", "use", "by_phone"),
    [
        (20.0, PhoneUse.TO_SAVE_TIME, False),
        (8.0, PhoneUse.TO_SAVE_TIME, False),
        (0.3, PhoneUse.TO_SAVE_TIME, True),
        (0.3, PhoneUse.WITHOUT_WIFI, False),
        (20.0, PhoneUse.WITHOUT_WIFI, False),
        (2.0, PhoneUse.FREELY, True),
    ],
)
def test_bulk_data_goes_by_phone_only_where_wifi_does_not_suffice(
    size_mb, wifi_mbps, use, by_phone
):
    """30 MB on Wi-Fi of 20 Mbit/s took 6 to 12 MB of phone data to save seconds."""
    rates = {"wlan0": (1e6 * wifi_mbps, 0.03), "lte0": (8e6, 0.06)}
    context = Context(
        1000.0,
        {
            name: {
                "rtt_s": Indicator(rtt_s, 999.0),
                "ping_loss": Indicator(0.0, 999.0),
                **{f"past{n}_bps": Indicator(rate_bps, 999.0) for n in (1, 5, 10)},
            }
            for name, (rate_bps, rtt_s) in rates.items()
        },
    )
    networks = (
        Network("wlan0", "wlan0", 3, NetworkKind.WIFI, metered=False),
        Network("lte0", "lte0", 4, NetworkKind.CELLULAR, metered=True),
    )
    size = int(size_mb * 1e6)
    transfer = Transfer(SizeEstimate(size, size, size, "hint"), Direction.DOWN)
    objective = WeightedCost(s_per_j=0.01).for_phone(use)
    decision = decide(Case(transfer, context, networks, shipped(), objective, number=1))
    assert ("lte0" in decision.choice.networks) is by_phone
