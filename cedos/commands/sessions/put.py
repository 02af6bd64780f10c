"""`cedos-put`: send files to `cedos-serve --writable`."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from cedos.apps.files.partial import OpenFolder, disk_words, folder_below
from cedos.apps.files.putting import Putting, UploadBody, put_folder
from cedos.apps.files.server_link import ServerLink
from cedos.commands.console import render, servers
from cedos.commands.console.by_deadline import FilesByDeadline
from cedos.commands.console.manual import BY, BY_HELP, Program, json_option, say
from cedos.commands.console.render import echo, size
from cedos.commands.console.servers import KNOWN_HOSTS, OWN_KEY, SOURCE, Source
from cedos.commands.console.transfers import (
    Endpoints,
    deadline_option,
    draw_progress,
    interruptible,
    networks_option,
    say_if_closed,
    summary,
    timeout_option,
    too_late,
)
from cedos.commands.console.waiting_files import upload
from cedos.errors import CedosError, TransferError
from cedos.kernel import process_limits
from cedos.plain_text import plain
from cedos.session import keys


@click.command(
    "cedos-put",
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=[
        (
            "cedos-put --key KEY --save home mail.eml server.example/outbox/",
            "The first time: the key, told by the server's owner, is remembered.",
        ),
        ("cedos-put -r photos home/2026/", "A folder with all that is in it, to 2026/photos."),
        ("cedos-put report.pdf home/inbox/march.pdf", "Under another name."),
        ("cedos-put -r --by tomorrow photos home/2026/", "They can wait: over Wi-Fi, if possible."),
        ("cedos-get --print-key", "Prints your own public key, for the server's --clients."),
    ],
    exits={
        0: "The server has all files. With --by also if late.",
        1: "The server refuses files, this file or you, or was not reached for too long; a file cannot "
        "be read. The server keeps what has arrived; the other files are sent.",
        2: "",
        130: "Interrupted by Ctrl-C. What has arrived is kept there.",
    },
    files=[OWN_KEY, KNOWN_HOSTS],
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...",
    type=click.Path(path_type=Path, exists=True),
)  # fmt: skip
@click.argument("to", type=SOURCE, metavar="HOST[:PORT]/PATH")
@click.option("-r", "--recursive", is_flag=True, help="Send folders with their contents.")
@networks_option
@servers.key_option
@servers.save_option
@servers.own_key_option
@timeout_option
@deadline_option
@click.option("--by", type=BY, help=BY_HELP)
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@json_option
@click.version_option(package_name="cedos", prog_name="cedos-put")
def command(
    files: tuple[Path, ...],
    to: Source,
    recursive: bool,
    networks: tuple[str, ...],
    given_key: bytes | None,
    alias: str | None,
    own_key: Path | None,
    timeout: float,
    deadline: float,
    by: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Send files to a `cedos-serve --writable` over sessions that survive changes of the network.

    Each FILE goes into the folder PATH if that ends with a slash. A single file may get another
    name. If a network is lost, the transfer goes on over the others, or waits for the next one.
    After a crash of the program or the server, run the same command again: the transfer resumes. A
    file gets its name at the server when it is complete and its SHA-256 matches yours. Existing
    files are never overwritten; one with the same content counts as sent.

    With --by, files can wait until then. They use free networks as far as possible, and metered
    ones only as much as the deadline needs. `cedos transfers` shows their state. Late files are
    sent all the same.

    All files are tried until a server is given up. The exit status is that of the first error. Your own
    key identifies you, and the server must know it.
    """
    several = len(files) > 1 or files[0].is_dir()
    if to.is_url:
        raise click.UsageError(
            "files go to a cedos-serve --writable, such as server.example/inbox/; curl -T sends them to a"
            " web server, and with cedos forward its connection survives outages"
        )
    if not to.is_folder and several:
        raise click.UsageError(f"{to.name} is no folder; {to.name}/ would be right")
    folders = [str(each) for each in files if each.is_dir()]
    if folders and not recursive:
        raise click.UsageError(f"{folders[0]} is a folder; -r sends it with all that is in it")
    servers.interfaces(networks)
    if not quiet:
        say_if_closed("cedos-put")
    me = keys.own_key(own_key or keys.own_key_path())
    server = servers.find_server(to.host, to.port, given_key)
    servers.check_save(alias, given_key, server)
    ends = Endpoints(me, server, given_key, alias, networks, timeout, deadline)
    run = _Run(to.server, ends, quiet, as_json)
    process_limits.allow()  # each folder stays open until the end
    with ExitStack() as opened:
        try:
            for source, path, below in _files(files, to.path, run.left_out, opened):
                run.add(source, path, below)
            interruptible(run.send_now() if by is None else run.send_by(by))
        finally:  # also after Ctrl-C: what is there is there
            run.end()
    click.get_current_context().exit(run.status)


class _Run:
    """The state of one command: its exit `status`, and what it tells, which is kept nowhere."""

    def __init__(self, server: str, ends: Endpoints, quiet: bool, as_json: bool) -> None:
        self._server, self._ends = server, ends
        self._quiet, self._json = quiet or as_json, render.JsonFiles() if as_json else None
        # Each file with its folder, its path at the server, and the whole target.
        self._sent: list[tuple[Path, OpenFolder | None, str, str]] = []
        self._folders: list[tuple[Path, str, str]] = []
        self.status = 0

    def _note(self, fact: dict[str, Any]) -> None:
        if self._json is not None:
            self._json.add(fact)

    def end(self) -> None:
        if self._json is not None:
            self._json.end()

    def add(self, source: Path, path: str, below: OpenFolder | None) -> None:
        """Add a file, or a folder without files (a path that ends with a slash)."""
        where = f"{self._server}/{path}"
        if path.endswith("/"):
            self._folders.append((source, path, where))
        else:
            self._sent.append((source, below, path, where))

    def left_out(self, source: Path, why: str) -> None:
        """Report what is not sent."""
        self._report_failure("", source, TransferError(why))

    async def send_now(self) -> None:
        """Send the files one after the other over one session."""
        link = self._ends.link()
        try:
            await self._make_folders(link)
            for source, below, path, where in self._sent:
                try:
                    fact = await self._put(source, below, path, link)
                except CedosError as error:
                    self._report_failure(where, source, error)
                else:
                    self._report_done({"path": str(source), "to": where, **fact})
        finally:
            await link.close()

    async def _put(
        self, source: Path, below: OpenFolder | None, path: str, link: ServerLink
    ) -> dict[str, Any]:
        """Send a file. CedosError: the server does not have it."""
        began_s = time.monotonic()
        putting = Putting(UploadBody(source, below), path, link, self._ends.deadline_s)
        try:
            async with draw_progress(source.name, putting.progress, quiet=self._quiet):
                await putting.run()
        finally:
            putting.close()
        progress = putting.progress
        return {
            "bytes": progress.have_bytes,
            "here_before_bytes": progress.began_bytes,
            "sessions": progress.sessions,
            "seconds": round(time.monotonic() - began_s, 3),
            "error": None,
        }

    async def send_by(self, by_unix_s: float) -> None:
        """Send the files by a deadline, planned together."""
        waiting = FilesByDeadline(by_unix_s, self._quiet, self._report_done, self._report_failure)
        for source, below, path, where in self._sent:
            try:
                waiting.add(upload(source, below, path, where, self._ends), self._ends)
            except CedosError as error:
                self._report_failure(where, source, error)
        await waiting.run()
        link = self._ends.link()
        try:
            await self._make_folders(link)
        finally:
            await link.close()

    async def _make_folders(self, link: ServerLink) -> None:
        for source, path, where in self._folders:
            try:
                await put_folder(link, path, self._ends.deadline_s)
            except CedosError as error:
                self._report_failure(where, source, error)

    def _report_done(self, fact: dict[str, Any]) -> None:
        self._note(fact)
        if self._quiet:
            return
        line = summary(fact, fact["to"])
        if fact["bytes"] and fact["here_before_bytes"] == fact["bytes"]:
            line = f"{plain(fact['to'])}: {size(fact['bytes'])}, was there already"
        echo(line + too_late(fact))

    def _report_failure(self, where: str, source: Path, error: CedosError) -> None:
        say("cedos-put", type(error)(f"{source}: {error}"))
        self.status = self.status or error.exit_code
        self._note({"path": str(source), "to": where, "error": str(error)})


def _files(
    files: tuple[Path, ...], to: str, left_out: Callable[[Path, str], None], opened: ExitStack
) -> Iterator[tuple[Path, str, OpenFolder | None]]:
    """Yield each file, and each folder without files (with a slash), with its path at the server.

    Links inside of folders are not followed. `opened` closes the folders.
    """
    for each in files:
        if not each.is_dir():
            yield each, to + each.name if to.endswith("/") or not to else to, None
            continue
        top = each.resolve()
        try:
            below = opened.enter_context(OpenFolder.of(top))
        except OSError as error:
            left_out(each, disk_words(error))
            continue
        for here, found in _folders(below, left_out):
            if not found:
                yield here, f"{to}{here.relative_to(top.parent)}/", below
            for name, kind in found:
                path = here / name
                if kind == stat.S_IFLNK:
                    left_out(path, "is a symbolic link, which is not sent")
                elif kind == stat.S_IFREG:
                    yield path, f"{to}{path.relative_to(top.parent)}", below
                elif kind != stat.S_IFDIR:
                    left_out(path, "is neither a file nor a folder")


def _folders(
    top: OpenFolder, left_out: Callable[[Path, str], None]
) -> Iterator[tuple[Path, list[tuple[str, int]]]]:
    """Yield each folder that can be read, with the names and kinds of what is in it.

    No path is followed, which another user may have led elsewhere meanwhile.
    """
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        here = top.path.joinpath(*parts)
        try:
            number = folder_below(top.number, parts)
            try:
                with os.scandir(f"/proc/self/fd/{number}") as listed:
                    found = sorted((each.name, _kind(each)) for each in listed)
            finally:
                os.close(number)
        except OSError as error:
            left_out(here, disk_words(error))
            continue
        yield here, found
        waiting += [(*parts, name) for name, kind in reversed(found) if kind == stat.S_IFDIR]


def _kind(each: "os.DirEntry[str]") -> int:
    """Return what is in a folder there; 0: nothing any more."""
    try:
        return stat.S_IFMT(each.stat(follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return 0


def main() -> None:
    command(prog_name="cedos-put")
