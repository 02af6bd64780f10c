"""`cedos-cat`: netcat over sessions."""

import asyncio
import sys
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from cedos.api.asking import DaemonChooser
from cedos.commands.console.manual import DURATION, Program
from cedos.commands.console.pipes import Input, Output
from cedos.commands.console.progress import size
from cedos.commands.console.render import echo
from cedos.commands.console.servers import (
    KEY_TEXT,
    KNOWN_HOSTS,
    LISTEN_ADDRESS,
    OWN_KEY,
    check_save,
    interfaces,
    key_option,
    known,
    own_key_option,
    print_key_option,
    remember,
    save_option,
)
from cedos.commands.console.transfers import say_if_closed
from cedos.commands.console.user_rules import RuledNetworks
from cedos.config.directories import directories
from cedos.errors import TransferError
from cedos.model import Bulk, Label, Urgency
from cedos.session import keys
from cedos.session.known_hosts import KnownServer, shown
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.sockets import connect, listen

# One stream is fastest over all networks. If a daemon runs, it decides which of them carry it.
_ALL_NETWORKS = "swtc"


# A stream of unknown length.
_LABEL: Final = Label(Urgency.FOREGROUND, Bulk.LARGE)
_LOOK_S: Final = 0.2
_WAITS_S: Final = 2.0  # shorter waits are not reported


def _say(text: str) -> None:
    echo(f"cedos-cat: {text}", err=True)


async def _report(connection: Connection) -> None:
    """Say on standard error when the session has been without a network for long, and goes on."""
    loop = asyncio.get_running_loop()
    since_s, said = loop.time(), False
    while True:
        await asyncio.sleep(_LOOK_S)
        up = sorted({path.network for path in connection.paths() if not path.stalled})
        if up and said:
            _say(f"goes on over {' and '.join(up)}")
        elif not up and not said and loop.time() - since_s > _WAITS_S:
            through = size(connection.acknowledged_bytes + connection.received_bytes)
            _say(f"waits for a network, {through} are through; Ctrl-C gives up")
            said = True
        if up:
            since_s, said = loop.time(), False


@click.command(
    name="cedos-cat",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-cat --listen 9000 | tar x",
            "The receiving host; it prints its key on standard error.",
        ),
        (
            "tar c photos | cedos-cat --key KEY server.example 9000",
            "The laptop: goes on over whatever network there is. The key is remembered.",
        ),
        (
            "cedos-cat --deadline 8h server.example 9000 < backup.img",
            "Over a night without a network.",
        ),
        (
            "cedos-cat --listen 127.0.0.1:9000 --allow KEY > log",
            "Lets in only the holder of one key (its `cedos-cat --print-key`).",
        ),
    ],
    exits={
        0: "Everything was sent and has arrived, and all that the other end sent was written.",
        1: "The session ended before: refused, its deadline passed, or given up by the other end.",
        2: "",
        4: "It cannot listen at that address.",
        130: "",
    },
    files=[OWN_KEY, KNOWN_HOSTS],
)
@click.argument("host", required=False)
@click.argument("port", required=False, type=click.IntRange(1, 65535))
@click.option("-l", "--listen", "listen_at", type=LISTEN_ADDRESS, help="Wait for one session.")
@key_option
@save_option
@own_key_option
@print_key_option
@click.option(
    "-a", "--allow", type=KEY_TEXT, multiple=True,
    help="With --listen: a key that may open a session; may be repeated.  [default: any]",
)  # fmt: skip
@click.option(
    "-d", "--deadline", type=DURATION, default="24h", show_default=True,
    help="Give up after this time without a network or without the other end. It counts from its last "
    "packet, or from when the network went down.",
)  # fmt: skip
@click.option(
    "-n", "--network", "networks", metavar="INTERFACE", multiple=True,
    help="Use only this interface; may be repeated.  [default: all that lead to the server]",
)  # fmt: skip
def main(
    host: str | None,
    port: int | None,
    listen_at: tuple[str, int] | None,
    given_key: bytes | None,
    alias: str | None,
    own_key: Path | None,
    print_key: bool,
    allow: tuple[bytes, ...],
    deadline: float,
    networks: tuple[str, ...],
) -> None:
    """Connect standard input and output with another host over all networks.

    Like netcat, but the connection survives: Wi-Fi that dies, a phone with a new address, a laptop
    that sleeps for hours. Both ends are authenticated, and everything is encrypted. One end
    listens, and the other one connects with its key.

    If a cedos daemon runs, it chooses the networks.

    The program ends when both directions have ended. If standard input is a terminal, it ends when
    the other end has sent all its data. HOST may be a name that --save gave; PORT can be omitted
    then. Waiting is reported on standard error.
    """
    me = keys.own(own_key or keys.own_key_path())
    if print_key:
        echo(keys.to_text(me.public))
        return
    if listen_at is not None:
        if host is not None:
            raise click.UsageError("either --listen, or HOST and PORT")
        _refuse_callers_options(click.get_current_context())
        asyncio.run(_serve(listen_at, me, allow))
        return
    if host is None:
        raise click.UsageError("HOST and PORT are needed, or --listen")
    if allow:
        raise click.UsageError("--allow goes with --listen")
    interfaces(networks)
    say_if_closed("cedos-cat")
    server = known(host, port, given_key)
    check_save(alias, given_key, server)

    async def call() -> None:
        connection = await _call(server, me, deadline, networks)
        remember(server, alias, given_key)
        await _join(connection)

    asyncio.run(call())


def _refuse_callers_options(context: click.Context) -> None:
    for name in ("given_key", "alias", "deadline", "networks"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = {"networks": "network", "given_key": "key", "alias": "save"}.get(name, name)
            raise click.UsageError(
                f"--{option} is for the end that connects; it does not go with --listen"
            )


async def _call(
    server: KnownServer,
    me: KeyPair,
    deadline_s: float,
    networks: tuple[str, ...],
) -> Connection:
    ruled = RuledNetworks(directories().socket, (server.host, server.port))
    await asyncio.to_thread(ruled.read)

    def usable(interface: str) -> bool:
        return (not networks or interface in networks) and ruled.may_use(interface)

    waits = f"still connecting with {shown(server.host, server.port)}"
    timer = asyncio.get_running_loop().call_later(_WAITS_S, _say, waits)
    try:
        return await connect(
            (server.host, server.port),
            server_key=server.key,
            key=me,
            label=_LABEL,
            deadline=deadline_s,
            scheduler=_ALL_NETWORKS,
            networks=usable,
            chooser=DaemonChooser(directories().socket),
        )
    finally:
        timer.cancel()


async def _serve(address: tuple[str, int], me: KeyPair, allow: tuple[bytes, ...]) -> None:
    listener = await listen(
        address, key=me, allow=allow.__contains__ if allow else None, scheduler=_ALL_NETWORKS
    )
    try:
        host, port = listener.address
        _say(f"listens at {host} port {port}; its key is {keys.to_text(me.public)}")
        connection = await listener.accept()
        connection.label = _LABEL
        listener.only_known()
        await _join(connection)
    finally:
        await listener.close()


async def _join(connection: Connection) -> None:
    reporting = asyncio.create_task(_report(connection))
    try:
        await _both_ways(connection)
    finally:
        reporting.cancel()


async def _both_ways(connection: Connection) -> None:
    sending = asyncio.create_task(_send(connection))
    try:
        await _receive(connection)
        if not sending.done() and sys.stdin.isatty():
            sending.cancel()  # a person would not know that it waits for Ctrl-D
            connection.finish()
        else:
            await sending
        await connection.close()
    except BaseException:
        sending.cancel()
        if not connection.ended:
            connection.abort("its program was interrupted")
            await connection.drained()
        raise


async def _send(connection: Connection) -> None:
    reader = Input(sys.stdin.fileno())
    while data := await reader.read():
        await connection.write(data)
    connection.finish()


async def _receive(connection: Connection) -> None:
    writer = Output(sys.stdout.fileno())
    try:
        while data := await connection.read():
            await writer.write(data)
        await writer.drained()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise TransferError(f"standard output: {error.strerror}") from error
