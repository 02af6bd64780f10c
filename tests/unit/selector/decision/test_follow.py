from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Context
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.follow import PROHIBITIVE, Curves, Exponents

share = st.floats(0.0, 1.0)
RECORD = {"number": 7, "made_unix_s": 1.7e9}


def test_on_mains_power_without_a_limit_only_speed_counts() -> None:
    assert Curves().exponents(None, None) == Exponents(1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("battery", "beta"), [(1.0, 0.0), (0.8, 0.0), (0.45, 1.0), (0.1, 2.0), (0.01, 2.0)]
)
def test_beta_rises_as_the_battery_falls(battery: float, beta: float) -> None:
    assert Curves().exponents(battery, None).beta == pytest.approx(beta)


@pytest.mark.parametrize(
    ("plan", "gamma"),
    [(0.0, 0.0), (0.5, 0.0), (0.75, 0.5), (0.99, 0.98), (1.0, PROHIBITIVE), (3.0, PROHIBITIVE)],
)
def test_gamma_rises_as_the_plan_is_used_and_forbids_at_its_end(plan: float, gamma: float) -> None:
    assert Curves().exponents(None, plan).gamma == pytest.approx(gamma)


@given(share, share)
def test_less_left_never_weighs_less(a: float, b: float) -> None:
    less, more = sorted((a, b))
    curves = Curves()
    assert curves.exponents(less, None).beta >= curves.exponents(more, None).beta
    assert curves.exponents(None, more).gamma >= curves.exponents(None, less).gamma


def test_the_choice_follows(host: Any) -> None:
    """Cellular four times as fast: taken on mains, left when the battery or the plan is empty."""
    model = host.oracle(wifi=4.0, cellular=1.0)
    nothing = Context(1000.0, {})

    def choice(battery: float | None, plan: float | None) -> tuple[str, str]:
        decision = decide(Case(
            host.transfer(1_000_000), nothing, host.both, model,
            Curves().objective(battery, plan), **RECORD,
        ))  # fmt: skip
        return str(decision.choice), decision.reason

    assert choice(None, None)[0] == choice(0.9, 0.2)[0] == "single(lte0)"
    chosen, why = choice(0.1, None)
    assert chosen == "single(wlan0)"
    assert "battery is at 10 %, so energy has exponent 2" in why
    chosen, why = choice(None, 1.2)
    assert chosen == "single(wlan0)"
    assert "data plan is used up" in why


def test_a_network_with_a_price_is_left_for_a_cheaper_one(host: Any) -> None:
    model = host.oracle(wifi=1.2, cellular=1.0)
    objective = Curves(gamma_unused=1.0).objective(None, None)
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
