"""pyroute2's asynchronous sockets, each replaced after a failure (one that overflowed stays broken)."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

from pyroute2.netlink.exceptions import NetlinkError


class Client:
    """Asks the kernel through a pyroute2 socket, one question at a time.

    The socket is made with the first question, in the namespace that the thread is in by then.

    Args:
        make: makes the socket (`AsyncIPRoute`, `AsyncIW`).
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._socket: Any = None
        self._turn = asyncio.Lock()

    async def ask(
        self, question: Callable[[Any], Awaitable[Any]], timeout_s: float = 5.0
    ) -> list[Any]:
        """The messages that answer a question, a call of the socket's that gives them or streams them.

        Raises:
            OSError: the kernel refused, or the answers overflowed the buffer.
            TimeoutError: no end after `timeout_s`.
        """
        async with self._turn, asyncio.timeout(timeout_s):
            try:
                if self._socket is None:
                    self._socket = self._make()
                answers = await question(self._socket)
                return answers if isinstance(answers, list) else [one async for one in answers]
            except NetlinkError as error:
                self.close()
                raise OSError(error.code, os.strerror(error.code)) from error
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """Closes the socket; another question would make a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
