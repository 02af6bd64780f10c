"""A posterior of completion times, learned from finished transfers (dissertation, 4.3.3).

The favourite is the strategy that the predictions make the fastest. The posterior asks: when this
strategy was the favourite before, how wrong were the predictions? By Bayes, the prior of a strategy's
time is its predicted distribution, with the errors seen since. The likelihood of an error is how often
the present favourite was the favourite when the error was like that. Only the strategy that carried a
transfer is measured, so each one has a likelihood of its own.
"""

from collections.abc import Mapping
from math import exp, floor, isfinite, log
from typing import Any

from predictors.base import Distribution
from predictors.error import FADING, KNOWN, sliced

# The width of a bin in logarithms: a quarter, or 10 bins for a factor of ten.
_STEP = log(1.25)

# A larger ratio of time and prediction means that one of the two is wrong.
_LARGEST = 1e6

# Measurements with a smaller weight relative to the newest are dropped: those older than 130.
NEGLIGIBLE = 0.02

# The weight in transfers of the prior for the usual strategy.
_DOUBT = 2.0


class Posterior:
    """A corrector of predictions, by the actual times after such predictions; it begins without any."""

    def __init__(self) -> None:
        self.seen = 0
        # By strategy and bin of measured over predicted: the weight of each strategy favoured.
        self._favoured: dict[str, dict[int, dict[str, float]]] = {}

    def learn(self, predicted: Mapping[str, Distribution], name: str, actual: float) -> None:
        """Record the time of a strategy.

        Args:
            predicted: of all strategies, before any correction.
            name: the strategy that was carried out.
            actual: its time; what is not positive, or beyond all measure, teaches nothing.
        """
        point = predicted[name].quantile(0.5)
        if not (isfinite(actual) and actual > 0.0 < point):
            return
        if not 1.0 / _LARGEST <= actual / point <= _LARGEST:
            return
        bins = self._favoured.setdefault(name, {})
        # Older observations of this strategy fade, and bins that hardly count any more are dropped.
        for number, of in list(bins.items()):
            for strategy in of:
                of[strategy] *= FADING
            if sum(of.values()) < NEGLIGIBLE:
                del bins[number]
        of = bins.setdefault(bin_of(actual / point), {})
        favoured = _favourite(predicted)
        of[favoured] = of.get(favoured, 0.0) + 1.0
        self.seen += 1

    def state(self) -> dict[str, Any]:
        return {
            "seen": self.seen,
            "favoured": {
                name: {str(number): dict(of) for number, of in bins.items()}
                for name, bins in self._favoured.items()
            },
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "Posterior":
        """Restore the knowledge of a kept state. ValueError: it is none."""
        found = cls()
        try:
            found.seen = int(state["seen"])
            for name, bins in state["favoured"].items():
                read = {int(number): _read(of) for number, of in bins.items()}
                if any(abs(number) > bin_of(_LARGEST) + 1 for number in read):
                    raise ValueError(f"errors of {name} beyond all measure")
                found._favoured[str(name)] = read
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise ValueError(f"nothing that came of predictions: {error!r}") from error
        return found

    def of(self, predicted: Mapping[str, Distribution]) -> dict[str, Distribution]:
        """Return the times of all strategies, given the one that these predictions favour."""
        favoured = _favourite(predicted)
        return {name: self._posterior(name, time, favoured) for name, time in predicted.items()}

    def _posterior(self, name: str, time: Distribution, favoured: str) -> Distribution:
        bins = self._favoured.get(name)
        if not bins:
            return time
        # How often this strategy was favoured when that one was measured, whatever the error.
        total = sum([sum(of.values()) for of in bins.values()])
        usual = sum([of.get(favoured, 0.0) for of in bins.values()]) / total
        if not usual > 0.0:
            return time  # this favourite was never seen: it says nothing

        def likelihood(number: int) -> float:
            of = bins.get(number, {})
            return (of.get(favoured, 0.0) + _DOUBT * usual) / (sum(of.values()) + _DOUBT)

        # Bayes: each possible time is weighted by how well it fits to what is favoured now. The predicted
        # samples are the prior, the measured errors around the present point are added.
        point, count = time.quantile(0.5), len(time.samples)
        weighted = [
            (sample, KNOWN / count * likelihood(bin_of(sample / point))) for sample in time.samples
        ]
        weighted += [
            (point * exp(_STEP * (number + 0.5)), sum(of.values()) * likelihood(number))
            for number, of in bins.items()
        ]
        return Distribution(sliced(weighted, count))


def bin_of(value: float) -> int:
    return floor(log(value) / _STEP)


def _read(of: Mapping[str, Any]) -> dict[str, float]:
    """Return the weights of one bin; raise ValueError if they cannot have been learned."""
    weights = {str(strategy): float(weight) for strategy, weight in of.items()}
    # What is seen each time and fades weighs this, and rounding.
    most = 1.0 / (1.0 - FADING) + 1.0
    if not all(0.0 <= each <= most for each in weights.values()) or not sum(weights.values()) > 0.0:
        raise ValueError(f"weights of {weights}")
    return weights


def _favourite(predicted: Mapping[str, Distribution]) -> str:
    """Return the strategy that would be chosen if predictions were certain."""
    return min(predicted, key=lambda name: predicted[name].quantile(0.5))
