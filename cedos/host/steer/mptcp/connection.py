"""Living MPTCP connections as steering shows them, and what happens to them."""

from dataclasses import dataclass, field

from cedos.kernel.mptcp import PathManagerCommand
from cedos.model import Address, FlowKey, Strategy, StrategyKind


@dataclass(frozen=True, slots=True)
class MptcpSubflow:
    """A subflow of a living connection. `network` is None if its address belongs to none."""

    key: FlowKey
    network: str | None
    backup: bool


@dataclass(frozen=True, slots=True)
class MptcpConnection:
    """A living MPTCP connection.

    `unsteerable` says why it is left alone, None where it can be steered; `strategy` is what was
    last asked of steering for it.
    """

    token: int
    subflows: tuple[MptcpSubflow, ...]
    strategy: Strategy | None = None
    unsteerable: str | None = None

    def subflow(self, network: str) -> MptcpSubflow | None:
        return next((each for each in self.subflows if each.network == network), None)


@dataclass(frozen=True, slots=True)
class ConnectionEvent:
    """Something happened to a connection; `key` is the subflow that it is about."""

    connection: MptcpConnection
    key: FlowKey

    @property
    def token(self) -> int:
        return self.connection.token

    @property
    def spare(self) -> bool:
        """Return whether it can be moved now: it is ours to steer and has subflows over two networks."""
        networks = {each.network for each in self.connection.subflows} - {None}
        return self.connection.unsteerable is None and len(networks) > 1


class ConnectionOpened(ConnectionEvent):
    """A connection is established, or was found alive."""


class SubflowUp(ConnectionEvent):
    pass


class SubflowDown(ConnectionEvent):
    """A subflow of a connection has ended; the connection lives."""


class ConnectionLeft(ConnectionEvent):
    """A connection is left alone from now on; `connection` tells why."""


class ConnectionClosed(ConnectionEvent):
    """A connection has ended; it is shown as it was last."""


@dataclass(slots=True)
class PathManagerStep:
    """The consequences of a fact: commands in their order, and what to report."""

    commands: list[PathManagerCommand] = field(default_factory=list)
    events: list[ConnectionEvent] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Join:
    """A subflow that we have asked for or shall ask for again: until when, and how often so far."""

    until_s: float
    tries: int
    asked: bool


@dataclass(slots=True)
class ConnectionState:
    """A living connection: its subflows, where it is to go, and those that it waits for.

    `home` is the network that it began on, `unsteerable` why it is left alone; `joins` by network.
    """

    token: int
    initial: FlowKey
    home: str | None
    unsteerable: str | None
    strategy: Strategy | None = None
    subflows: dict[FlowKey, MptcpSubflow] = field(default_factory=dict)
    joins: dict[str, Join] = field(default_factory=dict)
    # Per address the requests that may still come up, oldest first: whether as a backup.
    asked: dict[Address, list[bool]] = field(default_factory=dict)

    def view(self) -> MptcpConnection:
        subflows = tuple(self.subflows.values())
        return MptcpConnection(self.token, subflows, self.strategy, self.unsteerable)

    def wants_backup(self, network: str) -> bool:
        """Return whether subflows over a network are to be backups."""
        return self.alone is not None and network != self.alone

    @property
    def alone(self) -> str | None:
        """Return the network that is to carry everything; None: all of them are."""
        if self.strategy is None:
            return self.home
        return self.strategy.networks[0] if self.strategy.kind is StrategyKind.SINGLE else None
