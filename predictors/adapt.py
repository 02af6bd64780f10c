"""A general model that becomes a place's own: online, from finished transfers alone.

At a place never seen the general model speaks. Each finished transfer shows how long the strategy
took that carried it, and nothing of the others; `place.Place` makes the most of that. Nothing here
reads a clock: what is told with a time fades with time, what is told without fades by its number.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import exp, isfinite, log
from typing import Any
from zlib import crc32

from predictors.base import Distribution
from predictors.completion import CompletionModel
from predictors.place import Place, Prior

MOST_PLACES = 256
"""Places that are kept; the one used longest ago goes first."""

_LARGEST_SHIFT = 3.0
# The steps in which intervals grow or shrink: 5 %.
_STEP = 0.05
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
        """The completion time of each strategy in seconds, as far as it is known at this place.

        Args:
            features: as for `CompletionModel.predict`.
            place: a name for where the host is (an access point, a cell, a subnet); None: unknown,
                which is a place of its own.
        """
        known = self._places.get(place or _NOWHERE)
        if known is None:
            return self.model.predict(features)
        width = exp(_STEP * round(log(known.width) / _STEP))
        predicted = self.model.predict(features, widening=width)
        for name, shift in zip(self._names, known.shifts(features["size_bytes"]), strict=True):
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
        """Learns from a finished transfer.

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
        expected = self.predict(features, place)[name]
        off = log(actual / self.model.points(features)[name])
        key = place or _NOWHERE
        known = self._places.get(key)
        if known is None:
            known = self._places[key] = Place(self._prior)
            if len(self._places) > MOST_PLACES:
                self._places.popitem(last=False)
        self._places.move_to_end(key)
        covered = expected.quantile(0.05) <= actual <= expected.quantile(0.95)
        known.learn(strategy, features["size_bytes"], off, at_s, covered)

    def seen(self, place: str | None = None) -> int:
        known = self._places.get(place or _NOWHERE)
        return known.transfers if known is not None else 0

    def state(self) -> dict[str, Any]:
        """What was learned, as plain data for JSON; the model is not part of it."""
        return {
            "model": fingerprint(self.model),
            "places": {name: place.to_dict() for name, place in self._places.items()},
        }

    @classmethod
    def from_state(cls, model: CompletionModel, state: Mapping[str, Any]) -> "Adaptive":
        """Goes on from a state.

        Raises:
            ValueError: it is none, or was learned as the difference from another model (start anew
                then: `Adaptive(model)`).
        """
        found = cls(model)
        try:
            learned_on, places = state["model"], dict(state["places"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not an adaptive model's state: {error!r}") from error
        if learned_on != fingerprint(model):
            raise ValueError("it was learned as the difference from another model; start anew")
        for name, data in places.items():
            found._places[str(name)] = Place.from_dict(data, found._prior)
        return found


def fingerprint(model: CompletionModel) -> str:
    """Tells models apart: what was learned as the difference from one means nothing to another."""
    return f"{crc32(repr(model.to_dict()).encode()):08x}"
