"""What accepting ends on several machines share of their flows, so that each can go on with any."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from cedos.session.protocol.handshake.credentials import Credentials


@dataclass(frozen=True, slots=True)
class FlowsHere:
    """What this machine has.

    `living`: what proves those that live here; `written`: the records of all that are written down,
    `knows`: whether one is; `renew`: write one that lives down again, if it is idle; `taken`: another
    machine has it now.
    """

    living: Callable[[], Iterable[Credentials]]
    written: Callable[[], Iterator[bytes]]
    knows: Callable[[bytes], bool]
    renew: Callable[[bytes], None]
    taken: Callable[[bytes], None]


class SharedFlows(Protocol):
    """Flows by their id, as records of `IdleSessions`.

    Of two that have a flow it is whose record has seen more attempts of the other end: who goes on with
    one has seen one more than whoever had it.
    """

    def begin(self, here: FlowsHere) -> None:
        """Called once, in the loop."""

    @property
    def answers(self) -> bool:
        """Whether it can be asked now."""

    async def find(self, flow_id: bytes) -> bytes | None:
        """A flow's record; None: there is none, or no answer within a moment."""

    def write(self, record: bytes) -> None:
        """It is written soon; nobody waits."""

    def came(self, record: bytes) -> None:
        """A flow that another machine had goes on here: its record, with what proves it now."""

    def forget(self, credentials: Credentials) -> None:
        """A flow of this machine is over."""

    async def close(self) -> None:
        """Writes what is left to be written, within a moment."""
