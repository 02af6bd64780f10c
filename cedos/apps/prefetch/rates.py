"""The outlook on networks that one program has: present rates, and the averages of what the program saw.

The present rate is the shared predictor's (`predictors.network`), the average the outlook's.
"""

from collections.abc import Mapping

from cedos.apps.prefetch.surroundings import NetworkFacts
from cedos.model import NetworkKind
from cedos.selector.prefetch.outlook import Average, Outlook, mean_wake_j
from cedos.selector.prefetch.outlook import Path as NetworkPath
from predictors.network import NetworkPredictor

_FRESH_S = 30.0
# The least transfer that teaches a rate. A smaller one mostly shows the latency.
_LEAST_BYTES = 20_000

# The round trips until the first byte of an answer over a new connection.
_ROUND_TRIPS = 2.0

# The assumptions on unknown networks: round figures, worth ten minutes of watching.
PRIORS: Mapping[NetworkKind, Average] = {
    NetworkKind.WIFI: Average(0.5, 1 / 10e6, 0.08, 300.0),
    NetworkKind.CELLULAR: Average(0.98, 1 / 8e6, 0.15, 30.0),
    NetworkKind.ETHERNET: Average(0.5, 1 / 50e6, 0.04, 3600.0),
    NetworkKind.HELPER: Average(0.5, 1 / 4e6, 0.2, 30.0),
}


class Rates:
    """The outlook on networks, and the rates of this program's own transfers."""

    def __init__(self) -> None:
        self.outlook = Outlook({})
        self._predictors: dict[str, NetworkPredictor] = {}
        self._measured_at_s: dict[str, float] = {}
        self._used_at_s: dict[str, float] = {}
        self._seen_at_s: float | None = None

    def on_transfer(
        self, network: str, received_bytes: float, seconds: float, now_s: float
    ) -> None:
        """Take a transfer of this program: its bytes and its seconds after the first byte."""
        self._used_at_s[network] = now_s
        if received_bytes < _LEAST_BYTES or seconds <= 0.0:
            return
        if self._fresh_bps(network, now_s) is None:
            self._predictors[network] = NetworkPredictor(network)
        self._predictors[network].observe_rate(8.0 * received_bytes / seconds, now_s)
        self._measured_at_s[network] = now_s

    def update(self, networks: list[NetworkFacts], now_s: float) -> list[NetworkPath]:
        """Take the facts into the averages; return all networks as a prefetch would find them.

        Networks that are known and not there any more are among them, absent: they may come back.
        """
        elapsed_s = now_s - self._seen_at_s if self._seen_at_s is not None else 0.0
        self._seen_at_s = now_s
        paths = []
        for facts in networks:
            name = facts.name
            self.outlook.expect(name, PRIORS[facts.kind])
            rate_bps = self._rate(facts, now_s)
            latency_s = facts.rtt_s * _ROUND_TRIPS if facts.rtt_s is not None else None
            # Only what was measured is learned; an idle network's rate is not.
            fresh_bps = self._fresh_bps(name, now_s)
            self.outlook.observe(name, elapsed_s, facts.up, fresh_bps, latency_s)
            average = self.outlook.of(name) or PRIORS[facts.kind]
            used_s = self._used_at_s.get(name)
            own_idle_s = None if used_s is None else now_s - used_s
            paths.append(
                NetworkPath(
                    name,
                    rate_bps or 1.0 / average.s_per_bit,
                    average.latency_s if latency_s is None else latency_s,
                    facts.radio,
                    average,
                    mean_wake_j(facts.radio, facts.shares or {}),
                    idle_s=_smaller(own_idle_s, facts.idle_s),
                    present=facts.up,
                    stretch=self.outlook.stretch(name),
                )
            )
        return paths

    def _fresh_bps(self, name: str, now_s: float) -> float | None:
        at_s = self._measured_at_s.get(name)
        if at_s is None or now_s - at_s >= _FRESH_S:
            return None
        return self._predictors[name].bandwidth_bps

    def _rate(self, facts: NetworkFacts, now_s: float) -> float | None:
        """Return the rate of own transfers, else of all programs', which may be less than possible."""
        fresh_bps = self._fresh_bps(facts.name, now_s)
        if fresh_bps is not None:
            return fresh_bps
        average = self.outlook.of(facts.name)
        usual_bps = 1.0 / average.s_per_bit if average is not None and average.s_per_bit else 0.0
        return max(facts.rate_bps or 0.0, usual_bps) or None


def _smaller(a: float | None, b: float | None) -> float | None:
    known = [value for value in (a, b) if value is not None]
    return min(known) if known else None
