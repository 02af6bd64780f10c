"""Prices in words that a person understands, whatever they are."""

import pytest

from cedos.daemon.budgets.price_text import worth_s


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (2.5e-6, "less than 1 ms"),
        (0.0421, "42 ms"),
        (0.3, "0.3 s"),
        (41.0, "41 s"),
        (2592.0, "43 minutes"),
        (82_800.0, "23 hours"),
        (7.9e5, "9 days"),
    ],
)
def test_a_price_is_told_in_its_own_unit(seconds: float, message: str) -> None:
    assert worth_s(seconds) == message
