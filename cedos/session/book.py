"""The accepting end's flows: those that live. What handshakes ask about."""

from collections.abc import Callable
from typing import Final

from cedos.session.connection import Connection
from cedos.session.handshake.accepting import Grant, OpenRequest, Reason, Refusal
from cedos.session.handshake.credentials import Credentials

LONGEST_S: Final = 30 * 86_400


class Book:
    """Flows by their id (`FlowBook` of the handshakes).

    Args:
        allow: whether the holder of a public key may open flows; everybody without.
    """

    def __init__(self, allow: Callable[[bytes], bool] | None) -> None:
        self._allow = allow
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
        return Grant(min(request.deadline_s, LONGEST_S))

    def add(self, flow_id: bytes, connection: Connection) -> None:
        """A new flow lives."""
        self._living[flow_id] = connection

    def remove(self, flow_id: bytes) -> None:
        """It has ended."""
        self._living.pop(flow_id, None)

    def living(self) -> list[Connection]:
        """All that live."""
        return list(self._living.values())
