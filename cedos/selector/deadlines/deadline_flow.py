"""A transfer that may wait: what is left of it, and until when it is wanted."""

from collections.abc import Hashable
from math import inf
from typing import NamedTuple


class DeadlineFlow(NamedTuple):
    """One flow of the table.

    Attributes:
        left_bytes: what is still to be carried (Cedos' f_i); of unknown size: what is to be expected.
        deadline_at_s: when all of it is wanted, on the clock of `now`.
        most_bps: it cannot be carried faster, whatever the networks can (its server, its own limit).
        exact: whether the size is known.
    """

    key: Hashable
    left_bytes: float
    deadline_at_s: float
    most_bps: float = inf
    exact: bool = True


def expected_bytes(received_bytes: float) -> float:
    """What is left of a transfer of unknown size: it goes on for as long as it has, 10 MB at least.

    (The profiler thinks so, too, of what tells no length.)
    """
    return max(received_bytes, 10e6)
