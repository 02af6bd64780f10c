"""What a session tells of one of its paths."""

from dataclasses import dataclass
from typing import Self

from cedos.session.io.path import SessionPath


@dataclass(frozen=True, slots=True)
class PathReport:
    """One path as it is now; rates and times None where they are not measured yet."""

    network: str
    peer: str
    rtt_s: float | None
    rate_bps: float | None
    unsent_bytes: int
    stalled: bool

    @classmethod
    def of(cls, path: SessionPath) -> Self:
        facts = path.facts
        return cls(
            facts.network,
            path.peer,
            facts.rtt_s,
            facts.rate_bps,
            facts.unsent_bytes,
            facts.stalled_at_s is not None,
        )
