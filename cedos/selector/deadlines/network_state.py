"""A network as the schedulers of deadlines see it."""

from math import inf
from typing import NamedTuple

from cedos.selector.deadlines.supply import Supply


class NetworkState(NamedTuple):
    """One network, now.

    Attributes:
        up: whether it can carry anything now.
        price_s: seconds that a byte over it is worth (prices of budgets, `seconds_per_metered_mb`);
            0: it costs nothing, inf: nothing may be carried over it.
        rate_bps: what it carries at this instant, expected (D2Sched's r).
        supply: what it will have carried.
        fresh: it has been there for less than an epoch, which D2Sched measures in.
        unmeasured: its rate is a guess, and it is being used to learn it.
    """

    name: str
    up: bool
    price_s: float
    rate_bps: float
    supply: Supply
    fresh: bool = False
    unmeasured: bool = False

    @property
    def free(self) -> bool:
        return self.price_s <= 0.0

    @property
    def usable(self) -> bool:
        return self.price_s < inf
