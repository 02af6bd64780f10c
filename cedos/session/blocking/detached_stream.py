"""A session's stream behind a real descriptor: what cannot live with less reads and writes that.

TLS of the standard library, a child's standard input, C libraries: they are given one end of a pair of
sockets, and this process carries bytes between the other end and the session.
"""

import asyncio
import contextlib
import select
import socket
from typing import Final

from cedos.errors import SessionError
from cedos.session.sockets.connection import Connection

_BLOCK_BYTES: Final = 1 << 18
_LOOK_S: Final = 0.5
"""Between two looks whether a program that has ended its own way has closed its end since."""


class DetachedStream:
    """One session and the hidden end of the pair; `run` in the session's loop.

    A session that fails looks like a stream that ends: a pair of sockets knows no reset.

    Args:
        before: what was read of the stream already.
    """

    def __init__(self, connection: Connection, hidden: socket.socket, before: bytes) -> None:
        self._connection, self._hidden, self._before = connection, hidden, before
        self._polled = select.poll()
        self._polled.register(hidden, 0)

    async def run(self) -> None:
        """Until both ways have ended, or the program's end is closed; then the session ends, too."""
        loop = asyncio.get_running_loop()
        down = loop.create_task(self._to_program(loop))
        up = loop.create_task(self._from_program(loop))
        ways = {down, up}
        try:
            while ways and not (up.done() and self._closed()):
                ended, ways = await asyncio.wait(
                    ways,
                    timeout=_LOOK_S if up.done() else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if any(each.exception() for each in ended):
                    break
        finally:
            for each in ways:
                each.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._hidden.close()
            with contextlib.suppress(SessionError):  # nobody is left to be told
                await self._connection.close()

    def _closed(self) -> bool:
        return bool(self._polled.poll(0))  # hung up; one that is only shut down for writing is not

    async def _to_program(self, loop: asyncio.AbstractEventLoop) -> None:
        data: bytes | memoryview = self._before
        with contextlib.suppress(ConnectionError):  # nobody reads any more
            if data:
                await loop.sock_sendall(self._hidden, data)
            while data := await self._connection.read(_BLOCK_BYTES):
                await loop.sock_sendall(self._hidden, data)
            self._hidden.shutdown(socket.SHUT_WR)

    async def _from_program(self, loop: asyncio.AbstractEventLoop) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await loop.sock_recv(self._hidden, _BLOCK_BYTES):
                await self._connection.write(data)
        self._connection.finish()
