"""`cedos-get`: fetches files from `cedos-serve`."""

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from cedos.commands.console import render, servers
from cedos.commands.console.manual import json_option
from cedos.commands.console.program import Program, say
from cedos.commands.console.progress import ProgressLine, duration, size
from cedos.commands.console.servers import FILES_PORT, KNOWN_HOSTS, OWN_KEY, KeyText, Server, shown
from cedos.commands.exec import Duration
from cedos.config.directories import directories
from cedos.errors import CedosError, SessionError
from cedos.session import keys
from cedos.session.protocol.crypto import KeyPair

_DRAWN_EVERY_S: Final = 0.2


class Source(NamedTuple):
    host: str
    port: int
    path: str

    @property
    def name(self) -> str:
        return f"{shown(self.host, self.port)}/{self.path}"


class SourceType(click.ParamType[Source]):
    """`server.example/music/song.flac`."""

    name = "source"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Source:
        if isinstance(value, Source):
            return value
        server, slash, path = value.removeprefix("cedos://").partition("/")
        if not slash or not path or path.endswith("/"):
            self.fail(f"{value!r} is not a file such as server.example/song.flac", param, ctx)
        host, port = Server(FILES_PORT).convert(server, param, ctx)
        return Source(host, port, path)


@click.command(
    "cedos-get",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-get --key KEY server.example/music/song.flac",
            "The first time: the key, told by the server's owner, is pinned.",
        ),
        ("cedos-get server.example/music/song.flac", "From then on; also to go on after a crash."),
        ("cedos-get -o /srv/new server.example:7100/a.iso server.example:7100/b.iso", "Two files."),
        ("cedos-get -n wlan0 server.example/big.iso", "Over Wi-Fi only, however long that takes."),
        ("cedos-get --print-key", "Prints your own public key, for the server's --clients."),
    ],
    exits={
        0: "All files are here, and right.",
        1: "The server does not have a file or does not let you in, no server was found for too long, "
        "or a file could not be written. What has come is kept; the other files are fetched.",
        2: "",
        130: "Interrupted by Ctrl-C. What has come is kept.",
    },
    files=[
        ("NAME.part, NAME.part.json", "What has come of a file, and of which version of it."),
        OWN_KEY,
        KNOWN_HOSTS,
    ],
)
@click.argument("sources", nargs=-1, type=SourceType(), metavar="HOST[:PORT]/PATH...")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path(),
    help="A folder, or for one file its name.  [default: here, under the same name]",
)  # fmt: skip
@click.option(
    "-n", "--network", "networks", multiple=True, metavar="INTERFACE",
    help="Use only this interface; may be repeated.  [default: all that lead there]",
)  # fmt: skip
@click.option(
    "-k", "--key", "given_key", type=KeyText(),
    help="The server's key, needed once: it is remembered for this server. Ask its owner over a way "
    "that you trust.",
)  # fmt: skip
@servers.own_key_option
@click.option(
    "--timeout", default="30s", show_default=True, type=Duration(),
    help="For the first connection; then it is given up, for the name may be wrong.",
)  # fmt: skip
@click.option(
    "-d", "--deadline", default="24h", show_default=True, type=Duration(),
    help="Afterwards: so long without any network, or without the server, before it is given up. "
    "It counts from the last word heard while something waits to be acknowledged (3 s at least), else "
    "from when the network is seen to be gone: at once, or within a minute where it is only silent.",
)  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@servers.print_key_option
@json_option
@click.version_option(package_name="cedos", prog_name="cedos-get")
def command(
    sources: tuple[Source, ...],
    output: Path,
    networks: tuple[str, ...],
    given_key: bytes | None,
    own_key: Path | None,
    timeout: float,
    deadline: float,
    quiet: bool,
    print_key: bool,
    as_json: bool,
) -> None:
    """Fetches files from `cedos-serve` over sessions, whatever happens to the network.

    All networks that lead to the server are used. When one is lost the transfer goes on over the
    others, or waits for the next one; the laptop may sleep. If this program or the server crashes or
    is restarted, it goes on where it was: run the same command again. A file appears under its name
    when it is whole and its SHA-256 is the server's; an existing one is never overwritten.

    All files are tried, also after one that could not be had; the exit status is that of the first
    error. With --json each file has its "error", or null.

    Who you are is a key of your own; who the server is, the key that you pinned.
    """
    me = keys.own(own_key or keys.own_key_path())
    if print_key:
        click.echo(keys.to_text(me.public))
        return
    if not sources:
        raise click.UsageError("a file such as server.example/song.flac is needed, or --print-key")
    if len(sources) > 1 and not output.is_dir():
        raise click.UsageError(f"{output} is no folder, and there are several files")
    if given_key is not None and len({(s.host, s.port) for s in sources}) > 1:
        raise click.UsageError("--key goes with files of one server")
    servers.interfaces(networks)
    results: list[dict[str, Any]] = []
    status = 0
    try:
        for source in sources:
            target = output / Path(source.path).name if output.is_dir() else output
            try:
                key = servers.server_key(source.host, source.port, given_key)
                options = _Options(me, key, networks, timeout, deadline, quiet or as_json)
                results.append(_fetch(source, target, options))
            except CedosError as error:
                say("cedos-get", error)
                status = status or error.exit_code
                results.append({"path": str(target), "from": source.name, "error": str(error)})
            else:
                if not as_json and not quiet:
                    click.echo(_summary(results[-1]))
    finally:  # also after Ctrl-C: what is here is here
        if as_json:
            render.print_json({"files": results})
    click.get_current_context().exit(status)


class _Options(NamedTuple):
    me: KeyPair
    key: bytes
    networks: tuple[str, ...]
    timeout_s: float
    deadline_s: float
    quiet: bool


def _summary(fact: dict[str, Any]) -> str:
    text = f"{fact['path']}: {size(fact['bytes'])}"
    if fact["here_before_bytes"]:
        text += f" ({size(fact['here_before_bytes'])} of it from an earlier attempt)"
    if fact["sessions"] > 1:
        text += f", {fact['sessions']} sessions"
    return f"{text}, {duration(fact['seconds'])}"


def _fetch(source: Source, target: Path, options: _Options) -> dict[str, Any]:
    """One file.

    Raises:
        CedosError: it is not here.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    from cedos.files.getting import Getting  # noqa: PLC0415
    from cedos.files.partial import Partial  # noqa: PLC0415

    began_s = time.monotonic()
    # The server is who has the key, at whatever address.
    partial = Partial(target, f"{keys.to_text(options.key)}/{source.path}")
    try:
        getting = Getting(source.path, partial, _connector(source, options), options.deadline_s)
        line = ProgressLine(target.name, getting.progress, quiet=options.quiet)
        try:
            asyncio.run(_run(getting, line))
        except KeyboardInterrupt:
            _say_kept(partial.have, target)
            raise
        except CedosError:
            if partial.have:
                _say_kept(partial.have, target)
            raise
    finally:
        partial.close()
    progress = getting.progress
    return {
        "path": str(target),
        "from": source.name,
        "bytes": progress.have_bytes,
        "here_before_bytes": progress.began_bytes,
        "sessions": progress.sessions,
        "seconds": round(time.monotonic() - began_s, 3),
        "error": None,
    }


def _say_kept(have_bytes: int, target: Path) -> None:
    click.echo(
        f"cedos-get: {target}: {size(have_bytes)} are kept; the same command goes on", err=True
    )


def _connector(source: Source, options: _Options) -> Callable[[], Any]:
    from cedos.api.session_choices import DaemonChooser  # noqa: PLC0415
    from cedos.session.sockets.sockets import connect  # noqa: PLC0415

    chooser = DaemonChooser(directories().socket)
    timeout_s: list[float | None] = [options.timeout_s]

    async def dial() -> Any:
        connection = await connect(
            (source.host, source.port),
            server_key=options.key,
            key=options.me,
            deadline=options.deadline_s,
            timeout_s=timeout_s[0],
            networks=options.networks.__contains__ if options.networks else None,
            chooser=chooser,
        )
        # There is such a server, and this is its key: from now on it is worth waiting.
        timeout_s[0] = options.deadline_s
        servers.pin(source.host, source.port, options.key)
        return connection

    return dial


async def _run(getting: Any, line: ProgressLine) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    async def draw() -> None:
        while True:
            line.draw()
            await asyncio.sleep(_DRAWN_EVERY_S)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    drawing = loop.create_task(draw())
    try:
        await getting.run()
    except asyncio.CancelledError:
        if stopped:
            raise KeyboardInterrupt from None
        raise
    except TimeoutError as error:
        raise SessionError("no server for too long") from error
    finally:
        drawing.cancel()
        with suppress(asyncio.CancelledError):
            await drawing
        line.clear()


def main() -> None:
    command(prog_name="cedos-get")
