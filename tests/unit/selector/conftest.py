"""A host with Wi-Fi and a phone, and predictors that say what a test wants them to."""

import pytest

from cedos.model import Context, Direction, Indicator, Network, NetworkKind, SizeEstimate, Transfer
from predictors.base import Distribution


class Oracle:
    """Predictors that know: strategy -> samples."""

    features = ("size_bytes", "wifi_rtt_s", "cellular_rtt_s")

    def __init__(self, times):
        self.times = {
            name: Distribution((given,) if isinstance(given, int | float) else tuple(sorted(given)))
            for name, given in times.items()
        }
        self.asked = []

    def predict(self, features, /):
        self.asked.append(features)
        return self.times


class Host:
    """A maker of cases for tests."""

    at_s = 1000.0

    def __init__(self):
        self.wlan = self.network("wlan0")
        self.lte = self.network("lte0", "cellular", metered=True)
        self.both = (self.wlan, self.lte)

    def network(self, name, kind="wifi", *, metered=False, up=True):
        return Network(name, name, 1, NetworkKind(kind), metered, up=up)

    def context(self, age_s=0.4, **indicators):
        """`wlan0_rtt_s=0.02` and so on, all of one age."""
        networks = {}
        for column, value in indicators.items():
            name, _, indicator = column.partition("_")
            measured = Indicator(value, self.at_s - age_s, active=True)
            networks.setdefault(name, {})[indicator] = measured
        return Context(self.at_s, networks)

    def transfer(self, size_bytes=100_000, direction="down"):
        size = SizeEstimate(size_bytes, size_bytes, size_bytes, "hint")
        return Transfer(size, Direction(direction))

    def oracle(self, **times):
        return Oracle(times)


@pytest.fixture(scope="session")
def host():
    return Host()
