"""What accepting ends on several machines share of their flows, so that each can go on with any."""

import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from cedos.session.protocol.crypto import HOST_ID_BYTES
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


@dataclass(frozen=True, slots=True)
class FoundFlow:
    """`record`: how it was when it was quiet; `place`: where the machine is reached at which it lives.

    `seen`: how many attempts of the other end whoever said either had seen.
    """

    record: bytes | None = None
    place: tuple[str, int] | None = None
    seen: int = 0


@dataclass(frozen=True, slots=True)
class HeardFlow:
    """Of a hello that another machine passes on: whether its flow lives here.

    `proved`: it is of who has the flow's secret, and was not heard before; `host`: the id of the flow's
    other end.
    """

    lives: bool
    proved: bool = False
    host: bytes = bytes(HOST_ID_BYTES)


class PassedOn(Enum):
    """What became of a connection."""

    DONE = auto()  # it is the other machine's, or is closed: its peer tries again
    NOT_THERE = auto()  # the other machine does not answer, or the flow does not live there


class SharedFlows(Protocol):
    """Flows by their id, as records of `IdleSessions`, and where each of them lives.

    Of two that have a flow it is whose record has seen more attempts of the other end: who goes on with
    one has seen one more than whoever had it.
    """

    def begin(self, here: FlowsHere) -> None:
        """Called once, in the loop."""

    def accept(
        self,
        heard: Callable[[bytes], HeardFlow],
        take: Callable[[socket.socket, str, bytes], None],
    ) -> None:
        """Called once, then: how connections come here that other machines pass on.

        `heard` is asked with a connection's first message; `take` gets the connection, its peer's address
        and that message.
        """

    @property
    def answers(self) -> bool:
        """Whether it can be asked now."""

    async def find(self, flow_id: bytes) -> FoundFlow | None:
        """What is known of a flow; nothing, where there is no answer within a moment.

        None: there was no time to ask.
        """

    async def pass_on(
        self, place: tuple[str, int], connection: socket.socket, address: str, hello: bytes
    ) -> PassedOn:
        """Carries a connection to the machine at which its flow lives, within a moment, and back.

        `address`: of its peer; `hello`: what it has said. With NOT_THERE it is the caller's still.
        """

    def lives(self, credentials: Credentials) -> None:
        """A flow lives here from now on."""

    def sleeps(self, credentials: Credentials) -> None:
        """A flow does not live here any more: any machine may wake it."""

    def write(self, record: bytes) -> None:
        """It is written soon; nobody waits."""

    def came(self, record: bytes) -> None:
        """A flow that another machine had goes on here: its record, with what proves it now."""

    def forget(self, credentials: Credentials) -> None:
        """A flow of this machine is over."""

    async def close(self) -> None:
        """Writes what is left to be written, within a moment."""
