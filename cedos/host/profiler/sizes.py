"""Sizes of transfers: priors, the history of each server, and the basis of an estimate.

**Priors.** Delphi (section 4) answers 3 KB if nothing is known and 100 KB once chunked coding is
seen, the medians of the Alexa top 500. These are of single HTTP answers. A TLS or QUIC connection
counts as a whole, with all that one page asks of one server, and has medians of its own here
(`WHOLE`).

**History.** The sizes that each server sent before, as quantiles. A server is expected to be like
its domain, that like its address, that like its kind (the priors): each level counts as much as
half a sample of the one before it.

**Basis.** The source of the estimate if the transfer's own bytes do not state its size.
"""

import math
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import accumulate
from statistics import NormalDist
from typing import Any, NamedTuple

from cedos.errors import HistoryError
from cedos.host.profiler.http import HttpResponse
from cedos.model import Direction, SizeEstimate

_STANDARD = NormalDist()
_QUANTILES = tuple((i + 0.5) / 11 for i in range(11))
_POINTS = tuple(_STANDARD.inv_cdf(q) for q in _QUANTILES)
_SURPRISE = _STANDARD.inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class Prior:
    """The prior of an unknown server: log-normal with this median and this sigma of ln(bytes).

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
        """Equally likely sizes that stand for the distribution of those larger than this.

        A size that the prior hardly knows shows it to be too narrow: it is widened until what came
        lies within its 90 % interval, so that the estimate runs ahead and is not chased.
        """
        distance = math.log(max(1, size_bytes) / self.median_bytes)
        sigma = max(self.sigma, distance / _SURPRISE)
        z = distance / sigma
        share = max(0.5 * math.erfc(z / math.sqrt(2)), 1e-300)
        return [
            self.median_bytes * math.exp(-sigma * _STANDARD.inv_cdf(share * q)) for q in _QUANTILES
        ]


# The prior of an unknown transfer.
UNKNOWN = Prior(3_000)
# The prior of a body of unstated length, which the server makes while it sends.
CHUNKED = Prior(100_000, 1.5)

# The priors of whole connections by the server's port and the direction; others: `UNKNOWN`.
#
# Downloads are those of generated pages (`emu.workloads.web.visits` makes these two figures).
# Uploads are a handshake and ten requests of curl, with the width of an unknown transfer.
WHOLE: Mapping[tuple[int, Direction], Prior] = {
    (443, Direction.DOWN): Prior(32_000, 1.5),
    (443, Direction.UP): Prior(1_300),
}


# How a host's samples become an interval. Chosen on simulated hosts whose typical sizes spread over
# five orders of magnitude: the 90 % interval then covers 88-97 % from the first sample on.
_WINDOW = 48
_WEIGHTS = tuple(0.96**age for age in range(_WINDOW))  # by age, the newest first
_WIDER_WINDOW = 16  # of the levels above
_WIDER_WEIGHT = 0.5  # of the level above, in samples
_NOVELTY_WEIGHT = 0.5  # of sizes outside all seen so far, in samples
_NOVELTY_FACTOR = 4.0  # how far outside
_FADES_AFTER = 16  # samples, from which on both weights fall
# An estimate holds until so large a share of its samples is new: under a hundred flows a second it is
# asked for three times a flow, and making it each time was an eighth of all that the daemon did.
_NEW_SHARE = 1 / 8
_TOLD_AT_MOST = 32  # of each host; what was seen of single resources differs
_EVIDENCE_WEIGHT = 6.0  # of what is known of this very transfer, where all else weighs 1

_Weighted = list[tuple[float, float]]
_Asked = tuple[Direction, tuple[str, ...], Prior, tuple[int, ...]]


class _Host:
    """The history of one host at one port: its newest sizes, their number, and its own estimates."""

    __slots__ = ("learned", "sizes", "told")

    def __init__(self) -> None:
        # Samples are floats: sorting pairs of one type is what an estimate's time goes into.
        self.sizes: dict[Direction, deque[float]] = {
            way: deque(maxlen=_WINDOW) for way in Direction
        }
        self.learned = dict.fromkeys(Direction, 0)
        self.told: dict[_Asked, tuple[float, SizeEstimate]] = {}


class SizeHistory:
    """Sizes of finished transfers per host (server name, domain or address), port and direction.

    Bounded: the newest 48 samples of each direction, the `max_hosts` (host, port) pairs that were
    learned or asked last, and as many resources of HTTP with their last size. Sizes are bytes of one
    transfer, 0 where a direction carried no body.
    """

    def __init__(self, *, max_hosts: int = 2048) -> None:
        self._max_hosts = max_hosts
        self._hosts: OrderedDict[tuple[str, int], _Host] = OrderedDict()
        self._resources: OrderedDict[str, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    def learn(self, host: str, port: int, direction: Direction, size_bytes: int) -> None:
        """Add a finished transfer; sizes below 0 count as 0."""
        host_port = (host, port)
        known = self._hosts.get(host_port)
        if known is None:
            known = self._hosts[host_port] = _Host()
            if len(self._hosts) > self._max_hosts:
                self._hosts.popitem(last=False)
        else:
            self._hosts.move_to_end(host_port)
        known.sizes[direction].append(float(max(0, size_bytes)))
        known.learned[direction] += 1

    def samples(self, host: str, port: int, direction: Direction) -> int:
        known = self._hosts.get((host, port))
        return len(known.sizes[direction]) if known else 0

    def sizes_above(
        self, host: str, port: int, direction: Direction, size_bytes: int
    ) -> list[float]:
        """Return the sizes that were larger than this."""
        known = self._hosts.get((host, port))
        return [size for size in known.sizes[direction] if size > size_bytes] if known else []

    def learn_resource(self, resource: str, size_bytes: int) -> None:
        """Record the size of a resource's body (`resource_name`) this time."""
        self._resources[resource] = size_bytes
        self._resources.move_to_end(resource)
        if len(self._resources) > self._max_hosts:
            self._resources.popitem(last=False)

    def resource(self, resource: str | None) -> int | None:
        """Return the size of the resource's last body; None if it is unknown."""
        return None if resource is None else self._resources.get(resource)

    def estimate(
        self,
        host: str,
        port: int,
        direction: Direction,
        *,
        wider: Sequence[str] = (),
        prior: Prior = UNKNOWN,
        evidence: Iterable[int] = (),
    ) -> SizeEstimate:
        """Return the next transfer's size; source `history`, or `default` if only the prior is known.

        `wider`: what the host is taken for while little is known of it, the nearest first (its
        domain, its address). `evidence`: sizes that something says of this very transfer, without
        being sure.
        """
        known = self._hosts.get((host, port))
        evidence = tuple(evidence)
        fresh = len(known.sizes[direction]) * _NEW_SHARE if known else 0.0
        if known is None or fresh < 1.0:
            return self._estimate(host, port, direction, wider, prior, evidence)
        asked = (direction, tuple(wider), prior, evidence)
        until, told = known.told.get(asked, (0.0, None))
        if told is None or known.learned[direction] >= until:
            told = self._estimate(host, port, direction, wider, prior, evidence)
            if len(known.told) >= _TOLD_AT_MOST:
                known.told.clear()
            known.told[asked] = (known.learned[direction] + fresh, told)
        else:
            self._hosts.move_to_end((host, port))
        return told

    def _estimate(
        self,
        host: str,
        port: int,
        direction: Direction,
        wider: Sequence[str],
        prior: Prior,
        evidence: Sequence[int],
    ) -> SizeEstimate:
        weighted, source = _spread(prior.points), "default"
        for sizes in self._levels(host, wider, port, direction):
            source = "history"
            fade = min(1.0, _FADES_AFTER / len(sizes))
            novelty = fade * _NOVELTY_WEIGHT / 2
            weighted = _scale(weighted, fade * _WIDER_WEIGHT)
            weighted += zip(sizes, _WEIGHTS, strict=False)
            weighted.append((min(sizes) / _NOVELTY_FACTOR, novelty))
            weighted.append((max(sizes) * _NOVELTY_FACTOR, novelty))
        hints = [(float(size), _EVIDENCE_WEIGHT) for size in evidence]
        if hints:
            weighted, source = _scale(weighted, 1.0) + hints, "history"
        return _interval(weighted, source)

    def estimate_above(
        self,
        host: str,
        port: int,
        direction: Direction,
        so_far_bytes: int,
        *,
        wider: Sequence[str] = (),
        prior: Prior = UNKNOWN,
        evidence: Iterable[int] = (),
    ) -> SizeEstimate:
        """Return the size of a transfer that exceeds `so_far_bytes`; source `progress`.

        The distribution given that so much was carried (dissertation, 4.3.4): past transfers that
        were longer count as before; the rest is the prior's tail. Arguments as for `estimate`.
        """
        weighted = _spread(prior.points_above(so_far_bytes))
        for sizes in self._levels(host, wider, port, direction):
            pairs = zip(sizes, _WEIGHTS, strict=False)
            longer = [pair for pair in pairs if pair[0] > so_far_bytes]
            if longer:
                longest = max(size for size, _ in longer)
                weighted = _scale(weighted, _WIDER_WEIGHT) + longer
                weighted.append((longest * _NOVELTY_FACTOR, _NOVELTY_WEIGHT / 2))
        known = [(float(size), _EVIDENCE_WEIGHT) for size in evidence if size > so_far_bytes]
        if known:
            weighted = _scale(weighted, 1.0) + known
        return _interval(weighted, "progress", at_least=so_far_bytes + 1)

    def _levels(
        self, host: str, wider: Sequence[str], port: int, direction: Direction
    ) -> Iterable[list[float]]:
        """Yield the samples of each level that has any, the widest first, in each the newest first."""
        for at in range(len(wider) - 1, -1, -1):
            if sizes := self._newest_first(wider[at], port, direction):
                yield sizes[:_WIDER_WINDOW]
        if sizes := self._newest_first(host, port, direction):
            yield sizes

    def state(self) -> dict[str, Any]:
        """Return all samples as plain data for JSON.

        The least recently used first. Resources are hashed.
        """
        hosts = [
            [
                host,
                port,
                *(
                    [int(size) for size in known.sizes[way]]
                    for way in (Direction.DOWN, Direction.UP)
                ),
            ]
            for (host, port), known in self._hosts.items()
        ]
        return {"version": 2, "hosts": hosts, "resources": list(map(list, self._resources.items()))}

    @classmethod
    def from_state(cls, state: Any, *, max_hosts: int = 2048) -> "SizeHistory":
        """Return the history of a `state`; HistoryError if it is none."""
        history = cls(max_hosts=max_hosts)
        try:
            if not isinstance(state, Mapping) or state["version"] != 2:
                raise ValueError("it is not version 2")
            for host, port, down, up in state["hosts"]:
                _check(host, str)
                _check(port, int)
                for direction, sizes in ((Direction.DOWN, down), (Direction.UP, up)):
                    for size in sizes:
                        _check(size, int)
                        history.learn(host, port, direction, size)
            for resource, size in state["resources"]:
                _check(resource, str)
                _check(size, int)
                history.learn_resource(resource, size)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise HistoryError(f"not a history of sizes: {error}") from error
        return history

    def _newest_first(self, host: str, port: int, direction: Direction) -> list[float]:
        known = self._hosts.get((host, port))
        if known is None:
            return []
        self._hosts.move_to_end((host, port))
        return list(reversed(known.sizes[direction]))


def _check(value: object, kind: type) -> None:
    if type(value) is not kind:
        raise TypeError(f"{value!r} where {kind.__name__} belongs")


def resource_name(host: str, port: int, target: bytes) -> str:
    """Return the name of a resource of an HTTP server: a hash, as addresses tell too much."""
    text = b"%s:%d%s" % (host.encode(), port, target)
    return blake2b(text, digest_size=9).hexdigest()


def _spread(points: Sequence[float]) -> _Weighted:
    share = 1.0 / len(points)
    return [(point, share) for point in points]


def _scale(weighted: _Weighted, total: float) -> _Weighted:
    """Return the same distribution with weights that sum to `total`."""
    factor = total / sum([weight for _, weight in weighted])
    return [(size, weight * factor) for size, weight in weighted]


def _interval(weighted: _Weighted, source: str, *, at_least: int = 0) -> SizeEstimate:
    """Return the 5 %, 50 % and 95 % quantiles of (size, weight) pairs."""
    weighted.sort()
    reached = list(accumulate([weight for _, weight in weighted]))
    low, median, high = (
        max(at_least, round(weighted[bisect_left(reached, share * reached[-1])][0]))
        for share in (0.05, 0.5, 0.95)
    )
    return SizeEstimate(low, median, high, source)


# The sizes of buffers are multiples of this. A first chunk of another size is usually the whole
# body.
_BUFFER_BYTES = 256
_SMALLEST_CHUNK = 64


class EstimateBasis(NamedTuple):
    """The arguments of `SizeHistory.estimate`, and how much it is known to exceed."""

    hosts: Sequence[str]
    prior: Prior
    evidence: tuple[int, ...] = ()
    more_than: int = 0

    def estimate(self, history: SizeHistory, port: int, direction: Direction) -> SizeEstimate:
        if self.more_than:
            return self.estimate_above(history, port, direction, self.more_than)
        host, *wider = self.hosts
        return history.estimate(
            host, port, direction, wider=wider, prior=self.prior, evidence=self.evidence
        )

    def estimate_above(
        self, history: SizeHistory, port: int, direction: Direction, so_far_bytes: int
    ) -> SizeEstimate:
        host, *wider = self.hosts
        return history.estimate_above(
            host,
            port,
            direction,
            so_far_bytes,
            wider=wider,
            prior=self.prior,
            evidence=self.evidence,
        )


def of_chunks(
    hosts: Sequence[str], prior: Prior, response: HttpResponse, before: int | None
) -> EstimateBasis:
    """Return the basis of a body in chunks: its size `before`, else its first chunk."""
    kind = in_chunks(hosts)
    if before is not None:
        return EstimateBasis(kind, prior, (before,))
    first = response.first_chunk or 0
    if first >= _SMALLEST_CHUNK and first % _BUFFER_BYTES:
        return EstimateBasis(kind, prior, (first,))
    return EstimateBasis(kind, prior, (), first)


def in_chunks(hosts: Sequence[str]) -> list[str]:
    """Return the names under which bodies in chunks are learned; no server can have them."""
    return [f"{host} in chunks" for host in hosts]
