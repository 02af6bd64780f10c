"""A mixed load: classes of transfers that arrive at seeded random times, the same for every policy."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from cedos.model import Direction


@dataclass(frozen=True, slots=True)
class TransferClass:
    """Transfers of one kind, to one host (its own address, as a different site would have).

    Sizes are log-uniform between `min_bytes` and `max_bytes`; arrivals are Poisson with
    `per_minute`; a share of `mptcp_share` is made by a client that speaks MPTCP.
    """

    name: str
    host: str
    direction: Direction
    min_bytes: int
    max_bytes: int
    per_minute: float
    mptcp_share: float = 0.5


@dataclass(frozen=True, slots=True)
class PlannedTransfer:
    """One transfer of the load; `at_s` counts from the start of the measured part of the run."""

    number: int
    name: str
    at_s: float
    host: str
    direction: Direction
    size_bytes: int
    mptcp: bool


def schedule(
    classes: Sequence[TransferClass], *, duration_s: float, seed: int
) -> list[PlannedTransfer]:
    """All transfers that start within `duration_s`, in order of time.

    Each class draws from a seed of its own: adding one does not move the others.
    """
    drawn = []
    for kind in classes:
        draw = random.Random(f"{seed}/{kind.name}")
        at_s = draw.expovariate(kind.per_minute / 60.0)
        while at_s < duration_s:
            log_size = draw.uniform(math.log(kind.min_bytes), math.log(kind.max_bytes))
            drawn.append((at_s, kind, round(math.exp(log_size)), draw.random() < kind.mptcp_share))
            at_s += draw.expovariate(kind.per_minute / 60.0)
    drawn.sort(key=lambda entry: entry[0])
    return [
        PlannedTransfer(
            number, kind.name, round(at_s, 3), kind.host, kind.direction, size_bytes, mptcp
        )
        for number, (at_s, kind, size_bytes, mptcp) in enumerate(drawn)
    ]
