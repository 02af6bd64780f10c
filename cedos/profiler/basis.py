"""What a transfer's size is estimated from, when its own bytes do not state it."""

from collections.abc import Sequence
from typing import NamedTuple

from cedos.model import Direction, SizeEstimate
from cedos.profiler.http import HttpResponse
from cedos.profiler.priors import Prior
from cedos.profiler.sizes import SizeHistory

# A first chunk that is no multiple of what buffers are made of is most often all that there is.
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
            return self.exceeded(history, port, direction, self.more_than)
        host, *wider = self.hosts
        return history.estimate(
            host, port, direction, wider=wider, prior=self.prior, evidence=self.evidence
        )

    def exceeded(
        self, history: SizeHistory, port: int, direction: Direction, so_far_bytes: int
    ) -> SizeEstimate:
        host, *wider = self.hosts
        return history.exceeded(
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
    """Of a body in chunks, which has a history of its own: what it was `before`, else its first chunk."""
    kind = in_chunks(hosts)
    if before is not None:
        return EstimateBasis(kind, prior, (before,))
    first = response.first_chunk or 0
    if first >= _SMALLEST_CHUNK and first % _BUFFER_BYTES:
        return EstimateBasis(kind, prior, (first,))
    return EstimateBasis(kind, prior, (), first)


def in_chunks(hosts: Sequence[str]) -> list[str]:
    """The names under which bodies in chunks are learned; no server can be called so."""
    return [f"{host} in chunks" for host in hosts]
