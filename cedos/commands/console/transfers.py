"""Options of a server, Ctrl-C and lines of files, for `cedos-get` and `cedos-put`."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from cedos.api.asking import DaemonChooser
from cedos.api.client import ControlClient
from cedos.apps.files.partial import OpenFolder, Partial
from cedos.apps.files.server_link import Progress, ServerLink
from cedos.commands.console import servers
from cedos.commands.console.manual import DURATION, say
from cedos.commands.console.progress import ProgressLine
from cedos.commands.console.render import duration, size
from cedos.commands.console.user_rules import of_sessions
from cedos.config.directories import directories
from cedos.errors import CedosError, PrivilegeError, SessionError, SessionRefusedError
from cedos.kernel.service_manager import call_at_end
from cedos.proxy.local import joined_gateway
from cedos.session.known_hosts import KnownServer
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.life import SessionLimits
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.sockets import connect

# A file is fastest over all networks. If a daemon runs, it decides which of them carry it.
SCHEDULER: Final = "prompt-swtc"
_DRAWN_EVERY_S: Final = 0.2
_ANSWER_S: Final = 1.0
networks_option = click.option(
    "-n", "--network", "networks", multiple=True, metavar="INTERFACE",
    help="Use only this interface; may be repeated.  [default: all that lead to the server]",
)  # fmt: skip
timeout_option = click.option(
    "--timeout", default="30s", show_default=True, type=DURATION,
    help="Give up after this time without a first connection: the name may be wrong.",
)  # fmt: skip
deadline_option = click.option(
    "-d", "--deadline", default="24h", show_default=True, type=DURATION,
    help="Give up after this time without a network or without the server. It counts from the last "
    "packet of the server, or from when the network went down.",
)  # fmt: skip
_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Both ends of transfers with a server; `alias`: the name to remember the server by."""

    me: KeyPair
    server: KnownServer
    given_key: bytes | None
    alias: str | None
    networks: tuple[str, ...]
    timeout_s: float
    deadline_s: float

    def link(
        self,
        limits: SessionLimits | None = None,
        made: Callable[[Connection], None] = lambda _connection: None,
    ) -> ServerLink:
        """Return the link to the server, one session after the other; `made` gets each."""
        return ServerLink(self.dialling(limits, made))

    def dialling(
        self,
        limits: SessionLimits | None = None,
        made: Callable[[Connection], None] = lambda _connection: None,
        may_use: Callable[[str], bool] | None = None,
    ) -> Callable[[], Awaitable[Connection]]:
        """Return the function that makes a session.

        `may_use`: whether an interface may be used now; then no other chooser is asked.
        """
        chooser = DaemonChooser(directories().socket) if may_use is None else None
        given = self.networks
        server = self.server
        refused: dict[str, None] = {}

        def usable(egress: str, address: str) -> bool:
            interface = egress.partition("/")[0]
            if given and interface not in given:
                return False
            if why := of_sessions().refusal(egress, (server.host, server.port), address):
                refused[why] = None
                return False
            return may_use is None or may_use(interface)

        timeout_s: list[float | None] = [self.timeout_s]

        async def dial() -> Connection:
            await of_sessions().follow()
            refused.clear()
            try:
                connection = await connect(
                    (self.server.host, self.server.port),
                    server_key=self.server.key,
                    key=self.me,
                    deadline=self.deadline_s,
                    timeout_s=timeout_s[0],
                    networks=usable,
                    scheduler=SCHEDULER,
                    chooser=chooser,
                    limits=limits,
                    looked_up=of_sessions().follow,
                )
            except SessionRefusedError:
                raise
            except SessionError as error:
                if not refused:
                    raise
                raise SessionError(f"{error} ({', '.join(refused)})") from error
            # The server exists and has this key, so waiting makes sense from now on.
            timeout_s[0] = self.deadline_s
            servers.remember(self.server, self.alias, self.given_key)
            made(connection)
            return connection

        return dial


def gateway() -> tuple[KeyPair, KnownServer]:
    """Return this client's key, and the first joined gateway that answers. Errors: ConfigError.

    If none does, it is the first one. With one gateway alone nothing is tried.
    """
    known = joined_gateway.read(joined_gateway.path())
    chosen = known[0]
    for each in known if len(known) > 1 else ():
        with suppress(OSError), socket.create_connection(each.address, _ANSWER_S):
            chosen = each
            break
    return chosen.client, KnownServer(chosen.host, chosen.port, chosen.server_key)


def interruptible(wanted: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in its own loop.

    KeyboardInterrupt: a signal was to end it; the coroutine was cancelled and has ended.
    """

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        call_at_end(stop)
        try:
            await wanted
        except asyncio.CancelledError:
            if stopped:
                raise KeyboardInterrupt from None
            raise

    asyncio.run(run())


def partial_of(target: Path, source: str, below: OpenFolder | None) -> Partial:
    """Return the partial file; report one of another source. Arguments and errors as of `Partial`."""
    partial = Partial(target, source, below)
    partial.hash_all()
    if partial.replaces:
        why = f"{target}: what had come of another file under this name was dropped"
        say("cedos-get", CedosError(why))
    return partial


@asynccontextmanager
async def draw_progress(name: str, progress: Progress, *, quiet: bool) -> AsyncIterator[None]:
    """Draw the line of a file during the block."""
    line = ProgressLine(name, progress, quiet=quiet)

    async def draw() -> None:
        while True:
            line.draw()
            await asyncio.sleep(_DRAWN_EVERY_S)

    drawing = asyncio.get_running_loop().create_task(draw())
    try:
        yield
    except TimeoutError as error:
        raise SessionError("no server for too long") from error
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        line.clear()


def summary(fact: dict[str, Any], where: str) -> str:
    """Return the line for a complete file."""
    text = f"{where}: {size(fact['bytes'])}"
    if fact["here_before_bytes"]:
        text += f" ({size(fact['here_before_bytes'])} of it from an earlier attempt)"
    if fact["sessions"] > 1:
        text += f", {fact['sessions']} sessions"
    return f"{text}, {duration(fact['seconds'])}"


def too_late(fact: dict[str, Any]) -> str:
    """Return the end of the line of a file that missed its deadline."""
    if not (late_s := fact.get("late_s")):
        return ""
    return f"; too late by {duration(late_s)}"


def say_if_closed(program: str, socket: Path | None = None) -> None:
    """Warn if the daemon may not be asked, because its rules and choices are then ignored."""
    try:
        ControlClient(socket or directories().socket, _TIMEOUT_S).networks()
    except PrivilegeError as error:
        say(
            program,
            CedosError(f"if a daemon runs, its rules and choices are not followed: {error}"),
        )
    except CedosError:
        return  # no daemon runs, so there are no rules
