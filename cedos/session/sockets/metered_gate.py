"""Whether a connection may use metered networks now, by what its paths have measured."""

from collections.abc import Iterable

from cedos.session.io.path import SessionPath
from cedos.session.protocol.metered_policy import MeteredPolicy, Situation


class MeteredGate:
    """A `MeteredPolicy` with what it has to know of paths; rates of networks that went are remembered."""

    def __init__(self) -> None:
        self.policy = MeteredPolicy()
        self.open = True
        self._rates: dict[bool, float] = {}

    def update(
        self,
        paths: Iterable[SessionPath],
        received_bytes: int,
        buffered_bytes: int,
        now: float,
    ) -> bool:
        """Decides again; whether it comes out otherwise than before."""
        up: set[bool] = set()
        for path in paths:
            up.add(path.facts.metered)
            rate_bps = path.rate_towards_us_bps()
            if rate_bps is not None:
                self._rates[path.facts.metered] = rate_bps
        situation = Situation(
            received_bytes=received_bytes,
            buffered_bytes=buffered_bytes,
            unmetered_bps=self._rates.get(False),
            unmetered_up=False in up,
            metered_bps=self._rates.get(True),
        )
        before, self.open = self.open, self.policy.metered_allowed(situation, now)
        return self.open is not before
