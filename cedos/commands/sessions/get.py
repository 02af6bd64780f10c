"""`cedos-get`: fetch files from `cedos-serve`, and from the web through the gateway."""

import asyncio
import os
import stat
import sys
import time
from contextlib import ExitStack, suppress
from math import ceil
from pathlib import Path
from typing import Any, Final

import click

from cedos.apps.files.getting import Getting, entries
from cedos.apps.files.messages import Entry
from cedos.apps.files.partial import OpenFolder, disk_words
from cedos.apps.files.playing import PipeTarget, PlayTarget
from cedos.apps.files.server_link import ServerLink
from cedos.commands.console import render, servers
from cedos.commands.console.by_deadline import FilesByDeadline
from cedos.commands.console.manual import BIT_RATE, BY, BY_HELP, SIZE, Program, json_option, say
from cedos.commands.console.pipes import Output
from cedos.commands.console.render import echo, size
from cedos.commands.console.servers import KNOWN_HOSTS, OWN_KEY, SOURCE, Source
from cedos.commands.console.transfers import (
    Endpoints,
    deadline_option,
    draw_progress,
    gateway,
    interruptible,
    networks_option,
    partial_of,
    say_if_closed,
    summary,
    timeout_option,
    too_late,
)
from cedos.commands.console.tree_copy import TreeCopy
from cedos.commands.console.waiting_files import download
from cedos.errors import CedosError, TransferError
from cedos.kernel import process_limits
from cedos.plain_text import plain
from cedos.session import keys
from cedos.session.known_hosts import KnownServer
from cedos.session.protocol.buffer_manager import BufferManager
from cedos.session.protocol.life import SessionLimits
from cedos.session.sockets.connection import Connection

_STDOUT: Final = Path("-")
_STORE_BYTES: Final = 64_000_000
_LEAST_STORE: Final = 1 << 16  # one piece, and what is on its way meanwhile
_WINDOW_S: Final = 2.0
_LEAST_WINDOW: Final = 1 << 18  # enough for 20 Mbit/s over 100 ms
_PLAYED_PIECE: Final = 1 << 14


@click.command(
    "cedos-get",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-get --key KEY --save home server.example/music/song.flac",
            "The first time: the key, told by the server's owner, is remembered; the server is `home` "
            "from then on.",
        ),
        ("cedos-get home/music/song.flac", "From then on; also to go on after a crash."),
        ("cedos-get home/music/", "Lists a folder."),
        ("cedos-get -r -o /srv/new home/music/", "Fetches all of it to /srv/new/music."),
        ("cedos-get -o - home/film.mkv | mpv -", "Hands a file on as it comes."),
        (
            "cedos-get -o - --bitrate 640k home/film.mkv | mpv -",
            "On a train: over the stations' Wi-Fi as far as possible, over the phone as much as needed.",
        ),
        (
            "cedos-get --by 18:00 home/show.mkv",
            "It can wait until six: over Wi-Fi as far as possible, metered only as needed.",
        ),
        (
            "cedos-get --via gateway --by 18:00 https://example.org/big.iso",
            "The gateway that was joined fetches it now; it comes from there when it is cheap, by six.",
        ),
        ("cedos-get -n wlan0 home/big.iso", "Over Wi-Fi only, however long that takes."),
        ("cedos-get --print-key", "Prints your own public key, for the server's --clients."),
    ],
    exits={
        0: "All files are here, and right; with --by also where that was too late.",
        1: "The server does not have a file or does not let you in, no server was found for too long, "
        "or a file could not be written. What has come is kept; the other files are fetched.",
        2: "",
        130: "Interrupted by Ctrl-C. What has come is kept.",
    },
    files=[
        (
            "NAME.HASH.part, NAME.HASH.part.json",
            "What has come of a file, and of which version of it.",
        ),
        OWN_KEY,
        KNOWN_HOSTS,
    ],
)
@click.argument("sources", nargs=-1, type=SOURCE, metavar="HOST[:PORT]/PATH|URL...")
@click.option(
    "-o", "--output", "wanted", default=".",
    help="A folder, or the name of one file. A folder ends with / and is made if needed. - is standard "
    "output.  [default: this folder, same name]",
)  # fmt: skip
@click.option("-r", "--recursive", is_flag=True, help="Fetch folders with their contents.")
@click.option(
    "--dot-files", is_flag=True,
    help="With -r: also names with a leading dot at the top of the folder, such as .profile or .git.",
)  # fmt: skip
@click.option(
    "--bitrate", type=BIT_RATE, metavar="RATE",
    help="With -o -: a player reads at this rate (640k, 2.5M bits a second). Wi-Fi fetches ahead; a "
    "metered network fetches only what the player would miss. Without Wi-Fi and while a person is at the "
    "screen, NetworkManager is asked to look for access points every 5 s.",
)  # fmt: skip
@click.option(
    "--store", type=SIZE, show_default="64MB", metavar="SIZE",
    help="With --bitrate: the most that is fetched ahead.",
)  # fmt: skip
@click.option(
    "--via", type=click.Choice(["gateway"]),
    help="Let the joined gateway fetch URLs (http, https). It can read them, also https, and keeps them"
    " until they are here.",
)  # fmt: skip
@networks_option
@servers.key_option
@servers.save_option
@servers.own_key_option
@timeout_option
@deadline_option
@click.option("--by", type=BY, help=BY_HELP)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@servers.print_key_option
@json_option
@click.version_option(package_name="cedos", prog_name="cedos-get")
def command(
    sources: tuple[Source, ...],
    wanted: str,
    recursive: bool,
    dot_files: bool,
    bitrate: float | None,
    store: int | None,
    via: str | None,
    networks: tuple[str, ...],
    given_key: bytes | None,
    alias: str | None,
    own_key: Path | None,
    timeout: float,
    deadline: float,
    by: float | None,
    quiet: bool,
    print_key: bool,
    as_json: bool,
) -> None:
    """Fetch files from `cedos-serve` over sessions that survive changes of the network.

    All networks to the server are used. If one is lost, the transfer goes on over the others, or
    waits for the next one, and the laptop may sleep. After a crash or a restart of the program or
    the server, run the same command again: the transfer resumes. A file gets its name when it is
    complete and its SHA-256 matches the server's. Existing files are never overwritten.

    A folder (a path that ends with /) is listed, or fetched with -r. Files that are here already
    with the same size are skipped. What cannot be copied, such as a symbolic link, is reported,
    and the exit status is 1.

    With --by, files can wait until then. They use free networks as far as possible, and metered
    ones only as much and as late as the deadline allows. `cedos transfers` shows their state.
    Without a daemon, the files of one command are scheduled together. Late files are fetched all
    the same.

    With --via gateway, the gateway (`cedos join`) fetches the file of a URL, even while this host
    is away, and then the file is fetched from there. The gateway terminates TLS: it checks the
    server's certificate and can read the file. It sends neither cookies nor passwords.

    All files are tried until a server is given up. The exit status is that of the first error, and
    a thousand are told. With --json each file has its "error", or null.

    Your own key identifies you, and the given key identifies the server. HOST may be a name under
    which --save remembered a server.
    """
    me = keys.own_key(own_key or keys.own_key_path())
    if print_key:
        echo(keys.to_text(me.public))
        return
    output = Path(wanted)
    into_folder = wanted.endswith("/") or _is_folder(output)
    if not sources:
        raise click.UsageError("a file such as server.example/song.flac is needed, or --print-key")
    if output == _STDOUT and (len(sources) > 1 or sources[0].is_folder):
        raise click.UsageError("-o - goes with one file")
    if output == _STDOUT and as_json:
        raise click.UsageError("--json goes without -o -: both would be on standard output")
    _check_urls(sources, via, given_key, into_folder)
    if len(sources) > 1 and not into_folder:
        raise click.UsageError(f"{output} is no folder, and there are several files")
    if given_key is not None and len({source.server for source in sources}) > 1:
        raise click.UsageError("--key goes with files of one server")
    if bitrate is not None and output != _STDOUT:
        raise click.UsageError("--bitrate goes with -o -")
    if store is not None:
        _check_store(store, bitrate)
    if by is not None and output == _STDOUT:
        raise click.UsageError("--by goes without -o -")
    servers.interfaces(networks)
    if not quiet:
        say_if_closed("cedos-get")
    if dot_files and not recursive:
        raise click.UsageError("--dot-files goes with -r")
    process_limits.allow()  # with --by each folder stays open until the end
    run = _Run(into_folder, recursive, dot_files, quiet or output == _STDOUT, as_json, by)

    async def all_of_them() -> None:
        links: dict[KnownServer, ServerLink] = {}
        try:
            for source in sources:
                try:
                    if source.is_url:
                        who, server = await asyncio.to_thread(gateway)
                    else:
                        who = me
                        server = servers.find_server(source.host, source.port, given_key)
                        servers.check_save(alias, given_key, server)
                    ends = Endpoints(who, server, given_key, alias, networks, timeout, deadline)
                    if bitrate is not None:
                        await _play(source, ends, bitrate, store or _STORE_BYTES)
                        continue
                    link = links.setdefault(server, ends.link())
                    await run.source(source, output, link, ends)
                except CedosError as error:
                    run.report_failure(source.name, output, error)
            await run.fetch_together()
        finally:
            for link in links.values():
                await link.close()

    try:
        interruptible(all_of_them())
    finally:  # also after Ctrl-C: what is here is here
        run.end()
    click.get_current_context().exit(run.status)


# The most failures of one command that are told: a server may name a million things that cannot come.
_MOST_FAILURES: Final = 1_000


class _Run:
    """The state of one command: its exit `status`, and what it tells, which is kept nowhere."""

    def __init__(
        self,
        into_folder: bool,
        recursive: bool,
        dot_files: bool,
        quiet: bool,
        as_json: bool,
        by_unix_s: float | None,
    ) -> None:
        self._into_folder = into_folder
        self._recursive, self._dot_files = recursive, dot_files
        self._quiet = quiet or as_json
        self._opened = ExitStack()
        self._later: FilesByDeadline | None = None
        if by_unix_s is not None:
            self._later = FilesByDeadline(
                by_unix_s, self._quiet, self._report_done, self.report_failure
            )
        self._json = render.JsonFiles() if as_json else None
        self._failures = self.status = 0

    def _note(self, fact: dict[str, Any]) -> None:
        if self._json is not None:
            self._json.add(fact)

    def end(self) -> None:
        """Tell how many failures were left out."""
        left_out = max(self._failures - _MOST_FAILURES, 0)
        if left_out:
            say("cedos-get", CedosError(f"{left_out} more failed, and are not listed"))
        if self._json is not None:
            self._json.end(left_out)

    def report_failure(self, name: str, target: Path, error: CedosError) -> None:
        self.status = self.status or error.exit_code
        self._failures += 1
        if self._failures > _MOST_FAILURES:
            return
        say("cedos-get", error)
        self._note({"path": str(target), "from": name, "error": str(error)})

    def _report_done(self, fact: dict[str, Any]) -> None:
        self._note(fact)
        if not self._quiet:
            echo(summary(fact, fact["path"]) + too_late(fact))

    async def fetch_together(self) -> None:
        """Fetch the files with a deadline, planned together."""
        with self._opened:
            if self._later is not None:
                await self._later.run()

    async def source(self, source: Source, output: Path, link: ServerLink, ends: Endpoints) -> None:
        """Fetch a file, or list or fetch a folder. CedosError: that failed."""
        if not source.is_folder:
            target = self._target(source, output)
            await self._file(source, target, link, ends)
        elif not self._recursive:
            self._list(source, await entries(link, source.path, ends.deadline_s))
        else:
            try:
                await self._folder(source, output / Path(source.path).name, link, ends)
            finally:
                if self._later is None:  # else its files are still to come
                    self._opened.close()

    async def _folder(self, source: Source, here: Path, link: ServerLink, ends: Endpoints) -> None:
        """Fetch a folder with all that is in it. CedosError: it cannot begin, or not go on."""

        def missing(path: str, target: Path, error: TransferError) -> None:
            self.report_failure(
                f"{source.server}/{path}", target, TransferError(f"{target}: {error}")
            )

        copy = TreeCopy(
            link, source.path, here, ends.deadline_s, dot_files=self._dot_files, missing=missing
        )
        self._opened.enter_context(copy.top)
        known = 0
        async for path, target, n_bytes in copy.files():
            try:
                if _size_here(target, copy.top) == n_bytes:
                    known += 1
                else:
                    await self._file(source._replace(path=path), target, link, ends, copy.top)
            except OSError as error:
                missing(path, target, TransferError(disk_words(error)))
            except TransferError as error:
                self.report_failure(f"{source.server}/{path}", target, error)
        if known and not self._quiet:
            echo(f"{here}: {known} files are here already")

    def _target(self, source: Source, output: Path) -> Path:
        """Return the path of the local file. TransferError: its folder cannot be made."""
        if not self._into_folder:
            return output
        try:
            output.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise TransferError(f"{output} is a file, not a folder") from error
        except OSError as error:
            raise TransferError(f"{output}: {error.strerror}") from error
        return output / source.file_name

    def _list(self, source: Source, found: list[Entry]) -> None:
        for each in found:
            folder, when = each.kind == "folder", render.local_time(each.modified_unix_s)
            name = each.name + "/" * folder
            fact = {"from": f"{source.name}{name}", "folder": folder, "kind": each.kind}
            self._note({**fact, "bytes": each.size, "modified": when.isoformat(), "error": None})
            if self._json is None:
                shown_size = size(each.size) if each.kind == "file" else "" if folder else each.kind
                echo(f"{shown_size:>9}  {when:%Y-%m-%d %H:%M}  {name}")

    async def _file(
        self,
        source: Source,
        target: Path,
        link: ServerLink,
        ends: Endpoints,
        below: OpenFolder | None = None,
    ) -> None:
        """Fetch a file, or note it if it has a deadline. CedosError: that failed."""
        if _is_folder(target):
            # If the server has a folder of this name, it answers with a hint.
            await Getting(source.path, PipeTarget(_nowhere), link, ends.deadline_s).ask()
            raise TransferError(f"{target} is a folder here; -o NAME gives the file another name")
        if self._later is not None:
            self._later.add(download(source, target, ends, below), ends)
            return
        began_s = time.monotonic()
        if target == _STDOUT:
            output = Output(sys.stdout.fileno())
            await Getting(source.path, PipeTarget(output.write), link, ends.deadline_s).run()
            await output.drain()
            return
        # The key identifies the server, at any address.
        partial = partial_of(target, f"{keys.to_text(ends.server.key)}/{source.path}", below)
        whole = False
        try:
            getting = Getting(source.path, partial, link, ends.deadline_s)
            async with draw_progress(target.name, getting.progress, quiet=self._quiet):
                await getting.run()
            whole = True
        finally:
            if partial.have and not whole:
                echo(
                    f"cedos-get: {target}: {size(partial.have)} are kept; the same command goes on",
                    err=True,
                )
            partial.close()
        progress = getting.progress
        fact = {
            "path": str(target),
            "from": source.name,
            "bytes": progress.have_bytes,
            "here_before_bytes": progress.began_bytes,
            "sessions": progress.sessions,
            "seconds": round(time.monotonic() - began_s, 3),
            "error": None,
        }
        self._report_done(fact)


def _size_here(target: Path, top: OpenFolder) -> int | None:
    """Return a file's size; None: there is none, or a link of another user, which is not followed."""
    folder = top.open_below(target, links=True)
    try:
        found = os.stat(target.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(found.st_mode) and found.st_uid in (0, os.geteuid()):
            found = os.stat(target.name, dir_fd=folder)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _is_folder(target: Path) -> bool:
    with suppress(OSError):  # a name that is too long, say
        return target != _STDOUT and target.is_dir()
    return False


async def _nowhere(_data: Any) -> None: ...


async def _play(source: Source, ends: Endpoints, bitrate_bps: float, store_bytes: int) -> None:
    """Write a file to standard output while it is received, for a player.

    CedosError: that failed.
    """
    # A slow import, only for streams.
    from cedos.apps.files.playing import search_wifi  # noqa: PLC0415
    from cedos.host.monitor.bus import SystemBus  # noqa: PLC0415

    window = min(max(int(bitrate_bps / 8 * _WINDOW_S), _LEAST_WINDOW), store_bytes)
    manager = BufferManager(bitrate_bps=bitrate_bps, window_bytes=window)
    output = Output(sys.stdout.fileno())
    target = PlayTarget(output.write, manager, bitrate_bps, store_bytes)

    def played(connection: Connection) -> None:
        connection.wait_for(buffer=manager, buffered=target.buffered_bytes)

    link = ends.link(SessionLimits(stream_window=window), played)
    getting = Getting(source.path, target, link, ends.deadline_s, read_bytes=_PLAYED_PIECE)
    searching = asyncio.create_task(search_wifi(SystemBus(), lambda: manager.misses_unmetered))
    try:
        await getting.run()
        await link.close()
        await target.drain()
        await output.drain()
    finally:
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)
        target.close()
        await link.close()


def _check_store(store_bytes: int, bitrate_bps: float | None) -> None:
    """Check --store. UsageError: it is zero, or too small for playing without a break."""
    if bitrate_bps is None:
        raise click.UsageError("--store goes with --bitrate: nothing else is stored ahead")
    least = max(bitrate_bps / 8.0, _LEAST_STORE)  # a second of it
    if store_bytes < least:
        kilobytes = ceil(least / 1000.0)
        raise click.UsageError(
            f"--store {store_bytes}: less than can be played without a break; {kilobytes}kB is the least"
            " at this --bitrate"
        )


def _check_urls(
    sources: tuple[Source, ...], via: str | None, given_key: bytes | None, into_folder: bool
) -> None:
    """Check URLs. UsageError: --via is missing, or a URL has no name of a file."""
    urls = [source for source in sources if source.is_url]
    if via is None and urls:
        raise click.UsageError(
            f"the joined gateway would fetch {plain(urls[0].path)} and could read it;"
            " --via gateway allows that"
        )
    if via is not None and (len(urls) < len(sources) or given_key is not None):
        raise click.UsageError(
            "--via gateway goes with URLs such as https://example.org/file, and without --key"
        )
    for source in urls:
        if not source.file_name and into_folder:
            raise click.UsageError(
                f"{plain(source.path)} has no name for the file; -o NAME gives one"
            )


def main() -> None:
    command(prog_name="cedos-get")
