"""How quickly a hard budget is spent: what would still come, and when to look again."""

from dataclasses import dataclass
from typing import Final

from cedos.selector.budgets.supply import KEPT_OF_SUPPLY

_SOONEST_S: Final = 0.05
LATEST_S: Final = 1.0
"""Nobody looks more seldom."""

_MARGIN: Final = 4.0
_REACTION_S: Final = 0.2
"""From a counter's rise to the last byte that still came after it: 5 to 280 ms were measured."""

_IDLE_S: Final = 0.2
_IDLE_AFTER_S: Final = 1.0
"""While nothing has moved for so long there is less hurry."""


@dataclass(slots=True)
class Pace:
    """How quickly a hard budget is spent.

    Attributes:
        usual_per_s: units a second, as quick as its networks are taken to be until one is quicker.
    """

    usual_per_s: float
    _fastest_per_s: float = 0.0
    _lately_per_s: float = 0.0
    _spent: float | None = None
    _at_s: float = 0.0

    def observe(self, spent: float, now_s: float) -> None:
        """Takes what was spent until an instant of a clock that does not jump."""
        if self._spent is not None and spent == self._spent:
            if now_s - self._at_s > _IDLE_AFTER_S:
                self._lately_per_s = 0.0
            return
        if self._spent is not None and now_s > self._at_s:
            self._lately_per_s = max((spent - self._spent) / (now_s - self._at_s), 0.0)
            self._fastest_per_s = max(self._fastest_per_s, self._lately_per_s)
        self._spent, self._at_s = spent, now_s

    def coming(self, supply: float) -> float:
        """Units that would come before anything could be barred; no more than Odyssey's reserve."""
        return min(self._lately_per_s * _REACTION_S, KEPT_OF_SUPPLY * supply)

    def next_check_s(self, left: float, now_s: float) -> float:
        """When to check again, so that little goes beyond: in a quarter of the time that is left."""
        per_s = max(self.usual_per_s, self._fastest_per_s)
        next_s = left / (_MARGIN * per_s) if per_s > 0.0 else LATEST_S
        soonest_s = _IDLE_S if now_s - self._at_s > _IDLE_AFTER_S else _SOONEST_S
        return min(max(next_s, soonest_s), LATEST_S)
