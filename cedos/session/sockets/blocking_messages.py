"""The messages (IROBs) of a blocking socket (dissertation, Table 2.2)."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from cedos.model import Label
from cedos.session.sockets import background
from cedos.session.sockets.blocking_waiting import Waiting
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.labelled import STREAM_LABEL, Message
from cedos.session.sockets.os_errors import run


class Messages(Waiting, ABC):
    """The part of a socket that has to do with messages; errors are OSError as the socket's."""

    @abstractmethod
    def _look(self) -> None:
        """Something may be readable, or not any more; to be called in the loop."""

    def ms_send(
        self,
        data: bytes,
        label: Label = STREAM_LABEL,
        after: tuple[int, ...] | None = None,
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        """A whole message; its id, or None where the thunk was kept. `after` None: all before it."""
        whole = bytes(data)
        if after is None and thunk is None:
            irob = self._now(lambda connection: connection.send_now(whole, label))
            if irob:
                return irob
        return run(self._of().send(whole, label, after=after, thunk=thunk), self._timeout_s)

    def begin_irob(
        self,
        label: Label = STREAM_LABEL,
        after: tuple[int, ...] | None = None,
        thunk: Callable[[], None] | None = None,
    ) -> Any:
        """Begins a message; give what is returned to `irob_send` and `end_irob`."""
        return run(self._of().begin(label, after=after, thunk=thunk), self._timeout_s)

    def irob_send(self, irob: Any, data: bytes) -> None:
        """More bytes of it."""
        run(irob.send(bytes(data)), self._timeout_s)

    def end_irob(self, irob: Any) -> None:
        """The message is complete."""

        async def end() -> None:
            irob.end()

        run(end())

    def ms_recv(self) -> Message | None:
        """The next message with its label; None when the other end has closed."""
        message = self._now(self._received)
        if message is None:
            message = run(self._message(), self._timeout_s or None)
        if self._ready.shown:
            background.loop().call_soon_threadsafe(self._look)
        return message

    def _received(self, connection: Connection) -> Message | None:
        """Waits for one in this thread, which has hold of the loop; None at the end, whatever it is."""
        message = connection.receive_now()
        if message is None and self._timeout_s != 0:

            def wanted() -> bool:
                over = connection.peer_closed or connection.ended or self._closed
                return over or connection.receivable > 0

            if not background.helm().drive(wanted, self._timeout_s):
                raise TimeoutError("timed out")
            message = connection.receive_now()
        return message

    async def _message(self) -> Message | None:
        connection = self._of()
        if self._timeout_s == 0:
            message = connection.receive_now()
            if message is None and not connection.ended:
                raise BlockingIOError("no message is here")
            return message
        return await connection.receive()
