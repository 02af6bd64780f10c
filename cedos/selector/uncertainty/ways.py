"""What an evaluator is told of the ways to do a thing: what each takes, by uncertain quantities.

Meatballs' strategies (dissertation, 4.4.1), which need not be networks: the same evaluators choose
where a computation runs. A way's time is a sum, each term a function of one predicted quantity, so
that a quantity's 50 errors cost 50 calls and not one for each combination of errors.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from predictors.base import Distribution


@dataclass(frozen=True, slots=True)
class Term:
    """A part of a way's time: seconds, as a monotonic function of one quantity's value."""

    quantity: str
    of: Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to do the thing.

    Attributes:
        terms: what its time is made of.
        fixed_s: and what is certain of it.
        watts: joules per second while it goes on.
        fixed_j: joules beside (a radio's tail).
        metered_bytes: what it takes of the data plan.
        lasting: for how long it can go on, in seconds from now (the rest of a dwell time); None:
            as long as it takes.
        detour_s: what is lost beyond that: noticing, and doing it another way from the start.
    """

    name: str
    terms: tuple[Term, ...] = ()
    fixed_s: float = 0.0
    watts: float = 0.0
    fixed_j: float = 0.0
    metered_bytes: float = 0.0
    lasting: Distribution | None = None
    detour_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Redundant:
    """Several ways at once: the first to end counts, and all of them are paid.

    `called_off`: whether the others end with it; else each goes on to its own end.
    """

    name: str
    parts: tuple[str, ...]
    called_off: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """What a way is expected to take from now on; all of it infinite where nothing can be said.

    `low_s` and `high_s` bound the method's interval of the time: 90 % of the probability (brute
    force, Bayesian), the prediction interval (error bounds), or the point itself (trusting).
    """

    name: str
    time_s: float
    low_s: float
    high_s: float
    energy_j: float
    metered_bytes: float
    cost: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The way of least cost, all of them as they were judged, and the reason in words."""

    name: str
    evaluations: tuple[Judged, ...]
    why: str

    @property
    def chosen(self) -> Judged:
        return next(each for each in self.evaluations if each.name == self.name)


Running = Mapping[str, float]
"""Ways that are under way without an answer: name -> seconds so far. What they used is spent."""


@lru_cache(maxsize=4096)
def network_terms(network: str, size_bytes: float, round_trips: float = 1.0) -> tuple[Term, Term]:
    """The time of an exchange over a network, by `predictors.network`'s quantities.

    Args:
        network: the name its predictor has.
        size_bytes: bytes carried, both ways.
        round_trips: how many latencies pass before the last byte.
    """
    bits = 8.0 * size_bytes
    return (
        Term(f"{network}.bandwidth", lambda bps: bits / bps),
        Term(f"{network}.latency", lambda latency_s: round_trips * latency_s),
    )
