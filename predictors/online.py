"""Learning online from finished transfers: a posterior of times, and a place's own model.

**Posterior** (Bayes' theorem on predictions; dissertation, 4.3.3). When the predictions favour one
strategy, how long did that one take on past occasions like this? The prior of a strategy's time is
its predicted distribution with the later errors. The likelihood is how often predictions favoured
the present favourite where errors were like that. Only the strategy that carried a transfer is
measured, so each strategy has a likelihood of its own.

**Adapted model.** At an unknown place the general model speaks. Each finished transfer shows the
time of the strategy that carried it, and nothing of the others; `place.Place` generalises from
that. Knowledge with a time fades with time, knowledge without one with the number of transfers.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import exp, floor, isfinite, log
from typing import Any

from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.error import FADING, KNOWN, sliced
from predictors.place import Place, Prior

_STEP = log(1.25)
"""Bins are a quarter wide: 10 for each tenfold."""

_LARGEST = 1e6
"""A time so many times off its prediction says that one of the two is not what it seems."""

NEGLIGIBLE = 0.02
"""Measurements of less weight than this share of the newest are forgotten: older than 130 of them."""

_DOUBT = 2.0
"""The number of prior transfers in which the usual strategy was favoured."""


class Posterior:
    """Corrects predictions by what came of such ones before; starts without any knowledge."""

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
        """Restore the knowledge of a kept state.

        Raises:
            ValueError: it is none.
        """
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
            return time  # never seen: nothing can be told from it

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


MOST_PLACES = 256
"""Places that are kept; the one used longest ago goes first."""

_LARGEST_SHIFT = 3.0
# The steps in which intervals grow or shrink: 5 %.
_ADAPTED = 0.05
_NOWHERE = ""


class Adaptive:
    """A completion model and what was learned at each place since; itself a `Predictor`.

    Args:
        model: the general model; never changed by this.
    """

    def __init__(self, model: CompletionModel) -> None:
        self.model = model
        self._names = model.strategies
        self._index = {name: k for k, name in enumerate(self._names)}
        self._prior = model.places or Prior.usual(self._names)
        self._places: OrderedDict[str, Place] = OrderedDict()

    @property
    def features(self) -> Sequence[str]:
        return self.model.features

    @property
    def strategies(self) -> tuple[str, ...]:
        return self._names

    def predict(
        self, features: Mapping[str, float], place: str | None = None
    ) -> dict[str, Distribution]:
        """Return the completion time of each strategy in seconds, as far as this place is known.

        Args:
            features: as for `CompletionModel.predict`.
            place: a name for where the host is (an access point, a cell, a subnet); None: unknown,
                which is a place of its own.
        """
        known = self._places.get(place or _NOWHERE)
        if known is None:
            return self.model.predict(features)
        width = exp(_ADAPTED * round(log(known.width) / _ADAPTED))
        predicted = self.model.predict(features, widening=width)
        for name, shift in zip(self._names, known.shifts(features["size_bytes"]), strict=True):
            # No place is believed to be off by more than a factor of 20.
            bounded = min(max(shift, -_LARGEST_SHIFT), _LARGEST_SHIFT)
            predicted[name] = predicted[name].scaled(exp(bounded))
        return predicted

    def update(
        self,
        features: Mapping[str, float],
        name: str,
        actual: float,
        place: str | None = None,
        at_s: float | None = None,
    ) -> None:
        """Learn from a finished transfer.

        Args:
            features: what was known when it started.
            name: the strategy that carried it.
            actual: its completion time, s. One that was broken off counts with the time it had run.
            place: where it was.
            at_s: when it ended, by any clock; None: not known.

        Raises:
            KeyError: for a strategy that the model does not know, or without `size_bytes`.
            ValueError: for a time that is not positive and finite.
        """
        if not (isfinite(actual) and actual > 0.0):
            raise ValueError(f"a completion time must be positive, not {actual!r}")
        strategy = self._index[name]
        # Compare with the place's own prediction for the width, with the general one for the shift.
        expected = self.predict(features, place)[name]
        off = log(actual / self.model.points(features)[name])
        key = place or _NOWHERE
        known = self._places.get(key)
        if known is None:
            known = self._places[key] = Place(self._prior)
            if len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
        # Keep the places that were used last.
        self._places.move_to_end(key)
        covered = expected.quantile(0.05) <= actual <= expected.quantile(0.95)
        known.learn(strategy, features["size_bytes"], off, at_s, covered)

    def transfers_at(self, place: str | None = None) -> int:
        known = self._places.get(place or _NOWHERE)
        return known.transfers if known is not None else 0

    def state(self) -> dict[str, Any]:
        """Return the knowledge as plain data for JSON; the model is not part of it."""
        return {
            "model": self.model.fingerprint(),
            "places": {name: place.to_dict() for name, place in self._places.items()},
        }

    @classmethod
    def from_state(cls, model: CompletionModel, state: Mapping[str, Any]) -> "Adaptive":
        """Restore the knowledge of a kept state.

        Raises:
            ValueError: it is none, or was learned as the difference from another model (start anew
                then: `Adaptive(model)`).
        """
        found = cls(model)
        try:
            learned_on, places = state["model"], dict(state["places"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an adaptive model's state: {error!r}") from error
        if learned_on != model.fingerprint():
            raise ValueError("it was learned as the difference from another model; start anew")
        for name, data in places.items():
            found._places[str(name)] = Place.from_dict(data, found._prior)
        return found
