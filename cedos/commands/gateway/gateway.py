"""`cedos gateway`: every program's connections, from a laptop's sessions to the servers that it wants."""

import asyncio
import os
import socket
from collections.abc import Hashable
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import click

from cedos import logs
from cedos.apps.files.objects.object_store import ObjectStore
from cedos.apps.sharing.gateway_sharing import GatewaySharing
from cedos.apps.sharing.own_identity import gateway_signing_key
from cedos.apps.sharing.store import SharingStore
from cedos.commands.console.manual import NETWORK, SIZE, Manual
from cedos.commands.console.render import echo
from cedos.commands.console.servers import OWN_KEY, listen_address_at, own_key_option
from cedos.config.directories import user_folder
from cedos.errors import CedosError, ConfigError, SharingError, TransferError
from cedos.global_unicast import IPNetwork
from cedos.kernel import process_limits
from cedos.kernel.service_manager import Notifier, call_at_end
from cedos.logs import BoundLogger, get_logger
from cedos.proxy.gateway.gateway import PORT, Gateway, GatewaySettings, InvitedClients, default_path
from cedos.proxy.gateway.origin import Origins
from cedos.proxy.http import RefusedError
from cedos.proxy.local.joined_gateway import invitation
from cedos.session import keys
from cedos.session.known_hosts import show_server
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.listener import open_listening

_FIRST: Final = "laptop"
_ANYWHERE: Final = ("", PORT)

log: Final[BoundLogger] = get_logger()


@click.command(
    cls=Manual,
    examples=[
        (
            "cedos gateway --name gw.example.org",
            "Runs it; the first time it prints the line that a laptop joins with.",
        ),
        (
            "cedos gateway --name gw.example.org --invite phone",
            "Prints a line for one more client.",
        ),
        ("cedos gateway --revoke phone", "Refuses that client from now on."),
        (
            "cedos gateway --allow-inside 10.1.0.0/16",
            "Also connects to the private network that it is in.",
        ),
        (
            "cedos example gateway-unit | sudo tee /etc/systemd/system/cedos-gateway.service",
            "Installs it as a service.",
        ),
    ],
    exits={
        0: "Done, or ended by Ctrl-C, SIGTERM or a closed terminal.",
        **dict.fromkeys((1, 2), ""),
        4: "It cannot listen there.",
    },
    files=[
        OWN_KEY,
        (
            "~/.config/cedos/gateway-clients.toml",
            "The invited clients with their public keys; read again when it changes.",
        ),
        (
            "~/.cache/cedos/objects",
            "Files that it fetched for clients, each client's apart (--cache).",
        ),
        (
            "~/.cache/cedos/idle-sessions",
            "The sessions of clients that are away, an hour at most; secret.",
        ),
    ],
)
@click.option(
    "-l", "--listen", type=listen_address_at(PORT), default=_ANYWHERE, metavar="[ADDRESS:]PORT",
    help=f"Where to listen.  [default: {PORT} at all addresses]",
)  # fmt: skip
@click.option(
    "-n", "--name", metavar="HOST",
    help="The name or address by which clients reach this host.  [default: the last one, else an address"
    " of its own]",
)  # fmt: skip
@click.option("--invite", metavar="CLIENT", help="Print a line for one more client, and end.")
@click.option("--revoke", metavar="CLIENT", help="Refuse a client from now on, and end.")
@click.option("--list", "listed", is_flag=True, help="Print the invited clients, and end.")
@click.option(
    "--clients",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file of the invited clients.",
)
@own_key_option
@click.option(
    "--deny", type=NETWORK, multiple=True, help="Never connect to this network; may be repeated."
)
@click.option(
    "--allow-inside", type=NETWORK, multiple=True,
    help="Also connect to this private network; may be repeated. Link-local addresses, such as those of"
    " clouds' metadata, need 169.254.0.0/16 itself.",
)  # fmt: skip
@click.option(
    "--allow-local", is_flag=True,
    help="Also connect to this host's own addresses, and loopback.",
)  # fmt: skip
@click.option(
    "--cache", default="2GB", show_default=True, type=SIZE, metavar="SIZE",
    help="The most disk for files that it fetches for clients (cedos-get --via gateway). One client may"
    " use half of it.",
)  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Fetch nothing for clients.")
@click.option(
    "--log-level", default="info", show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="info: clients that connect and leave; debug: also a line for each connection.",
)  # fmt: skip
@click.option(
    "--log-format", default="console", show_default=True, type=click.Choice(["console", "json"])
)
def command(
    listen: tuple[str, int],
    name: str | None,
    invite: str | None,
    revoke: str | None,
    listed: bool,
    clients: Path | None,
    own_key: Path | None,
    deny: tuple[IPNetwork, ...],
    allow_inside: tuple[IPNetwork, ...],
    allow_local: bool,
    cache: int,
    no_cache: bool,
    log_level: logs.Level,
    log_format: logs.Format,
) -> None:
    """Carry the connections of laptops, so that they survive a change of networks.

    Run this on a host with a good line. At the first start it prints a line for the laptop: `cedos
    join LINE` and `cedos forward` there send programs' connections through this gateway, and the
    programs need no change. All connections of a laptop share one session with the gateway, over all
    the laptop's networks. The gateway connects to the servers by plain TCP.

    Only invited clients are admitted, by their keys. The printed line is a secret. By default the
    gateway connects to no private network, to no address of its own host, and not to port 25 (mail
    between servers). It needs no privilege. It logs to standard error, without destinations.
    """
    if sum(map(bool, (invite, revoke, listed))) > 1:
        raise click.UsageError("--invite, --revoke and --list exclude each other")
    invited = InvitedClients(clients or default_path())
    if listed:
        for each in invited.names:
            echo(each)
        return
    if revoke is not None:
        invited.revoke(revoke)
        return
    # A taken port is told before a line is printed. A free one stays open, for this program alone.
    with closing(open_listening(listen)) if invite is None else nullcontext() as listening:
        me = keys.own_key(own_key or keys.own_key_path())
        newcomer = invite or (_FIRST if invited.is_new else "")
        given = name is not None or listen != _ANYWHERE
        if newcomer:
            known = None if given else invited.address
            _print_line(
                invited, newcomer, known or (name or listen[0] or _own_address(), listen[1]), me
            )
        if given and (name or listen[0]):
            invited.address = name or listen[0], listen[1]
        if listening is None:
            return
        logs.configure(log_level, log_format)
        settings = GatewaySettings(
            listen=listen,
            deny=deny,
            inside=allow_inside,
            local=allow_local,
        )
        process_limits.one_arena()
        asyncio.run(_run(settings, me, invited, 0 if no_cache else cache, listening))


def _cache_folder() -> Path:
    """Return the cache folder that systemd names, else the user's own."""
    if given := os.environ.get("CACHE_DIRECTORY", "").partition(":")[0]:
        return Path(given)
    return user_folder("cache")


async def _run(
    settings: GatewaySettings,
    me: KeyPair,
    invited: InvitedClients,
    cache_bytes: int,
    listening: socket.socket,
) -> None:
    folder = _cache_folder()
    if not cache_bytes:
        with _Sharing(invited) as share:
            gateway = Gateway(settings, me, invited.name_of, share=share.answer)
            await _serve(gateway, listening, len(invited.names), share)
        return
    settings = replace(settings, idle=_idle_file(folder))
    # What only who is asked for objects needs is loaded by no other command.
    from cedos.apps.files.objects.object_fetcher import ObjectFetcher  # noqa: PLC0415
    from cedos.apps.files.objects.object_serving import ObjectServing  # noqa: PLC0415

    rules = settings.rules()

    def refused(address: str, port: int) -> str:
        try:
            rules.check(address, port)
        except RefusedError as error:
            return error.details
        return ""

    origins = Origins(rules)

    async def look_up(host: str, asker: Hashable) -> list[str]:
        try:
            return await origins.look_up(host, asker)
        except RefusedError as error:
            raise OSError(error.details) from error

    fetcher = ObjectFetcher(ObjectStore(folder / "objects", cache_bytes), refused, look_up)

    def serving(connection: Connection) -> ObjectServing:
        return ObjectServing(
            connection, fetcher, lambda: invited.name_of(connection.peer_key) is not None
        )

    if fetcher.store.used_before:  # thousands of records are read before a client waits
        with suppress(TransferError):
            fetcher.store.open()
    try:
        with _Sharing(invited) as share:
            gateway = Gateway(settings, me, invited.name_of, serving, share.answer)
            await _serve(gateway, listening, len(invited.names), share)
    finally:
        await fetcher.close()


def _idle_file(folder: Path) -> Path | None:
    """Return the file for the sessions of clients that are away; None: the disk cannot be written."""
    with suppress(OSError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / "idle-sessions"
    return None


def _print_line(
    invited: InvitedClients, client: str, address: tuple[str, int], me: KeyPair
) -> None:
    secret = invited.invite(client)
    echo(
        f'Run this line on the client "{client}". Keep it secret: anyone who has it may use this gateway.'
        " It is not shown again.",
        err=True,
    )
    echo(f"cedos join {invitation(address, me.public, secret)}")


def _own_address() -> str:
    """Return the source address of packets to the internet; no packet is sent."""
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as one:
            one.connect((far, 9))
            return str(one.getsockname()[0])
    raise ConfigError("this host has no address that clients can reach; --name HOST gives one")


class _Sharing:
    """The sharing of bandwidth among clients, where the gateway can keep receipts."""

    def __init__(self, invited: InvitedClients) -> None:
        self._invited = invited
        self._store: SharingStore | None = None
        self._sharing: GatewaySharing | None = None

    def __enter__(self) -> Self:
        try:
            self._store = SharingStore(user_folder("state") / "sharing.sqlite")
        except SharingError as error:
            log.warning("clients cannot share bandwidth", why=str(error))
        return self

    def __exit__(self, *_: object) -> None:
        if self._store is not None:
            self._store.close()

    def answer(self, connection: Connection, question: bytes) -> bytes | None:
        return self._sharing.answer(connection, question) if self._sharing is not None else None

    async def run(self, gateway: Gateway) -> None:
        try:
            if self._store is not None:
                key = gateway_signing_key()
                self._sharing = GatewaySharing(
                    key, self._store, lambda: gateway.connections, self._invited.by_key
                )
        except CedosError as error:  # its key or its receipts are damaged
            log.warning("clients cannot share bandwidth", why=str(error))
        if self._sharing is not None:
            await self._sharing.run()
        else:
            await asyncio.Event().wait()


async def _serve(gateway: Gateway, listening: socket.socket, clients: int, share: _Sharing) -> None:
    """Serve until a signal ends the gateway."""
    notifier = Notifier()
    await gateway.open(listening)
    loop = asyncio.get_running_loop()
    running = loop.create_task(gateway.run())
    counting = loop.create_task(share.run(gateway))
    ending = asyncio.Event()
    call_at_end(ending.set)
    stopped = loop.create_task(ending.wait())
    log.info("ready", listens=show_server(*gateway.address), clients=clients)
    notifier.ready(show_server(*gateway.address))
    try:
        async with process_limits.giving_back():
            await asyncio.wait({running, counting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for each in (running, counting):
            if each.done():
                await each  # it failed
        notifier.stopping("ending sessions")
    finally:
        for task in (running, counting, stopped):
            task.cancel()
        await asyncio.gather(running, counting, stopped, return_exceptions=True)
        await gateway.close()
