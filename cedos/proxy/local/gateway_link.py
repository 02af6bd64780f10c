"""The session with the gateway: made when it is needed, kept while it is used, made again after it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from cedos.errors import CedosError, SessionError
from cedos.proxy.gateway.gateway import KEEP_ALIVE_S, LIMITS
from cedos.proxy.local.joined_gateway import JoinedGateway
from cedos.proxy.streams.multiplexer import Multiplexer
from cedos.proxy.streams.stream import ProxiedStream
from cedos.session.io.advice import Chooser
from cedos.session.sockets.sockets import connect

PATIENCE_S: Final = 3.0
"""A new connection waits for the gateway so long; then it goes another way, or is refused."""

AGAIN_S: Final = 5.0
"""A gateway that could not be reached is not waited for again before."""

UNUSED_S: Final = 600.0
"""A session without connections ends after so long: nothing of it wakes a radio."""

_log = structlog.get_logger(__name__)


class GatewayUnreachableError(CedosError):
    """The gateway does not answer; says why."""


class GatewayLink:
    """To be made within the event loop.

    Args:
        chooser: who chooses networks, for each label; where nobody does, metered ones are used only
            without the others.
        networks: which interfaces may be used; all without.
    """

    def __init__(
        self,
        joined: JoinedGateway,
        chooser: Chooser | None = None,
        networks: Callable[[str], bool] | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.joined = joined
        self._chooser = chooser
        self._networks = networks
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._streams: Multiplexer | None = None
        self._running: asyncio.Task[None] | None = None
        self._dialling: asyncio.Task[Multiplexer] | None = None
        self._failed: tuple[float, str] | None = None

    def leads_to(self, host: str) -> bool:
        """Whether that is the gateway itself, as far as it is known by now."""
        paths = self._streams.connection.paths() if self._streams is not None else ()
        return host in {self.joined.host, *(path.peer for path in paths)}

    async def open(self, host: str, port: int) -> ProxiedStream:
        """A stream to the origin, which stands.

        Raises:
            GatewayUnreachableError: there is no way to the gateway, within the patience.
            RefusedError: the gateway refuses, or the origin.
        """
        try:
            async with asyncio.timeout(self._patience_s):
                streams = await self._session()
                if not streams.connection.paths():
                    await streams.connection.connected()
                stream = streams.open(host, port)
        except TimeoutError:
            raise GatewayUnreachableError(f"no answer within {self._patience_s:g} s") from None
        except (SessionError, OSError) as error:
            raise GatewayUnreachableError(str(error)) from error
        try:
            await self._accepted(streams, stream)
        except OSError as error:
            raise GatewayUnreachableError(str(error)) from error
        except BaseException:
            stream.reset()
            raise
        return stream

    async def _accepted(self, streams: Multiplexer, stream: ProxiedStream) -> None:
        """Waits for the origin as long as the gateway's word may come."""
        waiting = self._loop.create_task(stream.accepted())
        try:
            while not (await asyncio.wait({waiting}, timeout=self._patience_s))[0]:
                if all(path.stalled for path in streams.connection.paths()):
                    raise GatewayUnreachableError("nothing is heard of it")
            waiting.result()
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)

    async def close(self) -> None:
        """Ends the session; its streams break."""
        for task in (self._dialling, self._running):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._streams is not None and not self._streams.connection.ended:
            self._streams.connection.abort("the program at this end was ended")
            with suppress(SessionError):
                await self._streams.connection.drained()

    async def _session(self) -> Multiplexer:
        if self._streams is not None and not self._streams.connection.ended:
            return self._streams
        if self._failed is not None and self._loop.time() - self._failed[0] < AGAIN_S:
            raise GatewayUnreachableError(self._failed[1])
        if self._dialling is None or self._dialling.done():
            self._dialling = self._loop.create_task(self._dial())
        # Many wait for one attempt: who is cancelled must not end it.
        return await asyncio.shield(self._dialling)

    async def _dial(self) -> Multiplexer:
        joined = self.joined
        try:
            connection = await connect(
                (joined.host, joined.port),
                server_key=joined.server_key,
                key=joined.client,
                deadline=KEEP_ALIVE_S,
                scheduler="prompt-swtc",
                timeout_s=self._patience_s,
                networks=self._networks,
                chooser=self._chooser,
                thrifty=True,
                limits=LIMITS,
            )
        except SessionError as error:
            self._failed = self._loop.time(), str(error)
            _log.warning("the gateway cannot be reached", gateway=str(joined), why=str(error))
            raise
        if self._failed is not None:
            _log.info("the gateway is there again", gateway=str(joined))
            self._failed = None
        self._streams = streams = Multiplexer(connection)
        self._running = self._loop.create_task(self._run(streams))
        return streams

    async def _run(self, streams: Multiplexer) -> None:
        unused = self._loop.create_task(self._end_unused(streams))
        try:
            await streams.run()
        finally:
            unused.cancel()
            if self._streams is streams:
                self._streams = None
        if not streams.connection.ended:
            with suppress(SessionError):
                await streams.connection.close()

    async def _end_unused(self, streams: Multiplexer) -> None:
        """Ends the session once nobody has used it for a while."""
        while True:
            await asyncio.sleep(UNUSED_S)
            if not len(streams):
                if self._streams is streams:
                    self._streams = None
                streams.connection.abort("unused")
                return
