"""The TCP half of a probe server: a challenge, a signed request, so many bytes, and its word for them."""

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address

from cedos.model import Address, Direction
from cedos.monitor.probing import wire
from cedos.monitor.probing.server_limits import ProbeLimits

_MOST_CONNECTIONS = 64
_REQUEST_S = 5.0
_WHOLE_S = 30.0
_BLOCK = bytes(65536)
_BUFFER_BYTES = 1 << 16


class TransferServer:
    """Serves transfers until it is closed; `note` is called with what happened, in a few words."""

    def __init__(self, key: bytes, limits: ProbeLimits, note: Callable[[str], None]) -> None:
        self._key = key
        self._limits = limits
        self._note = note
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, address: Address, port: int) -> None:
        self._server = await asyncio.start_server(
            self._accepted, str(address), port, limit=_BUFFER_BYTES, backlog=_MOST_CONNECTIONS
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._serving) >= _MOST_CONNECTIONS:
            self._note("connections too many")
            writer.transport.abort()
            return
        self._serving.add(task)
        try:
            async with asyncio.timeout(_WHOLE_S):
                await self._serve(reader, writer)
        except TimeoutError:
            self._note("transfers too slow")
        except (OSError, asyncio.IncompleteReadError):
            self._note("transfers broken off")
        except asyncio.CancelledError:
            pass  # the server ends; its own task waits for this one
        finally:
            self._serving.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = secrets.token_bytes(wire.SESSION_BYTES)
        writer.write(wire.encode(wire.Challenge(number), b""))
        async with asyncio.timeout(_REQUEST_S):
            request = wire.decode(await reader.readexactly(wire.REQUEST_BYTES), self._key)
        if not isinstance(request, wire.TransferRequest) or request.challenge != number:
            self._note("connections without the key")
            return
        peer = ip_address(writer.get_extra_info("peername")[0])
        refused: tuple[wire.RefusalReason, float] | None = (wire.RefusalReason.TOO_LARGE, 0.0)
        if 0 < request.size_bytes <= wire.MAX_TRANSFER_BYTES:
            refused = self._limits.take(peer, request.size_bytes, time.monotonic())
        if refused is not None:
            self._note(f"refused, {wire.REASONS[refused[0]]}")
            writer.write(wire.encode(wire.Refused(request.session, *refused), self._key))
            await writer.drain()
            return
        self._note(f"transfers {request.direction}")
        writer.write(wire.encode(wire.TransferGrant(request.session), self._key))
        left = request.size_bytes
        while left:
            if request.direction is Direction.DOWN:
                block = _BLOCK[: min(left, len(_BLOCK))]
                writer.write(block)
                await writer.drain()
                left -= len(block)
            else:
                received = await reader.read(min(left, _BUFFER_BYTES))
                if not received:
                    raise ConnectionResetError("closed by the client")
                left -= len(received)
        writer.write(wire.encode(wire.End(request.session, request.size_bytes), self._key))
        await writer.drain()
