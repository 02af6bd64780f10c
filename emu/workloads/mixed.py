"""A mixed load: classes of transfers that arrive at seeded random times, the same for every policy."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cedos.model import Direction


@dataclass(frozen=True, slots=True)
class TransferClass:
    """Transfers of one kind, to one host (its own address, as a different site would have).

    Sizes are log-uniform between `min_bytes` and `max_bytes`; arrivals are Poisson with
    `per_minute`; a share of `mptcp_share` is made by a client that speaks MPTCP. With a `slot_s`
    instead, they come one after the other: rounds of all such classes in a seeded order, each
    transfer with so many seconds to itself.
    """

    name: str
    host: str
    direction: Direction
    min_bytes: int
    max_bytes: int
    per_minute: float
    mptcp_share: float = 0.5
    slot_s: float = 0.0


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
    for kind, draw, at_s in _starts(classes, duration_s, seed):
        log_size = draw.uniform(math.log(kind.min_bytes), math.log(kind.max_bytes))
        drawn.append((at_s, kind, round(math.exp(log_size)), draw.random() < kind.mptcp_share))
    drawn.sort(key=lambda entry: entry[0])
    return [
        PlannedTransfer(
            number, kind.name, round(at_s, 3), kind.host, kind.direction, size_bytes, mptcp
        )
        for number, (at_s, kind, size_bytes, mptcp) in enumerate(drawn)
    ]


def _starts(
    classes: Sequence[TransferClass], duration_s: float, seed: int
) -> Iterator[tuple[TransferClass, random.Random, float]]:
    draws = {kind.name: random.Random(f"{seed}/{kind.name}") for kind in classes}
    for kind in classes:
        if kind.slot_s > 0:
            continue
        draw = draws[kind.name]
        at_s = draw.expovariate(kind.per_minute / 60.0)
        while at_s < duration_s:
            yield kind, draw, at_s
            at_s += draw.expovariate(kind.per_minute / 60.0)
    in_turn = [kind for kind in classes if kind.slot_s > 0]
    order, at_s = random.Random(f"{seed}/order"), 0.0
    while in_turn:
        for kind in order.sample(in_turn, len(in_turn)):
            if at_s + kind.slot_s > duration_s:
                return
            yield kind, draws[kind.name], at_s
            at_s += kind.slot_s
