"""Parts of a connection's interface: messages, IROBs that are being written, counts and reports."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from cedos.model import Label
from cedos.session.io.driver import Waiter
from cedos.session.io.path import SessionPath
from cedos.session.protocol.session import Session


class Message(NamedTuple):
    """A whole message (IROB) from the peer; answers usually have its label."""

    irob: int
    label: Label
    data: bytes


class Irob:
    """A message that was begun: `end` or `abandon` it.

    Args:
        number: its own, for messages that depend on it.
        core: the session's.
        sent: called when there is data to send.
        check: raises the error that ended the session.
        something: what to wait on until any event.
    """

    def __init__(
        self,
        number: int,
        core: Session,
        sent: Callable[[], None],
        check: Callable[[], None],
        something: Callable[[], Waiter],
    ) -> None:
        self.irob = number
        self._core = core
        self._sent = sent
        self._check = check
        self._something = something

    async def send(self, data: bytes) -> None:
        """Send its next bytes; they may be on their way before it ends."""
        while data:
            self._check()
            taken = self._core.append(self.irob, data)
            self._sent()
            data = data[taken:]
            if data:
                await self._something()

    def end(self) -> None:
        """End it: the peer may have it delivered."""
        self._core.end(self.irob)
        self._sent()

    def abandon(self) -> None:
        """Abandon it: it is never delivered, and nothing waits for it."""
        self._core.abandon(self.irob)
        self._sent()


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
