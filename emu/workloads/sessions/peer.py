"""One end of a measurement: its key, and where it listens for sessions and for plain TCP."""

import asyncio
import os
import socket
from typing import Any

from cedos import session
from cedos.session import blocking
from cedos.session.protocol.crypto import KeyPair


class Peer:
    """What commands have in common. A peer listens once it was told to, the client's never."""

    def __init__(self) -> None:
        self.key = KeyPair(os.urandom(32))
        self._listener: session.Listener | None = None
        self._plain: socket.socket | None = None
        self._blocking: blocking.socket | None = None
        self._transferring: session.Connection | blocking.socket | None = None

    async def listen(self, address: str) -> dict[str, Any]:
        self._listener = await session.listen((address, 0), key=self.key, clear=True)
        self._plain = socket.create_server((address, 0), backlog=4096)
        self._plain.setblocking(False)
        return {
            "session": self._listener.address[1],
            "raw": self._plain.getsockname()[1],
            "key": self.key.public.hex(),
        }

    async def listen_blocking(self, address: str) -> dict[str, Any]:
        self._blocking = self.blocking_socket()
        self._blocking.bind((address, 0))
        await asyncio.to_thread(self._blocking.listen)
        return {"port": self._blocking.getsockname()[1]}

    async def listen_again(self, address: str, scheduler: str, *, blocks: bool) -> dict[str, Any]:
        """For one more session, under a scheduler; what listened before ends."""
        if blocks:
            if self._blocking is not None:
                await asyncio.to_thread(self._blocking.close)
            self._blocking = self.blocking_socket()
            self._blocking.setsockopt(blocking.SOL_SESSION, blocking.SO_SCHEDULER, scheduler)
            self._blocking.bind((address, 0))
            await asyncio.to_thread(self._blocking.listen)
            return {"port": self._blocking.getsockname()[1], "key": self.key.public.hex()}
        if self._listener is not None:
            await self._listener.close()
        self._listener = await session.listen((address, 0), key=self.key, scheduler=scheduler)
        return {"port": self._listener.address[1], "key": self.key.public.hex()}

    def transfers(self, end: session.Connection | blocking.socket) -> None:
        """This session is what the next commands are about."""
        self._transferring = end

    @property
    def transferring(self) -> session.Connection | blocking.socket:
        assert self._transferring is not None
        return self._transferring

    def blocking_socket(self) -> blocking.socket:
        made = blocking.socket()
        made.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, self.key)
        return made

    def accept_blocking(self) -> blocking.socket:
        assert self._blocking is not None
        accepted, _ = self._blocking.accept()
        return accepted

    @property
    def plain(self) -> socket.socket:
        assert self._plain is not None
        return self._plain

    async def accept(self) -> session.Connection:
        assert self._listener is not None
        return await self._listener.accept()

    async def connect(
        self, mode: str, to: str, port: int, key: str, **options: Any
    ) -> session.Connection:
        """A session with the peer of this public key; mode `clear` or `aead`."""
        return await session.connect(
            (to, port),
            server_key=bytes.fromhex(key),
            key=self.key,
            clear=mode == "clear",
            **options,
        )
