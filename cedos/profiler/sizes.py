"""What each server sent before, as quantiles: the size of a transfer whose own bytes do not tell.

Delphi (section 4) answers 3 KB where nothing is known and 100 KB once chunked coding is seen, the
medians of the Alexa top 500. Here these are the medians of a prior that a server's own transfers
replace, and the answer is an interval.
"""

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import NormalDist
from typing import Any

from cedos.errors import HistoryError
from cedos.model import Direction, SizeEstimate

_STANDARD = NormalDist()
_QUANTILES = tuple((i + 0.5) / 11 for i in range(11))
_POINTS = tuple(_STANDARD.inv_cdf(q) for q in _QUANTILES)

# How a host's samples become an interval. Chosen on simulated hosts whose typical sizes spread over
# five orders of magnitude: the 90 % interval then covers 88-97 % from the first sample on.
_WINDOW = 48
_WEIGHTS = tuple(0.96**age for age in range(_WINDOW))  # by age, the newest first
_PRIOR_WEIGHT = 0.5  # of the prior, in samples
_NOVELTY_WEIGHT = 0.5  # of sizes outside all seen so far, in samples
_NOVELTY_FACTOR = 4.0  # how far outside
_FADES_AFTER = 16  # samples, from which on both weights fall


@dataclass(frozen=True, slots=True)
class Prior:
    """What to expect of an unknown server: log-normal with this median and this sigma of ln(bytes).

    The paper gives medians alone; sigma makes the 90 % interval two orders of magnitude each way.
    """

    median_bytes: float
    sigma: float = 2.8
    points: tuple[float, ...] = field(init=False, repr=False, compare=False)
    """Equally likely sizes that stand for the distribution."""

    def __post_init__(self) -> None:
        points = tuple(self.median_bytes * math.exp(self.sigma * z) for z in _POINTS)
        object.__setattr__(self, "points", points)

    def points_above(self, size_bytes: int) -> list[float]:
        """Equally likely sizes that stand for the distribution of those larger than this."""
        z = math.log(max(1, size_bytes) / self.median_bytes) / self.sigma
        share = max(0.5 * math.erfc(z / math.sqrt(2)), 1e-300)
        return [
            self.median_bytes * math.exp(-self.sigma * _STANDARD.inv_cdf(share * q))
            for q in _QUANTILES
        ]


UNKNOWN = Prior(3_000)
"""Nothing is known of the transfer."""
CHUNKED = Prior(100_000)
"""Its length is not stated because it is made while it is sent."""


class SizeHistory:
    """Sizes of finished transfers per host (server name or address), remote port and direction.

    Bounded: the newest 48 samples of each direction, and the `max_hosts` (host, port) pairs that were
    learned or asked last. Sizes are bytes of one transfer, 0 where a direction carried no body.
    """

    def __init__(self, *, max_hosts: int = 2048) -> None:
        self._max_hosts = max_hosts
        # Samples are floats: sorting pairs of one type is what an estimate's time goes into.
        self._hosts: OrderedDict[tuple[str, int], dict[Direction, deque[float]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    def learn(self, host: str, port: int, direction: Direction, size_bytes: int) -> None:
        """Adds a finished transfer; sizes below 0 are taken as 0."""
        host_port = (host, port)
        known = self._hosts.get(host_port)
        if known is None:
            known = {way: deque(maxlen=_WINDOW) for way in Direction}
            self._hosts[host_port] = known
            if len(self._hosts) > self._max_hosts:
                self._hosts.popitem(last=False)
        else:
            self._hosts.move_to_end(host_port)
        known[direction].append(float(max(0, size_bytes)))

    def samples(self, host: str, port: int, direction: Direction) -> int:
        """How many samples an estimate for this host would rest on."""
        known = self._hosts.get((host, port))
        return len(known[direction]) if known else 0

    def estimate(
        self, host: str, port: int, direction: Direction, *, prior: Prior = UNKNOWN
    ) -> SizeEstimate:
        """The next transfer's size; source `history`, or `default` where the host is unknown."""
        sizes = self._newest_first(host, port, direction)
        if not sizes:
            return _interval([(size, 1.0) for size in prior.points], "default")
        weighted = list(zip(sizes, _WEIGHTS, strict=False))
        fade = min(1.0, _FADES_AFTER / len(sizes))
        weighted += [(min(sizes) / _NOVELTY_FACTOR, fade * _NOVELTY_WEIGHT / 2)]
        weighted += [(max(sizes) * _NOVELTY_FACTOR, fade * _NOVELTY_WEIGHT / 2)]
        weighted += _spread(prior.points, fade * _PRIOR_WEIGHT)
        return _interval(weighted, "history")

    def exceeded(
        self,
        host: str,
        port: int,
        direction: Direction,
        so_far_bytes: int,
        *,
        prior: Prior = UNKNOWN,
    ) -> SizeEstimate:
        """The size of a transfer that has moved `so_far_bytes` and goes on; source `progress`.

        Past transfers that were longer count as before; the rest is the prior's tail.
        """
        sizes = self._newest_first(host, port, direction)
        weighted = [pair for pair in zip(sizes, _WEIGHTS, strict=False) if pair[0] > so_far_bytes]
        if weighted:
            longest = max(size for size, _ in weighted)
            weighted.append((longest * _NOVELTY_FACTOR, _NOVELTY_WEIGHT / 2))
        weighted += _spread(prior.points_above(so_far_bytes), _PRIOR_WEIGHT)
        return _interval(weighted, "progress", at_least=so_far_bytes + 1)

    def state(self) -> dict[str, Any]:
        """All samples, JSON-able, the least recently used host first."""
        hosts = [
            [
                host,
                port,
                *([int(size) for size in known[way]] for way in (Direction.DOWN, Direction.UP)),
            ]
            for (host, port), known in self._hosts.items()
        ]
        return {"version": 1, "hosts": hosts}

    @classmethod
    def from_state(cls, state: Any, *, max_hosts: int = 2048) -> "SizeHistory":
        """The history that `state` was taken from.

        Raises:
            HistoryError: `state` is something else.
        """
        history = cls(max_hosts=max_hosts)
        try:
            if not isinstance(state, Mapping) or state["version"] != 1:
                raise ValueError("it is not version 1")
            for host, port, down, up in state["hosts"]:
                _check(host, str)
                _check(port, int)
                for direction, sizes in ((Direction.DOWN, down), (Direction.UP, up)):
                    for size in sizes:
                        _check(size, int)
                        history.learn(host, port, direction, size)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise HistoryError(f"not a history of sizes: {error}") from error
        return history

    def _newest_first(self, host: str, port: int, direction: Direction) -> list[float]:
        known = self._hosts.get((host, port))
        if known is None:
            return []
        self._hosts.move_to_end((host, port))
        return list(reversed(known[direction]))


def _check(value: object, kind: type) -> None:
    if type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} belongs")


def _spread(points: Sequence[float], weight: float) -> list[tuple[float, float]]:
    share = weight / len(points)
    return [(point, share) for point in points]


def _interval(
    weighted: list[tuple[float, float]], source: str, *, at_least: int = 0
) -> SizeEstimate:
    """The 5 %, 50 % and 95 % quantiles of (size, weight) pairs."""
    weighted.sort()
    reached = list(accumulate([weight for _, weight in weighted]))
    low, median, high = (
        max(at_least, round(weighted[bisect_left(reached, share * reached[-1])][0]))
        for share in (0.05, 0.5, 0.95)
    )
    return SizeEstimate(low, median, high, source)
