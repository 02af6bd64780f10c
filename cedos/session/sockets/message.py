"""Parts of a connection's interface: messages, counts and reports."""

from dataclasses import dataclass
from typing import NamedTuple, Self

from cedos.model import Label
from cedos.session.io.path import SessionPath


class Message(NamedTuple):
    """A whole message (IROB) from the peer; answers usually have its label."""

    irob: int
    label: Label
    data: bytes


class DatagramCounts(NamedTuple):
    """The datagrams sent, copied to a further path, and expired without a path in time."""

    sent: int
    copies: int
    expired: int


@dataclass(frozen=True, slots=True)
class PathReport:
    """The state of one path; `rtt_s` is None where it is not measured yet."""

    network: str
    peer: str
    rtt_s: float | None
    stalled: bool

    @classmethod
    def of(cls, path: SessionPath) -> Self:
        facts = path.facts
        return cls(facts.network, path.peer, facts.rtt_s, facts.stalled_at_s is not None)
