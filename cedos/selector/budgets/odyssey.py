"""Odyssey's goal-directed adaptation, as IMP uses it (dissertation, 3.2.2.4).

Once a second the controller smooths the rate of spending. The demand that this rate makes until the
goal, over the supply without its insurance, multiplies the price.

The paper leaves some parts out; these follow its authors' implementation. The smoothing factor is
2^(-1 / (0.1 * seconds to the goal)), which makes half of an observation's weight last for a tenth
of the time left. The first hundred seconds are an arithmetic mean that begins with the even rate.
At the starting price the whole supply is worth the whole period, at the least price 10 ms. Without
supply or past the goal the price is prohibitive.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

from cedos.selector.budgets.controller import PROHIBITIVE, Option, plannable

_SMOOTHED_OVER = 0.1
_MEAN_SAMPLES = 100.0
# The least price, in seconds for the whole supply. From zero it could not rise again.
LEAST_S = 0.01


@dataclass(frozen=True, slots=True)
class OdysseyQuote:
    """The price of one second; contemplated spending counts as this second's."""

    rate: float
    supply: float
    left: float
    left_s: float
    spending: float
    samples: float

    def rate_for(self, amount: float, duration_s: float) -> float:
        """Return the price if `amount` were spent already, beside the present spending."""
        planned = plannable(self.left - amount, self.supply)
        if self.left_s <= 0.0 or planned <= 0.0:
            return PROHIBITIVE
        sample = self.spending + amount / max(duration_s, 1e-3)
        spending = _smooth(self.spending, sample, 1.0, self.samples, self.left_s)
        return _move_price(self.rate, spending * self.left_s / planned, 1.0, self.supply)


class Odyssey:
    """The published controller."""

    name = "odyssey"

    def __init__(
        self,
        supply: float,
        begins_s: float,
        ends_s: float,
        *,
        # When the controller begins, in the middle of a period; None: at its beginning.
        now_s: float | None = None,
        learned: Mapping[str, Any] | None = None,
    ) -> None:
        self._supply = supply
        self._left = supply
        self._now_s = begins_s if now_s is None else now_s
        self._ends_s = ends_s
        # A budget may be set in the last days of its month, so the goal may be near already.
        left_s = max(ends_s - self._now_s, 1.0)
        # At the start: the whole supply spent evenly, and the whole period to be saved by it.
        self._spending = max(supply, 0.0) / left_s
        self._samples = 1.0
        self._rate = min(left_s / supply, PROHIBITIVE) if supply > 0.0 else PROHIBITIVE

    def observe(self, now_s: float, left: float) -> None:
        """Record the rest of the supply.

        A longer pause counts as so many seconds with the same sample.
        """
        elapsed_s = now_s - self._now_s
        # A rest larger than before was refilled, or is measured better now: nothing was spent.
        spent = max(self._left - left, 0.0)
        self._left, self._now_s = left, now_s
        left_s = self._ends_s - now_s
        if elapsed_s <= 0.0 or left_s <= 0.0:
            return
        self._spending = _smooth(
            self._spending, spent / elapsed_s, elapsed_s, self._samples, left_s
        )
        self._samples = min(self._samples + elapsed_s, _MEAN_SAMPLES)
        # The price is multiplied by the expected demand over what is left without the reserve.
        planned = plannable(left, self._supply)
        if planned <= 0.0:
            self._rate = PROHIBITIVE
        else:
            self._rate = _move_price(
                self._rate, self._spending * left_s / planned, elapsed_s, self._supply
            )

    def on_choice(self, now_s: float, options: Sequence[Option], chosen: Option) -> None:
        """Ignore the choice: this controller goes by the use alone."""

    def waiting(self, choices: Sequence[Sequence[Option]]) -> None:
        """Ignore the open choices."""

    def foreseen(self, amount: float) -> None:
        """Ignore the amount: no habits are learned."""

    def replace_supply(self, now_s: float, supply: float, ends_s: float) -> None:
        """Replace supply and end; the use stays, and the price starts anew."""
        self._left += supply - self._supply
        self._supply, self._ends_s, self._now_s = supply, ends_s, now_s
        left_s = ends_s - now_s
        if left_s > 0.0 and self._left > 0.0:
            self._rate = min(left_s / self._left, PROHIBITIVE)

    def quote(self, now_s: float) -> OdysseyQuote:
        left_s = self._ends_s - now_s
        spent = left_s <= 0.0 or plannable(self._left, self._supply) <= 0.0
        rate = PROHIBITIVE if spent else self._rate
        return OdysseyQuote(rate, self._supply, self._left, left_s, self._spending, self._samples)

    def state(self) -> dict[str, Any]:
        """Return nothing, as the next period begins anew."""
        return {}


def _smooth(
    spending: float, sample: float, elapsed_s: float, samples: float, left_s: float
) -> float:
    """Return the spending rate after `elapsed_s` seconds with this sample each."""
    in_mean_s = min(elapsed_s, max(_MEAN_SAMPLES - samples, 0.0))
    # The first samples have an arithmetic mean; later ones fade exponentially.
    if in_mean_s > 0.0:
        spending = (spending * samples + sample * in_mean_s) / (samples + in_mean_s)
        elapsed_s -= in_mean_s
    kept: float = 2.0 ** (-elapsed_s / (_SMOOTHED_OVER * left_s))
    return kept * spending + (1.0 - kept) * sample


def _move_price(rate: float, ratio: float, times: float, supply: float) -> float:
    """Return the price after `times` multiplications by demand over supply, within its bounds."""
    least = min(LEAST_S / supply, PROHIBITIVE) if supply > 0.0 else PROHIBITIVE
    if ratio <= 0.0:
        return least
    # In logarithms, so that many multiplications neither overflow nor vanish.
    exponent = log2(rate) + times * log2(ratio)
    return (
        PROHIBITIVE if exponent >= 200.0 else max(2.0**exponent if exponent > -900 else 0.0, least)
    )
