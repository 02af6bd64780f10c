"""Living MPTCP connections as steering shows them, and what happens to them."""

from dataclasses import dataclass

from cedos.model import FlowKey, Strategy


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


class ConnectionClosed(ConnectionEvent):
    """A connection has ended; it is shown as it was last."""
