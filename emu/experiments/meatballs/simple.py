"""The simple strategies of the dissertation's 4.5.5: what a phone does by itself."""

from collections.abc import Mapping

from emu.experiments.meatballs.race import Chosen


class Preferring:
    """The first of some ways that is there; what is lost with it is sent again over the next.

    Args:
        order: names, the preferred one first.
    """

    def __init__(self, *order: str) -> None:
        self._order = order

    def choose(
        self, task: object, now_s: float, usable: frozenset[str], silent: Mapping[str, float]
    ) -> Chosen:
        """The first one, unless something is under way: silence is waited out."""
        if silent:
            return Chosen(frozenset())
        return Chosen(frozenset(next(([name] for name in self._order if name in usable), [])))

    def measured(self, task: object, way: str, time_s: float, now_s: float) -> None:
        """Learns nothing."""

    def attached(self, way: str, now_s: float) -> None:
        """Learns nothing."""

    def connected(self, way: str, rtt_s: float, now_s: float) -> None:
        """Learns nothing."""

    def detached(self, way: str, now_s: float) -> None:
        """Learns nothing."""
