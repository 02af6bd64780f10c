"""A message whose bytes follow one after the other (dissertation, 2.2)."""

from collections.abc import Callable

from cedos.session.io.waiter import Waiter
from cedos.session.protocol.session import Session


class Irob:
    """One that was begun: `end` or `abandon` it.

    Args:
        number: its own, for messages that depend on it.
        core: the session's.
        sent: called when something is there to send.
        check: raises what ended the session.
        something: what to wait on until anything has happened.
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
        """Its next bytes; they may be under way before it ends."""
        while data:
            self._check()
            taken = self._core.append(self.irob, data)
            self._sent()
            data = data[taken:]
            if data:
                await self._something()

    def end(self) -> None:
        """Nothing more follows: the peer may have it delivered."""
        self._core.end(self.irob)
        self._sent()

    def abandon(self) -> None:
        """It will never be delivered, and nothing waits for it."""
        self._core.abandon(self.irob)
        self._sent()
