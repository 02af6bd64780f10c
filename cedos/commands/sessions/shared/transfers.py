"""What `cedos-get` and `cedos-put` share: options of a server, Ctrl-C, a line for each file."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from cedos.api.asking.session_choices import DaemonChooser
from cedos.commands.console import servers
from cedos.commands.console.option_types import DURATION
from cedos.commands.console.program import say
from cedos.commands.console.progress import ProgressLine, duration, size
from cedos.commands.sessions.shared.ruled_networks import RuledNetworks
from cedos.config.directories import directories
from cedos.errors import CedosError, SessionError, SessionRefusedError
from cedos.files.partial import Partial
from cedos.files.progress import Progress
from cedos.files.server_link import ServerLink
from cedos.proxy.local import joined_gateway
from cedos.session.known_hosts import KnownServer
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.session_limits import SessionLimits
from cedos.session.sockets.connection import Connection
from cedos.session.sockets.sockets import connect

SCHEDULER: Final = "prompt-swtc"
"""A file is quickest over all networks; which of them it may use, a daemon says."""

_DRAWN_EVERY_S: Final = 0.2

networks_option = click.option(
    "-n", "--network", "networks", multiple=True, metavar="INTERFACE",
    help="Use only this interface; may be repeated.  [default: all that lead there]",
)  # fmt: skip
timeout_option = click.option(
    "--timeout", default="30s", show_default=True, type=DURATION,
    help="For the first connection; then it is given up, for the name may be wrong.",
)  # fmt: skip
deadline_option = click.option(
    "-d", "--deadline", default="24h", show_default=True, type=DURATION,
    help="Afterwards: so long without any network, or without the server, before it is given up. "
    "It counts from the last word heard while something waits to be acknowledged (3 s at least), else "
    "from when the network is seen to be gone: at once, or within a minute where it is only silent.",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Both ends of transfers with one server; `alias`: the name to be remembered for it."""

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
        """Sessions with the server, one after the other; `made` gets each."""
        return ServerLink(self.dialling(limits, made))

    def dialling(
        self,
        limits: SessionLimits | None = None,
        made: Callable[[Connection], None] = lambda _connection: None,
        may_use: Callable[[str], bool] | None = None,
    ) -> Callable[[], Awaitable[Connection]]:
        """Makes a session, and the next one.

        `may_use`: which interfaces, now; then nobody else chooses among them.
        """
        chooser = DaemonChooser(directories().socket) if may_use is None else None
        given = self.networks
        server = self.server
        ruled = RuledNetworks(directories().socket, (server.host, server.port), *server.spares)

        def usable(interface: str) -> bool:
            allowed = not given or interface in given
            if not allowed or not ruled.may_use(interface):
                return False
            return may_use is None or may_use(interface)

        timeout_s: list[float | None] = [self.timeout_s]

        async def dial() -> Connection:
            await asyncio.to_thread(ruled.read)
            try:
                connection = await connect(
                    (self.server.host, self.server.port),
                    spares=self.server.spares,
                    server_key=self.server.key,
                    key=self.me,
                    deadline=self.deadline_s,
                    timeout_s=timeout_s[0],
                    networks=usable,
                    scheduler=SCHEDULER,
                    chooser=chooser,
                    limits=limits,
                )
            except SessionRefusedError:
                raise
            except SessionError as error:
                if not ruled.why:
                    raise
                raise SessionError(f"{error} ({ruled.why})") from error
            # There is such a server, and this is its key: from now on it is worth waiting.
            timeout_s[0] = self.deadline_s
            servers.remember(self.server, self.alias, self.given_key)
            made(connection)
            return connection

        return dial


def gateway() -> tuple[KeyPair, KnownServer]:
    """Who this client is to the gateway that was joined, and where that is. Errors: ConfigError."""
    joined = joined_gateway.read(joined_gateway.path())
    return joined.client, KnownServer(joined.host, joined.port, joined.server_key, joined.others)


def interruptible(wanted: Coroutine[Any, Any, None]) -> None:
    """Runs it in a loop of its own.

    Raises:
        KeyboardInterrupt: Ctrl-C or SIGTERM; it was cancelled and has ended.
    """

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        stopped = False

        def stop() -> None:
            nonlocal stopped
            stopped = True
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop)
        try:
            await wanted
        except asyncio.CancelledError:
            if stopped:
                raise KeyboardInterrupt from None
            raise

    asyncio.run(run())


def partial_of(target: Path, source: str) -> Partial:
    """What is here of a file; says where that was of another one. Errors: as of `Partial`."""
    partial = Partial(target, source)
    if partial.replaces:
        why = f"{target}: what had come of another file under this name was dropped"
        say("cedos-get", CedosError(why))
    return partial


@asynccontextmanager
async def drawn(name: str, progress: Progress, *, quiet: bool) -> AsyncIterator[None]:
    """Draws the line of one file, as long as it is under way."""
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
    """One line for a file that is there now."""
    text = f"{where}: {size(fact['bytes'])}"
    if fact["here_before_bytes"]:
        text += f" ({size(fact['here_before_bytes'])} of it from an earlier attempt)"
    if fact["sessions"] > 1:
        text += f", {fact['sessions']} sessions"
    return f"{text}, {duration(fact['seconds'])}"


def too_late(fact: dict[str, Any]) -> str:
    """What the line of a file with --by ends with where it came after its time."""
    if not (late_s := fact.get("late_s")):
        return ""
    return f"; too late by {duration(late_s) if late_s >= 9.95 else f'{late_s:.1f} s'}"


def paced(rate_bytes_s: float | None) -> Callable[[int], Awaitable[None]] | None:
    """What waits behind each piece, so that no more than this comes in a second; None without a limit."""
    if rate_bytes_s is None:
        return None
    rate = rate_bytes_s
    free_s = 0.0

    async def pause(n_bytes: int) -> None:
        nonlocal free_s
        now = asyncio.get_running_loop().time()
        free_s = max(free_s, now) + n_bytes / rate
        await asyncio.sleep(free_s - now)

    return pause
