"""Networks that fall silent or are lost again and again, by name. Pure.

A path that flaps costs more than it carries: what was on its way has to go again over another one, and
everything behind it waits. So each time it comes back it is left alone for longer, as long as another
path lives. Each while that it stands makes up for one fall: a Wi-Fi that is there for ten seconds and
away for ten, as in a bus, does not flap.
"""

from typing import Final

FREE: Final = 2
"""So often it is believed at once: who walks through a door loses Wi-Fi once."""
FALL_S: Final = 0.3
"""A path that speaks again so soon after its silence was noticed has not fallen: it cost a few copies."""
FORGIVEN_S: Final = 10.0
"""So long without a fall makes up for one."""
_FIRST_S: Final = 1.0
_DOUBLED: Final = 5
_MOST: Final = FREE + 1 + _DOUBLED
_MOST_NETWORKS: Final = 16


class FlappingNetworks:
    __slots__ = ("_falls",)

    def __init__(self) -> None:
        self._falls: dict[str, tuple[int, float]] = {}  # how often, and when last; the oldest first

    def fell(self, network: str, now: float) -> None:
        """It was silent for long, or its path was lost."""
        count = min(self._count(network, now) + 1, _MOST)
        self._falls.pop(network, None)
        self._falls[network] = count, now
        if len(self._falls) > _MOST_NETWORKS:
            del self._falls[next(iter(self._falls))]

    def hold_s(self, network: str, now: float) -> float:
        """For how long it is left alone when it has come back now; 0: it is believed at once."""
        excess = self._count(network, now) - FREE
        return _FIRST_S * 2.0 ** (excess - 1) if excess > 0 else 0.0

    def _count(self, network: str, now: float) -> int:
        count, at_s = self._falls.get(network, (0, now))
        return max(count - int((now - at_s) / FORGIVEN_S), 0)
