"""Judge pings of a network beside all other answers from beyond its router. Pure.

Many routers and firewalls drop pings (RFC 2979 leaves it to them): their silence alone proves nothing.
"""

from collections import deque

from cedos.model import Indicator

_CONTRADICTED = 5
"""The pings that must have been lost while something else was answered."""
_MEANWHILE_S = 2.0
"""A ping is given up a second or two after it was sent: what came back since then came meanwhile."""


class PingWitness:
    """Judges the pings of one network by the other answers.

    Args:
        pings: how many of the last ones count.
    """

    def __init__(self, pings: int) -> None:
        self._last: deque[tuple[float, bool]] = deque(maxlen=pings)
        self._ever = False
        self._contradicted = 0
        self._other_s = float("-inf")

    def observe_ping(self, answered: bool, at_s: float) -> None:
        self._last.append((at_s, answered))
        self._ever |= answered
        if answered:
            self._contradicted = 0
        elif at_s - self._other_s <= _MEANWHILE_S:
            self._contradicted += 1

    def observe_answer(self, at_s: float) -> None:
        """Note another answer: data, an acknowledgement, a look-up's answer, the test page."""
        self._other_s = max(self._other_s, at_s)

    def moved(self) -> None:
        """Forget all: the network is attached at another place."""
        self._last.clear()
        self._ever, self._contradicted, self._other_s = False, 0, float("-inf")

    def slept(self, seconds: float) -> None:
        self._last.clear()
        self._other_s -= seconds

    @property
    def dropped(self) -> bool:
        """Return whether this network never lets a ping through: it need not be asked."""
        return not self._ever and self._contradicted >= _CONTRADICTED

    @property
    def never_answered(self) -> bool:
        """Return whether no ping ever was: the network is dead, or drops them."""
        return not self._ever

    @property
    def _worthless(self) -> bool:
        return not self._ever and self._other_s != float("-inf")

    @property
    def loss(self) -> Indicator | None:
        """Return the share of the last pings that were lost; None where that tells nothing."""
        if not self._last or self._worthless:
            return None
        lost = sum(not answered for _, answered in self._last)
        if lost == len(self._last) and self._other_s >= self._last[0][0]:
            return None
        return Indicator(lost / len(self._last), self._last[-1][0], active=True)

    @property
    def deaf(self) -> bool:
        """Return whether nothing at all came back since the first of the last pings, all of them lost."""
        loss = self.loss
        return loss is not None and loss.value >= 1.0 and len(self._last) == self._last.maxlen
