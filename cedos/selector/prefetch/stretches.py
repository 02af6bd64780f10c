"""How long a network stays once it is there, and away once it is not: the shared dwell predictor.

Who knows when free Wi-Fi comes back knows what waiting for it is worth; who knows how long it stays,
what can still be had of it (dissertation, 4.4.2: hazards fall with time).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from math import gamma, inf
from typing import NamedTuple

from predictors.dwell import GENERIC, DwellPredictor
from predictors.weibull import Weibull

_LONGEST_S = 1e8
_KEPT = 200


class Stretch(NamedTuple):
    """The stretch that is under way.

    Attributes:
        age_s: how long it has lasted.
        stay: how long the network stays when it is there.
        away_s: until it is there, on average; 0 where it is there.
        away: how long it stays away when it is not there.
    """

    age_s: float
    stay: Weibull
    away_s: float
    away: Weibull


class Stretches:
    """One network's.

    Args:
        stay_s: what it is taken to stay on average, before anything is known; infinite: for ever.
        absence_s: the same of its absences; or how they are taken to be distributed.
    """

    def __init__(self, stay_s: float, absence_s: float | Weibull) -> None:
        absence = absence_s if isinstance(absence_s, Weibull) else _of_mean(absence_s)
        self._known = {
            True: DwellPredictor(_of_mean(stay_s)),
            False: DwellPredictor(absence),
        }
        self._lately: dict[bool, deque[tuple[float, bool]]] = {
            present: deque(maxlen=_KEPT) for present in (True, False)
        }
        self._present: bool | None = None
        self._whole = False
        self._age_s = 0.0

    def passed(self, lasted_s: float, present: bool) -> None:
        """It was there, or not, for so long until now."""
        if present is not self._present:
            if self._present is not None and self._age_s > 0.0:
                # The first one had begun before anybody looked.
                self._passed(self._present, self._age_s, not self._whole)
                self._whole = True
            self._present, self._age_s = present, 0.0
        self._age_s += lasted_s

    def _passed(self, present: bool, lasted_s: float, censored: bool) -> None:
        self._known[present].observe("", lasted_s, censored=censored)
        self._lately[present].append((lasted_s, censored))

    def to_state(self) -> dict[str, list[tuple[float, bool]]]:
        """The last stays and absences, with whether each is known only to be longer."""
        return {"stays": list(self._lately[True]), "absences": list(self._lately[False])}

    def restore(self, state: Mapping[str, Sequence[Sequence[object]]]) -> None:
        """Takes what was kept; what makes no sense is left out."""
        for key, present in (("stays", True), ("absences", False)):
            for each in state.get(key, ()):
                match each:
                    case [float() | int() as lasted_s, bool() as censored] if lasted_s > 0.0:
                        self._passed(present, float(lasted_s), censored)
                    case _:
                        pass

    def stretch(self) -> Stretch:
        """The one under way."""
        away_s = 0.0
        if self._present is False:
            away_s = self._known[False].mean_residual_s("", self._age_s)
        stay, away = (self._known[present].weibull("") for present in (True, False))
        return Stretch(self._age_s, stay, min(away_s, _LONGEST_S), away)


def _of_mean(mean_s: float) -> Weibull:
    """The generic distribution, as long as that."""
    mean_s = min(max(mean_s, 0.1), _LONGEST_S) if mean_s < inf else _LONGEST_S
    return Weibull(GENERIC.shape, mean_s / gamma(1.0 + 1.0 / GENERIC.shape))
