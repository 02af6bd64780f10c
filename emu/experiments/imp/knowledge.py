"""What a host knows of its networks' rates, without paying for it: all strategies are told the same.

Rates are those of the shared predictor (`predictors.network`), fed with what the trace carried in each
second of a contact; a contact that has just begun is taken for an average one.
"""

from collections.abc import Mapping

from cedos.selector.prefetch.outlook import Outlook
from emu.lab.simulation.network import ReplayedNetwork
from predictors.network import NetworkPredictor

EVERY_S = 1.0
_USUAL_S = 5.0
"""What a network usually carries is averaged over rates of so many seconds: fetches last for some."""

_LEAST_BPS = 10_000.0


class Knowledge:
    """What was observed, once in `EVERY_S`.

    Args:
        outlook: is told what networks are like, and asked for averages.
    """

    def __init__(self, networks: Mapping[str, ReplayedNetwork], outlook: Outlook) -> None:
        self.outlook = outlook
        self._networks = networks
        self._predictors = {name: NetworkPredictor(name) for name in networks}
        self._updated_s: float | None = None

    def update(self, at_s: float) -> None:
        """Takes what was carried until an instant of the replay."""
        elapsed_s = 0.0 if self._updated_s is None else at_s - self._updated_s
        self._updated_s = at_s
        for name, network in self._networks.items():
            since_s = network.attached_since_s(at_s)
            if since_s is None:
                self._predictors[name].reset(at_s)
                self.outlook.observe(name, elapsed_s, present=False)
                continue
            usual_bps = None
            if at_s - since_s >= EVERY_S:
                trace = network.access.down
                rate_bps = trace.rate_bps(at_s - EVERY_S, at_s)
                self._predictors[name].observe_rate(max(rate_bps, _LEAST_BPS), at_s)
                usual_bps = trace.rate_bps(max(at_s - _USUAL_S, since_s), at_s)
            self.outlook.observe(name, elapsed_s, True, usual_bps, network.rtt_s)

    def rate_bps(self, name: str) -> float:
        known = self._predictors[name].bandwidth_bps
        if known is not None:
            return known
        average = self.outlook.of(name)
        return 1.0 / average.s_per_bit if average is not None and average.s_per_bit else _LEAST_BPS
