"""The gateway: invited clients dial sessions, whose streams go on as TCP connections.

The clients that a gateway lets in: names and public keys in a file, read again when it changes.
"""

import asyncio
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

from cedos.errors import ConfigError, NotFoundError, SessionError
from cedos.global_unicast import IPNetwork
from cedos.kernel import own_file, process_limits
from cedos.kernel.process_limits import MemoryRoom
from cedos.limits import TokenBucket
from cedos.logs import BoundLogger, get_logger
from cedos.proxy.gateway.gateway_session import (
    GatewaySession,
    NameService,
    SessionTerms,
    StreamService,
)
from cedos.proxy.gateway.origin import DestinationRules, Origins
from cedos.proxy.gateway.packet_relay import Associations
from cedos.proxy.http import RefusedError
from cedos.proxy.streams.unread import Unread
from cedos.session import keys
from cedos.session.protocol.crypto import KEY_BYTES, KeyPair
from cedos.session.protocol.handshake.limits import HandshakeLimits
from cedos.session.protocol.life import SessionLimits
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.listener import Listener
from cedos.session.sockets.sockets import listen

PORT: Final = 7009
SSH: Final = 22
# A session and its connections survive this long without any network.
KEEP_ALIVE_S: Final = 3_600
# Idle paths are not measured, because probes cost bytes on a metered network.
LIMITS: Final = SessionLimits(probes=False, keep_alive_s=KEEP_ALIVE_S)
# Open files left for clients' paths and strangers' handshakes. One client's paths have half of them,
# or this share of all open files.
_SPARE_FILES: Final = 256
_PATHS_SHARE: Final = 64
# One client opens so many connections and associations at once, and a second. Each costs 60 us.
OPENS_AT_ONCE: Final = 8_192
OPENS_PER_S: Final = 1_000
_LEAST_MEMORY: Final = 16 << 20
_ADDRESS_BYTES: Final = 1_024
_log: Final[BoundLogger] = get_logger()
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}")


def default_path() -> Path:
    return keys.folder() / "gateway-clients.toml"


class InvitedClients:
    """The invited clients in a file. ConfigError: the file cannot be used."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._address_file = file.with_name("gateway-address")
        self._stamp: tuple[int, int, int] | None = None
        self._names: dict[bytes, str] = {}
        self._read()

    @property
    def is_new(self) -> bool:
        """Tell whether no client was ever invited here, revoked ones included."""
        return not self._file.exists()

    @property
    def names(self) -> list[str]:
        self._read()
        return sorted(self._names.values())

    def name_of(self, key: bytes) -> str | None:
        """Return the name of the client with this public key; None: it is not invited, or no more."""
        return self.by_key().get(key)

    def by_key(self) -> dict[bytes, str]:
        """Return the names of all clients by their public keys."""
        try:
            self._read()
        except ConfigError as error:
            _log.warning("who is invited cannot be read; it stays as it was", why=str(error))
        return self._names

    @property
    def address(self) -> tuple[str, int] | None:
        """The address in the last line that a client was given to join; None: there was none."""
        try:
            text = own_file.read(self._address_file, _ADDRESS_BYTES).decode()
            host, _, port = text.strip().rpartition(" ")
            return (host, int(port)) if host else None
        except (OSError, ValueError):
            return None

    @address.setter
    def address(self, address: tuple[str, int]) -> None:
        if address != self.address:
            with suppress(OSError):  # the next client's line may then have another address
                own_file.write(self._address_file, "{} {}\n".format(*address).encode())

    def invite(self, name: str) -> bytes:
        """Add a client, and return its secret, which is kept by that client alone.

        Raises: ConfigError, the name is taken or no name, or the file cannot be written.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f'"{name}" cannot be the name of a client: use 1 to 31 letters and digits, and'
                " after the first also . _ -"
            )
        secret = secrets.token_bytes(KEY_BYTES)
        with keys.changed_alone(self._file):
            known = keys.read_names(self._file)
            if name in known:
                raise ConfigError(
                    f"{name} is invited already; `cedos gateway --revoke {name}` makes room for a new one"
                )
            keys.write_names(self._file, known | {name: KeyPair(secret).public})
        return secret

    def revoke(self, name: str) -> None:
        """Remove a client. NotFoundError: there is none of that name; ConfigError."""
        with keys.changed_alone(self._file):
            known = keys.read_names(self._file)
            if known.pop(name, None) is None:
                raise NotFoundError(
                    f"no client called {name} is invited; there are {', '.join(sorted(known)) or 'none'}"
                )
            keys.write_names(self._file, known)

    def _read(self) -> None:
        try:
            stat = self._file.stat()
            stamp = stat.st_ino, stat.st_mtime_ns, stat.st_size
        except FileNotFoundError:
            stamp = None
        except OSError as error:
            raise ConfigError(f"{self._file}: {error.strerror or error}") from error
        if stamp != self._stamp or stamp is None:
            self._names = {key: name for name, key in keys.read_names(self._file).items()}
            self._stamp = stamp


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Settings of a gateway (`cedos gateway --help`)."""

    # Address and port; an empty address: all addresses of this host.
    listen: tuple[str, int] = ("", PORT)
    deny: Sequence[IPNetwork] = ()  # networks that the gateway never connects to
    # `inside`, `local`: the gateway also connects to these private networks, and to its own host.
    inside: Sequence[IPNetwork] = ()
    local: bool = False
    most: int = 20_000  # `most`, `most_per_client`: the most connections at once
    most_per_client: int = 2_000
    # The most sessions at once, those of sleeping clients among them.
    sessions_per_client: int = 128
    idle_s: float = 86_400.0  # a connection that carries nothing for so long is closed
    connect_s: float = 10.0  # the time limit for a look-up and a connection to an origin
    # A file that keeps the sessions of clients that are away and have no connections.
    idle: Path | None = None

    def rules(self) -> DestinationRules:
        """Return the rules for destinations."""
        return DestinationRules(
            [self.listen[1]],
            self.deny,
            inside=self.inside,
            # Invited clients may use SSH; mail between servers stays closed.
            ports=[SSH],
            local=self.local,
        )


class Gateway:
    """A gateway: `open`, then `run` until it is cancelled, then `close`."""

    def __init__(
        self,
        settings: GatewaySettings,
        me: KeyPair,
        # Returns the name of the invited client with a public key, else None.
        clients: Callable[[bytes], str | None],
        # Serves requests on sessions' own streams.
        service: Callable[[Connection], StreamService] | None = None,
        # Answers questions about shared bandwidth (`SessionTerms`).
        share: Callable[[Connection, bytes], bytes | None] | None = None,
    ) -> None:
        self._settings = settings
        self._me = me
        self._clients = clients
        origins = Origins(settings.rules(), settings.connect_s)
        self._memory = MemoryRoom()
        free_bytes = self._memory.free_bytes()
        if free_bytes is not None:
            free_bytes = max(free_bytes, _LEAST_MEMORY)
        self._free_bytes = free_bytes
        self._associations = Associations(origins, clients)
        self._names = NameService()
        self._terms = SessionTerms(
            origins,
            self._associations,
            self._names,
            self._count_open,
            self._admit,
            clients,
            settings.idle_s,
            service,
            share,
            unread=Unread() if free_bytes is None else Unread.within_memory(free_bytes // 2),
        )
        self._listener: Listener | None = None
        self._sessions: dict[asyncio.Task[None], GatewaySession] = {}
        self._most, self._most_per_client = settings.most, settings.most_per_client
        # Files that each client's connections and associations have open, whatever session they came by.
        self._open: Counter[bytes] = Counter()
        self._opens: dict[bytes, TokenBucket] = {}

    @property
    def address(self) -> tuple[str, int]:
        assert self._listener is not None
        return self._listener.address

    @property
    def connections(self) -> list[Connection]:
        """Return the sessions that there are now."""
        theirs = (each.connection for each in self._sessions.values())
        return [each for each in theirs if not each.ended]

    @property
    def sessions(self) -> int:
        return len(self.connections)

    async def open(self, listening: socket.socket | None = None) -> None:
        """Listen, with as many open files as the host allows. HostError: it cannot.

        `listening`: a socket that listens already, instead of one at the settings' address.
        """
        files = process_limits.allow()
        self._most = min(self._settings.most, max(1, files - _SPARE_FILES))
        if self._most < self._settings.most:
            _log.warning(
                "the limit of open files allows fewer connections at once than wanted",
                wanted=self._settings.most,
                allowed=self._most,
                process_limits=files,
            )
            # One client leaves some of them to the others.
            self._most_per_client = min(self._most_per_client, max(1, self._most // 2))
        try:
            self._listener = await self._listen(files, self._settings.idle, listening)
        except (SessionError, OSError) as error:
            _log.warning("idle sessions stay in memory", why=str(error))
            self._listener = await self._listen(files, None, listening)
        # Half of the free memory is for bytes that origins do not read (`Unread`), a quarter for
        # sessions.
        if self._free_bytes is not None:
            self._listener.keep_at_most(self._free_bytes // 4)

    async def _listen(
        self, files: int, idle: Path | None, listening: socket.socket | None
    ) -> Listener:
        return await listen(
            self._settings.listen,
            key=self._me,
            allow=lambda key: self._clients(key) is not None,
            idle=idle,
            scheduler="prompt-swtc",
            limits=LIMITS,
            hosts=HandshakeLimits(
                flows_per_host=self._settings.sessions_per_client,
                connections_per_peer=max(_SPARE_FILES // 2, files // _PATHS_SHARE),
            ),
            listening=listening,
        )

    async def run(self) -> None:
        assert self._listener is not None
        while True:
            # No variable: it would keep the last session alive while the next is waited for.
            self._serve(GatewaySession(await self._listener.accept(), self._terms))

    async def close(self) -> None:
        """End all sessions, which resets their connections."""
        if self._listener is not None:
            self._listener.stop()
        sessions = list(self._sessions.items())
        # Tell all laptops at once, so that one that does not answer delays none of the others.
        for _, session in sessions:
            session.connection.abort("the gateway ends")
        ended = (session.connection.wait_drained() for _, session in sessions)
        await asyncio.gather(*ended, return_exceptions=True)
        for task, session in sessions:
            await session.close()
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)
        self._associations.close()
        self._names.close()
        if self._listener is not None:
            await self._listener.close()

    def _serve(self, session: GatewaySession) -> None:
        task = asyncio.get_running_loop().create_task(session.run())
        self._sessions[task] = session
        task.add_done_callback(lambda done: self._sessions.pop(done, None))

    def _count_open(self, client: bytes) -> None:
        """Count one more that a client opens. ValueError: it opens too many."""
        now_s = asyncio.get_running_loop().time()
        opens = self._opens.get(client)
        if opens is None:
            opens = self._opens[client] = TokenBucket(OPENS_PER_S, OPENS_AT_ONCE, now_s)
        if not opens.take(now_s):
            raise ValueError(f"more than {OPENS_PER_S} connections a second")

    @contextmanager
    def _admit(self, client: bytes, files: int) -> Iterator[None]:
        """Count what a client opens until its files are closed. RefusedError: not one more."""
        if self._clients(client) is None:
            raise RefusedError(
                HTTPStatus.FORBIDDEN, "http_request_denied", "this client is no longer invited"
            )
        if self._memory.is_short():
            raise RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "connection_limit_reached",
                "the gateway has no memory left for another one",
            )
        for count, most, whose in (
            (self._open.total(), self._most, "the gateway takes"),
            (self._open[client], self._most_per_client, "one client may have"),
        ):
            if count + files > most:
                raise RefusedError(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "connection_limit_reached",
                    f"{most} connections are all that {whose}",
                )
        self._open[client] += files
        try:
            yield
        finally:
            self._open -= Counter({client: files})
