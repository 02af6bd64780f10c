"""`connect` and `listen`: where sessions begin for a program with an event loop."""

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final, cast

from cedos.errors import ConfigError, SessionError
from cedos.model import Label, is_address
from cedos.session import keys
from cedos.session.io import driver as drivers
from cedos.session.io.advice import Adviser, Chooser
from cedos.session.io.connect_attempts import Endpoint
from cedos.session.io.dialler import DialledServer
from cedos.session.known_hosts import KnownHosts
from cedos.session.protocol import schedulers
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.limits import HandshakeLimits
from cedos.session.protocol.handshake.set_up import SetUpOptions
from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.schedulers.interface import Scheduler, rank_of
from cedos.session.protocol.schedulers.plain import DecidedScheduler
from cedos.session.protocol.session import Session
from cedos.session.sockets.connection import STREAM_LABEL, Connection
from cedos.session.sockets.listener import Listener, host_limits

FIRST_PATH_S: Final = 30.0
KEEP_ALIVE_S: Final = 86_400
_AGAIN_S: Final = 1.0


async def connect(
    address: str | Endpoint | Sequence[Endpoint],
    *,
    server_key: bytes | None = None,
    key: KeyPair | None = None,
    label: Label = STREAM_LABEL,
    deadline: float | None = None,
    clear: bool = False,
    scheduler: str | Scheduler = schedulers.DEFAULT,
    timeout_s: float | None = FIRST_PATH_S,
    networks: Callable[[str, str], bool] | None = None,
    chooser: Chooser | None = None,
    thrifty: bool = False,
    limits: SessionLimits | None = None,
    looked_up: Callable[[], Awaitable[None]] | None = None,
) -> Connection:
    """Open a session with a server, over every network that leads there.

    Args:
        address: host (a name or an address) and port; several, where the server may be at any of them;
            or the name of a server in the user's file (`cedos.session.known_hosts`), alone or as host.
            Names are looked up again while no connection succeeds, so that the server may move.
        server_key: the server's public key, 32 bytes; without, the one in the user's file.
        key: this end's key; this user's own key without.
        label: of the stream; messages have labels of their own.
        deadline: seconds that the session may be without any network (DTP's keep-alive); a day without.
        clear: without protecting records, if the server allows it too. For measurements.
        scheduler: the name of a path scheduler, or one.
        timeout_s: for the first connection; None waits as long as it takes.
        networks: which interfaces may be used, each to which address of the server; all without. One by
            way of a helper has `/` and the own address that leads there behind it.
        chooser: chooses among them for each label; the scheduler alone without. Programs of a host
            pass its daemon (`cedos.api.asking`).
        thrifty: with a chooser: labels without a decision use metered networks only without others.
        limits: what the session may take of this process.
        looked_up: is awaited after each look-up of names, before `networks` is asked of the addresses.

    Raises:
        SessionError: no connection in time, the server refuses, or it has another key.
        ConfigError: an argument that cannot be used; no key is known for the server.
    """
    if server_key is None:
        address, server_key = _known_server(address)
    elif len(server_key) != 32:
        raise ConfigError(f"a server's key has 32 bytes, not {len(server_key)}")
    seconds = KEEP_ALIVE_S if deadline is None else deadline
    if not 0 <= seconds < 2**31:
        raise ConfigError(f"a deadline of {seconds} s; between 0 and 2147483647 would be right")
    rank_of(label)  # what is none is told before anything was begun
    me = keys.own_key(keys.own_key_path()) if key is None else key
    wanted = _endpoints(address)
    made = schedulers.scheduler(scheduler) if isinstance(scheduler, str) else scheduler
    connection: Connection | None = None
    try:
        async with asyncio.timeout(timeout_s):
            found = await _resolve(wanted, looked_up, forever=timeout_s is None)
            if chooser is not None:
                await chooser.learn()
            driver = drivers.current()
            server = DialledServer(
                found,
                server_key,
                me,
                SetUpOptions(int(seconds), driver.hardware_aes, clear),
                networks or (lambda *_: True),
                _lookup(wanted, looked_up),
                (lambda _interface: None) if chooser is None else chooser.network,
            )
            adviser = None if chooser is None else Adviser(DecidedScheduler(made), chooser, thrifty)
            core = Session(
                made if adviser is None else adviser.scheduler,
                driver.now(),
                # The server may shorten this end's wait for a network, not lengthen it.
                limits=replace(limits or SessionLimits(), keep_alive_s=int(seconds)),
                memory=driver.memory,
                keep_alive_s=int(seconds),
            )
            connection = Connection(driver, core, server=server, adviser=adviser)
            connection.label = label
            connection.flow.start()
            await connection.wait_connected()
    except TimeoutError:
        why, code = _why_not(connection)
        error = SessionError(
            f"no connection to {_show_wanted(wanted)} within {timeout_s:g} s ({why}); a network that "
            "leads there and a server that listens there would be right"
        )
        if connection is not None:
            connection.fail(error)
        raise error from OSError(code, os.strerror(code))
    except BaseException:
        if connection is not None:
            connection.abort("not connected")
        raise
    return connection


async def listen(
    address: Endpoint,
    *,
    key: KeyPair | None = None,
    allow: Callable[[bytes], bool] | None = None,
    clear: bool = False,
    idle: Path | None = None,
    scheduler: str = schedulers.DEFAULT,
    limits: SessionLimits | None = None,
    hosts: HandshakeLimits | None = None,
    listening: socket.socket | None = None,
) -> Listener:
    """Listen for sessions.

    Args:
        address: an own address ("" for all) and a port (0 for any).
        key: this end's key; this user's own key without.
        allow: whether the holder of this public key may open sessions; everyone without.
        clear: allow records without protection to clients that ask for it. For measurements.
        idle: a file for sessions that are idle; they survive a restart of this program.
        scheduler: the name of a path scheduler; each session gets one of its own.
        limits: what one session may take of this process.
        hosts: what one host, and all strangers together, may ask of it; without, one address has half
            of the process's open files at most.
        listening: a socket that listens already, instead of one at `address`.

    Raises:
        HostError: the address cannot be listened at.
        ConfigError: the key or the file cannot be used.
    """
    me = keys.own_key(keys.own_key_path()) if key is None else key
    schedulers.scheduler(scheduler)  # an unknown name is told now
    return Listener(
        drivers.current(),
        address,
        me,
        allow=allow,
        clear=clear,
        idle=idle,
        scheduler=lambda: schedulers.scheduler(scheduler),
        limits=limits or SessionLimits(),
        hosts=hosts or host_limits(),
        listening=listening,
    )


def _known_server(address: str | Endpoint | Sequence[Endpoint]) -> tuple[list[Endpoint], bytes]:
    """Return a server's addresses and key by the user's file; several addresses are of one server."""
    hosts = KnownHosts()
    if isinstance(address, str):
        servers = [hosts.find(address, None)]
    else:
        servers = [hosts.find(host, port) for host, port in _endpoints(address)]
    if len({each.key for each in servers}) > 1:
        raise ConfigError(f"{hosts.path} has several keys for these addresses; one server has one")
    return [(each.host, each.port) for each in servers], servers[0].key


def _endpoints(address: str | Endpoint | Sequence[Endpoint]) -> list[Endpoint]:
    if isinstance(address, str):
        raise ConfigError(f"{address!r} has no port; (host, port) would be right")
    one = isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str)
    found = [cast(Endpoint, address)] if one else list(cast(Sequence[Endpoint], address))
    if not found:
        raise ConfigError("no address; one (host, port) or several would be right")
    for host, port in found:
        if not host or not 0 < port < 65_536:
            raise ConfigError(
                f"{host!r} port {port} is no address; a host and a port 1 to 65535 are"
            )
    return found


def _why_not(connection: Connection | None) -> tuple[str, int]:
    if connection is None or connection.flow.dialler is None:
        return "the name was not found", errno.ETIMEDOUT
    dialler, links = connection.flow.dialler, connection.flow.driver.links
    if dialler.last_why:
        return dialler.last_why, dialler.last_code or errno.ETIMEDOUT
    there = sorted(
        {egress.interface for host, _ in dialler.endpoints for egress in links.egresses(host)}
    )
    if there:
        why = f"none of the networks that lead there may be used: {', '.join(there)}"
        return why, errno.ETIMEDOUT
    return "no network leads there", errno.ETIMEDOUT


def _show_wanted(wanted: Sequence[Endpoint]) -> str:
    return ", ".join(f"{host} port {port}" for host, port in wanted)


def _lookup(
    wanted: Sequence[Endpoint], looked_up: Callable[[], Awaitable[None]] | None
) -> Callable[[], Awaitable[Sequence[Endpoint]]] | None:
    if all(is_address(host) for host, _ in wanted):
        return None
    return partial(_resolve, wanted, looked_up, forever=True)


async def _resolve(
    wanted: Sequence[Endpoint],
    looked_up: Callable[[], Awaitable[None]] | None,
    *,
    forever: bool,
) -> list[Endpoint]:
    """Return the addresses behind the names; try until there is one."""
    while True:
        found: list[Endpoint] = []
        unknown: OSError | None = None
        for host, port in wanted:
            try:
                found.append((str(ip_address(host)), port))
                continue
            except ValueError:
                pass
            try:
                infos = await asyncio.get_running_loop().getaddrinfo(
                    host, port, type=socket.SOCK_STREAM
                )
                found += [(str(info[4][0]), port) for info in infos]
            except OSError as error:
                unknown = error
        if found:
            if looked_up is not None:
                await looked_up()
            return list(dict.fromkeys(found))
        if (
            isinstance(unknown, socket.gaierror)
            and unknown.errno == socket.EAI_NONAME
            and not forever
        ):
            raise SessionError(f"{_show_wanted(wanted)}: {unknown.strerror}") from unknown
        await asyncio.sleep(_AGAIN_S)


__all__ = ["FIRST_PATH_S", "KEEP_ALIVE_S", "connect", "listen"]
