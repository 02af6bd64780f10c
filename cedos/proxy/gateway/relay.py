"""The service: accepts connections within its limits, and ends gracefully."""

import asyncio
import socket
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import structlog

from cedos.errors import HostError
from cedos.kernel.process import open_files
from cedos.model import Address
from cedos.proxy.gateway.admission import PRIVATE, ClientRules, DestinationRules, IPNetwork, plain
from cedos.proxy.gateway.client import RelayClient
from cedos.proxy.gateway.listening import RelayAddress, open_socket
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.http import RefusedError
from cedos.proxy.splice import make_buffer

PORT: Final = 3128
_AT_ONCE: Final = 64
_FULL_PAUSE_S: Final = 0.2
_SPARE_FILES: Final = 64
# Those beyond the limits are told so, but not in any number.
_MOST_REFUSALS: Final = 256

log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What a relay does (`cedos relay --help`).

    Addresses in `listen` that this host lacks are passed over if `listen_optional`; `inside`, `ports`,
    `local`: it also connects to these private networks, guarded ports, and its own host; `drain_s`: how
    long connections may go on when it is told to end.
    """

    listen: Sequence[RelayAddress] = (RelayAddress("0.0.0.0", PORT), RelayAddress("::", PORT))  # noqa: S104
    listen_optional: bool = True
    allow: Sequence[IPNetwork] = PRIVATE
    tokens: Sequence[bytes] = ()
    deny: Sequence[IPNetwork] = ()
    inside: Sequence[IPNetwork] = ()
    ports: Sequence[int] = ()
    local: bool = False
    most: int = 4096
    most_per_client: int = 512
    idle_s: float = 900.0
    connect_s: float = 10.0
    drain_s: float = 5.0


class Relay:
    """A relay; `open` (HostError, PrivilegeError: it cannot listen), then `run` until `end` is called."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._clients = ClientRules(settings.allow, settings.tokens)
        destinations = DestinationRules(
            (each.port for each in settings.listen),
            settings.deny,
            inside=settings.inside,
            ports=settings.ports,
            local=settings.local,
        )
        self._origins = Origins(destinations, settings.connect_s)
        self._buffer = make_buffer()
        self._sockets: list[tuple[socket.socket, RelayAddress]] = []
        self._tasks: dict[asyncio.Task[None], RelayClient] = {}
        self._refusals: set[asyncio.Task[None]] = set()
        self._per_client: Counter[Address] = Counter()
        self._ending = asyncio.Event()
        self.mptcp = True

    @property
    def addresses(self) -> list[str]:
        return [str(where) for _, where in self._sockets]

    @property
    def connections(self) -> int:
        return len(self._tasks)

    def open(self) -> None:
        open_files.allow(2 * self._settings.most + _SPARE_FILES)
        try:
            for where in self._settings.listen:
                try:
                    listening, mptcp = open_socket(where)
                except OSError as error:  # the host has no such family
                    if not self._settings.listen_optional:
                        raise HostError(f"cannot listen at {where}: {error.strerror}") from error
                    continue
                except HostError:
                    if not (self._settings.listen_optional and self._sockets):
                        raise
                    continue
                self._sockets.append((listening, where))
                self.mptcp &= mptcp
        except BaseException:
            self._close_listening()
            raise
        loop = asyncio.get_running_loop()
        for listening, where in self._sockets:
            loop.add_reader(listening, self._acceptable, listening, where.transparent)

    def end(self) -> None:
        """Takes no more connections and lets those that are there end; again: ends them now."""
        if self._ending.is_set():
            for client in self._tasks.values():
                client.stop()
        self._ending.set()

    async def run(self) -> None:
        """Returns when it has been told to end and all connections have ended, or had their time."""
        try:
            await self._ending.wait()
            self._close_listening()
            # Whoever has not got as far as its origin would wait in vain.
            for task, client in self._tasks.items():
                if not client.carries:
                    task.cancel()
            if self._tasks:
                log.info("draining", connections=len(self._tasks), at_most_s=self._settings.drain_s)
                await asyncio.wait(self._tasks, timeout=self._settings.drain_s)
        finally:
            self._close_listening()
            for client in list(self._tasks.values()):
                client.stop()
            left = [*self._tasks, *self._refusals]
            if left:
                await asyncio.wait(left, timeout=0.2)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _close_listening(self) -> None:
        loop = asyncio.get_running_loop()
        for listening, _ in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    def _acceptable(self, listening: socket.socket, transparent: bool) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in open_files.OUT_OF_FILES:
                    self._pause(listening, transparent, error)
                    return
                continue  # it went away before it was accepted
            connection.setblocking(False)
            self._accepted(connection, peer[:2], transparent)

    def _accepted(
        self, connection: socket.socket, peer: tuple[str, int], transparent: bool
    ) -> None:
        address = plain(peer[0])
        refused = self._refuse(address, peer)
        if refused is not None and len(self._refusals) >= _MOST_REFUSALS:
            connection.close()
            return
        client = RelayClient(
            connection,
            f"{address} port {peer[1]}",
            transparent=transparent,
            clients=self._clients,
            origins=self._origins,
            buffer=self._buffer,
            idle_s=self._settings.idle_s,
            address=address,
        )
        task = asyncio.get_running_loop().create_task(client.serve(refused))
        if refused is not None:
            self._refusals.add(task)
            task.add_done_callback(self._refusals.discard)
            return
        self._tasks[task] = client
        self._per_client[address] += 1
        task.add_done_callback(lambda done: self._over(done, address))

    def _refuse(self, address: Address, peer: tuple[str, int]) -> RefusedError | None:
        settings = self._settings
        if not self._clients.admits(address):
            return RefusedError(
                HTTPStatus.FORBIDDEN, "http_request_denied", f"{address} may not use this relay"
            )
        if peer in self._origins.outgoing:
            return RefusedError(
                HTTPStatus.LOOP_DETECTED, "proxy_loop_detected",
                "the relay's own connection came back to it",
            )  # fmt: skip
        if len(self._tasks) >= settings.most:
            return _busy(f"{settings.most} connections are all that this relay takes")
        if self._per_client[address] >= settings.most_per_client:
            return _busy(f"{settings.most_per_client} connections are all that {address} may have")
        return None

    def _over(self, task: asyncio.Task[None], address: Address) -> None:
        self._tasks.pop(task, None)
        self._per_client[address] -= 1
        if not self._per_client[address]:
            del self._per_client[address]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection failed", exc_info=error)

    def _pause(self, listening: socket.socket, transparent: bool, error: OSError) -> None:
        """Stops accepting for a moment: it would be told the same again at once."""
        loop = asyncio.get_running_loop()
        log.warning("cannot accept", reason=error.strerror)
        loop.remove_reader(listening)

        def go_on() -> None:
            with suppress(ValueError, OSError):
                if listening.fileno() >= 0:
                    loop.add_reader(listening, self._acceptable, listening, transparent)

        loop.call_later(_FULL_PAUSE_S, go_on)


def _busy(details: str) -> RefusedError:
    return RefusedError(HTTPStatus.SERVICE_UNAVAILABLE, "connection_limit_reached", details)
