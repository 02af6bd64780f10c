"""Two networks, prices and items to fetch, as IMP's decision sees them."""

import math

import pytest

from cedos.selector.prefetch.outlook import Average, Path
from cedos.selector.prefetch.value import Candidate


class Prices:
    """Fixed ones; beyond `left` metered bytes, or `left_j` joules, a further one is out of reach."""

    def __init__(self, joule_s=0.0, byte_s=0.0, left=math.inf, left_j=math.inf):
        self.joule_s, self.byte_s, self.left, self.left_j = joule_s, byte_s, left, left_j

    def energy_rate(self, amount=0.0, duration_s=1.0):
        return self.joule_s if amount <= self.left_j else 2.0**200

    def data_rate(self, network, amount=0.0, duration_s=1.0):
        if network != "lte":
            return 0.0
        return self.byte_s if amount <= self.left else 2.0**200


class Make:
    """A maker of cases for tests.

    Args:
        radio: makes one, of the watts while it is active, and the joules of its tail.
    """

    def __init__(self, radio):
        self.radio = radio

    def prices(self, *fixed, **more):
        """Seconds per joule and per byte, and what is left: as `Prices`."""
        return Prices(*fixed, **more)

    def wifi(self, present=True, availability=0.25, absence_s=60.0):
        average = Average(availability, 1 / 8e6, 0.1, absence_s)
        return Path("wifi", 8e6, 0.1, self.radio(0.5), average, 0.0, present=present)

    def lte(self, idle_s=None, tail_j=10.0, rate_bps=4e6):
        average = Average(1.0, 1 / 1e6, 0.2, 0.0)
        return Path("lte", rate_bps, 0.2, self.radio(2.0, tail_j), average, tail_j, idle_s=idle_s)

    def item(self, key=1, size=100_000.0, accuracy=0.8):
        return Candidate(key, size, accuracy)


@pytest.fixture(scope="session")
def make(make_radio):
    return Make(make_radio)
