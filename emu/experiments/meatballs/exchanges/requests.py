"""The requests of one trial (dissertation, 4.5.5.1)."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

REQUEST_BYTES = 1_000
RESPONSE_BYTES = 4_000
SIZE_DEVIATION = 0.25
"""Sizes are normally distributed (4.5.5.1, which names no deviation: a quarter is ours)."""

LEAST_BYTES = 64
THINK_S = (10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Request:
    """One exchange that a person waits for; `at_s` counts from the trial's beginning."""

    number: int
    at_s: float
    up_bytes: int
    down_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.up_bytes + self.down_bytes


def requests(duration_s: float, seed: int, think_s: Sequence[float] = THINK_S) -> Sequence[Request]:
    """The requests of a trial: sizes around 1 KB and 4 KB, 10 to 30 s apart.

    The time to think runs from one request to the next and not from an answer, so that all policies
    meet the networks at the same instants.
    """
    rng = random.Random(f"exchanges:{seed}")
    found: list[Request] = []
    at_s = rng.uniform(think_s[0], think_s[1]) / 2
    while at_s < duration_s:
        sizes = [
            max(LEAST_BYTES, round(rng.gauss(mean, SIZE_DEVIATION * mean)))
            for mean in (REQUEST_BYTES, RESPONSE_BYTES)
        ]
        found.append(Request(len(found), at_s, *sizes))
        at_s += rng.uniform(think_s[0], think_s[1])
    return found
