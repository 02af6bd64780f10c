"""Two networks, prices and items to fetch, as IMP's decision sees them."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from cedos.selector.prefetch.outlook import Average, Path
from cedos.selector.prefetch.value import Candidate


class Prices:
    """Fixed ones; beyond `left` metered bytes, or `left_j` joules, a further one is out of reach."""

    def __init__(
        self,
        joule_s: float = 0.0,
        byte_s: float = 0.0,
        left: float = math.inf,
        left_j: float = math.inf,
    ) -> None:
        self.joule_s, self.byte_s, self.left, self.left_j = joule_s, byte_s, left, left_j

    def energy_rate(self, amount: float = 0.0, duration_s: float = 1.0) -> float:
        return self.joule_s if amount <= self.left_j else 2.0**200

    def data_rate(self, network: str, amount: float = 0.0, duration_s: float = 1.0) -> float:
        if network != "lte":
            return 0.0
        return self.byte_s if amount <= self.left else 2.0**200


class Make:
    """A maker of cases for tests.

    Args:
        radio: makes one, of the watts while it is active, and the joules of its tail.
    """

    def __init__(self, radio: Callable[..., Any]) -> None:
        self.radio = radio

    def prices(self, *fixed: float, **more: float) -> Prices:
        """Seconds per joule and per byte, and what is left: as `Prices`."""
        return Prices(*fixed, **more)

    def wifi(
        self, present: bool = True, availability: float = 0.25, absence_s: float = 60.0
    ) -> Path:
        average = Average(availability, 1 / 8e6, 0.1, absence_s)
        return Path("wifi", 8e6, 0.1, self.radio(0.5), average, 0.0, present=present)

    def lte(self, idle_s: float | None = None, tail_j: float = 10.0, rate_bps: float = 4e6) -> Path:
        average = Average(1.0, 1 / 1e6, 0.2, 0.0)
        return Path("lte", rate_bps, 0.2, self.radio(2.0, tail_j), average, tail_j, idle_s=idle_s)

    def item(self, key: object = 1, size: float = 100_000.0, accuracy: float = 0.8) -> Candidate:
        return Candidate(key, size, accuracy)


@pytest.fixture(scope="session")
def make(make_radio: Callable[..., Any]) -> Make:
    return Make(make_radio)
