"""`cedos-serve`: a server of files over sessions, for `cedos-get` and `cedos-put`."""

import asyncio
import contextlib
import socket
from pathlib import Path

import click

from cedos import logs
from cedos.apps.files.serving import OPEN_FILES, Serving, Uploads, client_names, log
from cedos.apps.files.tree import Tree
from cedos.commands.console.manual import SIZE, Program
from cedos.commands.console.render import echo
from cedos.commands.console.servers import (
    FILES_PORT,
    LISTEN_ADDRESS,
    OWN_KEY,
    own_key_option,
    print_key_option,
)
from cedos.commands.console.transfers import SCHEDULER
from cedos.config.directories import user_folder
from cedos.errors import SessionError
from cedos.kernel import process_limits
from cedos.kernel.service_manager import call_at_end
from cedos.session import keys
from cedos.session.io.idle_sessions import IdleSessions
from cedos.session.known_hosts import show_server
from cedos.session.protocol.crypto import KeyPair, host_id
from cedos.session.protocol.handshake.limits import HandshakeLimits
from cedos.session.sockets.listener import host_limits, open_listening
from cedos.session.sockets.sockets import listen as session_listen


@click.command(
    "cedos-serve",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-serve ~/music",
            "Serves a folder to all clients that have this host's key, on port 7008.",
        ),
        ("cedos-serve --print-key", "Prints that key; clients give it once with --key."),
        (
            "cedos-serve -l 192.0.2.1:7100 --clients friends.toml ~/music",
            "At one address and port, to those whose keys are in a file.",
        ),
        (
            "cedos-serve --writable --clients friends.toml ~/inbox",
            "Takes files from them, too.",
        ),
    ],
    exits={
        0: "Ended by Ctrl-C, SIGTERM or a closed terminal.",
        1: "",
        2: "",
        4: "It cannot listen there.",
    },
    files=[
        OWN_KEY,
        (
            "CLIENTS",
            'TOML: under [hosts] a line `name = "KEY"` for each client; the key is what '
            "`cedos-get --print-key` prints there.",
        ),
        (
            "~/.local/state/cedos/serve-*.sessions",
            "Idle sessions with their secrets, for the next start; for their owner alone.",
        ),
    ],
)
@click.argument(
    "folder", required=False, type=click.Path(path_type=Path, file_okay=False, exists=True)
)
@click.option(
    "-l", "--listen", type=LISTEN_ADDRESS, default=("", FILES_PORT), metavar="[ADDRESS:]PORT",
    help=f"Where to listen.  [default: {FILES_PORT} at all addresses]",
)  # fmt: skip
@click.option(
    "-c", "--clients", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Admit only the keys in this file, which is read at the start.",
)  # fmt: skip
@click.option(
    "-w", "--writable", is_flag=True,
    help="Take files from --clients (cedos-put): new ones below FOLDER; nothing is ever overwritten.",
)  # fmt: skip
@click.option(
    "--keep-free", type=SIZE, default="1GB", show_default=True, metavar="SIZE",
    help="With --writable: what must be left of the disk.",
)  # fmt: skip
@click.option(
    "--forget", is_flag=True,
    help="Keep no idle sessions: they end with this program, and no secret of theirs is on disk.",
)  # fmt: skip
@own_key_option
@print_key_option
@click.option(
    "--log-level", default="info", show_default=True,
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="info has a line for each file; warning has none.",
)  # fmt: skip
@click.option(
    "--log-format", default="console", show_default=True, type=click.Choice(["console", "json"])
)
@click.version_option(package_name="cedos", prog_name="cedos-serve")
def command(
    folder: Path | None,
    listen: tuple[str, int],
    clients: Path | None,
    writable: bool,
    keep_free: int,
    forget: bool,
    own_key: Path | None,
    print_key: bool,
    log_level: logs.Level,
    log_format: logs.Format,
) -> None:
    """Serve the files below FOLDER to `cedos-get` over sessions.

    With --writable, new files of `cedos-put` are taken.

    A session survives when a client changes its network, loses it for hours, or uses two at once.
    After a crash of the client or a restart of the server, transfers resume. The SHA-256 of each
    file is checked at the end.

    Everything is encrypted, and both ends are authenticated. Clients need this host's public key
    (--print-key). Without --clients, any client that has this key may fetch every regular file
    below FOLDER. Symbolic links are not followed. Files are read while they are sent, and not held
    in memory. The server needs no privilege, and logs to standard error.
    """
    me = keys.own_key(own_key or keys.own_key_path())
    if print_key:
        echo(keys.to_text(me.public))
        return
    if folder is None:
        raise click.UsageError("a FOLDER is needed, or --print-key")
    if writable and clients is None:
        raise click.UsageError(
            "--writable goes with --clients: any client with this host's key could fill the disk"
        )
    logs.configure(log_level, log_format)
    process_limits.allow()  # one for each connection and file
    # Listen before making a file, because listening may fail.
    with contextlib.closing(open_listening(listen)) as listening:
        idle = None if forget else _idle_file(listen, me)
        uploads = keep_free if writable else None
        hosts = host_limits(OPEN_FILES)
        asyncio.run(_serve(folder, listening, me, clients, uploads, idle, hosts))


def _idle_file(listen: tuple[str, int], me: KeyPair) -> Path | None:
    """Return the file of idle sessions for this key and address.

    None, with a line in the log: no such file is possible.
    """
    host, port = listen
    folder = user_folder("state")
    path = folder / f"serve-{host or 'all'}-{port}-{host_id(me.public).hex()[:12]}.sessions"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        IdleSessions(path).close()
    except (OSError, SessionError) as error:
        log.warning("idle sessions end with this program", why=str(error))
        return None
    return path


async def _serve(
    folder: Path,
    listening: socket.socket,
    me: KeyPair,
    clients: Path | None,
    keep_free: int | None,  # None: no files are taken
    idle: Path | None,
    hosts: HandshakeLimits,
) -> None:
    tree = Tree(folder)
    # With a file of clients only their keys are let in.
    names = {} if clients is None else client_names(keys.read_names(clients))
    allow = None if clients is None else names.__contains__
    listener = await session_listen(
        listening.getsockname()[:2], key=me, allow=allow, scheduler=SCHEDULER, idle=idle,
        hosts=hosts, listening=listening,
    )  # fmt: skip
    uploads = None if keep_free is None else Uploads(tree, keep_free)
    serving = Serving(tree, listener, names, uploads)
    # A signal ends the serving, and idle sessions are written before the end.
    running = asyncio.get_running_loop().create_task(serving.run())
    call_at_end(running.cancel)
    log.info(
        "ready",
        listens=show_server(*listener.address),
        folder=str(tree.root),
        key=keys.to_text(me.public),
        clients="everybody with this key" if allow is None else len(names),
    )
    try:
        await running
    except asyncio.CancelledError:
        pass
    finally:
        await serving.close()
    log.info("ended", served=serving.served, kept=serving.kept)


def main() -> None:
    command(prog_name="cedos-serve")
