"""The accepting end's flows: those that live. What handshakes ask about."""

from collections.abc import Callable
from typing import Final

from cedos.session.connection import Connection
from cedos.session.handshake.accepting import Grant, OpenRequest, Reason, Refusal
from cedos.session.handshake.credentials import Credentials
from cedos.session.handshake.outcome import Opened
from cedos.session.limits import HostLedger

LONGEST_S: Final = 30 * 86_400
_AGAIN_S: Final = 60


class Book:
    """Flows by their id (`FlowBook` of the handshakes).

    Args:
        allow: whether the holder of a public key may open flows; everybody without.
        ledger: counts what each host has.
    """

    def __init__(self, allow: Callable[[bytes], bool] | None, ledger: HostLedger) -> None:
        self._allow = allow
        self._ledger = ledger
        self._living: dict[bytes, Connection] = {}
        self.closed = False

    def find(self, flow_id: bytes) -> Credentials | None:
        """A flow's credentials; None where it is not known."""
        connection = self._living.get(flow_id)
        return None if connection is None else connection.flow.credentials

    def get(self, flow_id: bytes) -> Connection | None:
        """A living flow."""
        return self._living.get(flow_id)

    def admit(self, request: OpenRequest) -> Grant | Refusal:
        """Whether there may be a new flow."""
        if request.flow_id in self._living:
            return Refusal(Reason.DUPLICATE)
        if self.closed or (self._allow is not None and not self._allow(request.peer_key)):
            return Refusal(Reason.NOT_ALLOWED)
        if not self._ledger.may_open(request.host_id):
            return Refusal(Reason.LIMIT, _AGAIN_S)
        return Grant(min(request.deadline_s, LONGEST_S))

    def add(self, opened: Opened, connection: Connection) -> None:
        """A new flow lives, until its `flow.over`."""
        flow_id, host = opened.credentials.flow_id, opened.host_id
        self._living[flow_id] = connection
        self._ledger.open_flow(host)

        def over() -> None:
            del self._living[flow_id]
            self._ledger.close_flow(host)

        connection.flow.over = over

    def living(self) -> list[Connection]:
        """All that live."""
        return list(self._living.values())
