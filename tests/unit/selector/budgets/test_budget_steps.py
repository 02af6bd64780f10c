"""A quote written down as steps says of every amount what the quote itself says, or a little more."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.model import Increment
from cedos.selector.budgets.controller import Option
from cedos.selector.budgets.increments import IncrementQuote
from cedos.selector.budgets.odyssey import Odyssey
from cedos.selector.budgets.pacer import Pacer
from cedos.selector.budgets.steps import DURATION_S, SteppedQuote, steps
from cedos.selector.budgets.supply import PROHIBITIVE


@dataclass(frozen=True)
class Jumps:
    """Cheap up to an amount, dear beyond it, and not to be had beyond another."""

    cheap: float
    most: float
    rate: float = 1e-7

    def rate_for(self, amount: float, duration_s: float) -> float:
        if amount > self.most:
            return PROHIBITIVE
        return self.rate if amount <= self.cheap else 1000.0 * self.rate


@settings(max_examples=100, deadline=None)
@given(
    cheap=st.floats(1e-5, 1.0), most=st.floats(0.1, 1.2), amount=st.floats(1e-7, 1.1)
)  # fmt: skip
def test_jumps_are_known_to_a_hundredth(cheap: float, most: float, amount: float) -> None:
    quote = Jumps(1e9 * cheap, 1e9 * most)
    stepped = SteppedQuote(quote.rate, steps(quote, 1e9)).rate_for(1e9 * amount, 1.0)
    assert stepped >= quote.rate_for(1e9 * amount, DURATION_S) or amount > 1.0
    assert stepped <= quote.rate_for(1e9 * amount * 1.011, DURATION_S) or amount > 0.98


@pytest.mark.parametrize("make", [Pacer, Odyssey])
def test_controllers_prices_are_told_closely(make: type[Pacer] | type[Odyssey]) -> None:
    controller = make(4e9, 0.0, 30 * 86_400.0)
    for number in range(2000):
        now_s, size = number * 600.0, 10.0 ** (4 + (number * 7 % 35) / 10)
        controller.observe(now_s, 4e9 - number * 0.8e6)
        options = [Option(0.01 * (number * 13 % 97), 0.0), Option(0.1, size)]
        controller.offered(now_s, options, options[1])
    quote, left = controller.quote(1.2e6), 2e9
    found = steps(quote, left)
    assert 2 < len(found) < 200
    stepped = SteppedQuote(quote.rate, found)
    for number in range(1, 900):
        amount = left * number / 1000
        exact = quote.rate_for(amount, DURATION_S)
        assert exact * 0.999 <= stepped.rate_for(amount, 1.0) <= 1.21 * quote.rate_for(
            amount * 1.011, DURATION_S
        )  # fmt: skip


def test_what_is_spent_has_no_steps() -> None:
    assert steps(Jumps(1.0, 0.0), 1e9) == []
    assert steps(Jumps(1.0, 1.0), 0.0) == []
    assert steps(Jumps(1.0, 1.0), float("nan")) == []
    assert SteppedQuote(PROHIBITIVE, []).rate_for(1.0, 1.0) == PROHIBITIVE


@settings(max_examples=60, deadline=None)
@given(left=st.floats(1e5, 2e9), units=st.integers(0, 30), place=st.floats(0.0, 1.0))
def test_units_that_are_bought_are_told_at_their_price_not_at_that_of_many(
    left: float, units: int, place: float
) -> None:
    unit = Increment(1e9, 10.0, 60.0, 40)
    quote = IncrementQuote(Jumps(1e12, 1e12, 1e-9), left, units, unit)
    most = left + units * unit.amount
    found = steps(quote, left + 40 * unit.amount)
    assert len(found) < 200
    stepped, amount = SteppedQuote(quote.rate, found), 1e3 * (0.98 * most / 1e3) ** place
    exact = quote.rate_for(amount, DURATION_S)
    assert stepped.rate_for(amount, 1.0) >= exact / 1.21
    near = [quote.rate_for(amount * 1.2 ** (n / 20), DURATION_S) for n in range(-21, 22)]
    assert stepped.rate_for(amount, 1.0) <= 1.21 * max(near)
