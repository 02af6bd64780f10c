"""Networks that fall silent or are lost again and again, by name. Pure.

A path that flaps costs more than it carries: what was on its way has to go again over another one, and
everything behind it waits. So each time it comes back it is left alone for longer, as long as another
path lives. Forgotten once it has stood for a while.
"""

from typing import Final

FREE: Final = 2
"""So often within the memory it is believed at once: who walks through a door loses Wi-Fi once."""
FALL_S: Final = 0.3
"""A path that speaks again so soon after its silence was noticed has not fallen: it cost a few copies."""
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 32.0
MEMORY_S: Final = 60.0
_MOST_NETWORKS: Final = 16


class FlappingNetworks:
    __slots__ = ("_falls",)

    def __init__(self) -> None:
        self._falls: dict[str, tuple[int, float]] = {}  # how often, and when last; the oldest first

    def fell(self, network: str, now: float) -> None:
        """It was silent for long, or its path was lost."""
        count = self._count(network, now)
        self._falls.pop(network, None)
        self._falls[network] = count + 1, now
        if len(self._falls) > _MOST_NETWORKS:
            del self._falls[next(iter(self._falls))]

    def hold_s(self, network: str, now: float) -> float:
        """For how long it is left alone when it has come back now; 0: it is believed at once."""
        excess = self._count(network, now) - FREE
        return min(_LONGEST_S, _FIRST_S * 2.0 ** (excess - 1)) if excess > 0 else 0.0

    def _count(self, network: str, now: float) -> int:
        count, at_s = self._falls.get(network, (0, now))
        return count if now - at_s < MEMORY_S else 0
