"""`cedos-put`: sends files to a `cedos-serve --writable`."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from cedos.commands.console import render, servers
from cedos.commands.console.by import BY_HELP, By
from cedos.commands.console.manual import json_option
from cedos.commands.console.program import Program, say
from cedos.commands.console.servers import FILES_PORT, KNOWN_HOSTS, OWN_KEY
from cedos.commands.sessions.shared.by_deadline import FilesByDeadline
from cedos.commands.sessions.shared.sources import Source, SourceType
from cedos.commands.sessions.shared.transfers import (
    Endpoints,
    deadline_option,
    drawn,
    interruptible,
    networks_option,
    summary,
    timeout_option,
)
from cedos.errors import CedosError
from cedos.files.putting import Putting
from cedos.files.server_link import ServerLink
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
        (
            "cedos-put -r --by tomorrow photos home/2026/",
            "They can wait: over Wi-Fi, if possible.",
        ),
        ("cedos-get --print-key", "Prints your own public key, for the server's --clients."),
    ],
    exits={
        0: "The server has all files, whole.",
        1: "The server takes no files or not this one, does not let you in, was not found for too long, "
        "or a file cannot be read. What has arrived is kept there; the other files are sent.",
        2: "",
        130: "Interrupted by Ctrl-C. What has arrived is kept there.",
    },
    files=[OWN_KEY, KNOWN_HOSTS],
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...",
    type=click.Path(path_type=Path, exists=True),
)  # fmt: skip
@click.argument("to", type=SourceType(), metavar="HOST[:PORT]/PATH")
@click.option("-r", "--recursive", is_flag=True, help="Send folders, with all that is in them.")
@networks_option
@servers.key_option
@servers.save_option
@servers.own_key_option
@timeout_option
@deadline_option
@click.option("--by", type=By(), help=BY_HELP)
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
    """Sends files to a `cedos-serve --writable` over sessions, whatever happens to the network.

    Each FILE goes into the folder that PATH names with a slash at its end; one file may get another
    name. When a network is lost it goes on over the others, or waits for the next one. If this
    program or the server crashes, it goes on where it was: run the same command again; the server
    puts the pieces together. A file appears there under its name when it is whole and its SHA-256 is
    that of yours; an existing one is never overwritten, and one that is there with the same content is
    what was wanted.

    With --by the files can wait until then: they go over networks that cost nothing as far as possible,
    and over metered ones only as much as is needed to be in time. `cedos transfers` shows what waits for
    what. Should it become too late, they are sent all the same.

    All files are tried, also after one that could not be sent; the exit status is that of the first
    error. Who you are is a key of your own, which the server must know.
    """
    me = keys.own(own_key or keys.own_key_path())
    if not to.is_folder and (len(files) > 1 or files[0].is_dir()):
        raise click.UsageError(f"{to.name} is no folder; {to.name}/ would be right")
    folders = [str(each) for each in files if each.is_dir()]
    if folders and not recursive:
        raise click.UsageError(f"{folders[0]} is a folder; -r sends it with all that is in it")
    servers.interfaces(networks)
    server = servers.known(to.host, to.port, given_key, FILES_PORT)
    servers.check_save(alias, given_key, server)
    ends = Endpoints(me, server, given_key, alias, networks, timeout, deadline)
    results: list[dict[str, Any]] = []
    status = 0

    def done(fact: dict[str, Any]) -> None:
        results.append(fact)
        if not as_json and not quiet:
            late = "" if fact.get("in_time", True) else "; too late"
            click.echo(summary(fact, fact["to"]) + late)

    def failed(where: str, source: Path, error: CedosError) -> None:
        nonlocal status
        say("cedos-put", type(error)(f"{source}: {error}"))
        status = status or error.exit_code
        results.append({"path": str(source), "to": where, "error": str(error)})

    async def now() -> None:
        link = ends.link()
        try:
            for source, path in _files(files, to.path):
                where = f"{to.server}/{path}"
                try:
                    fact = await _put(source, path, link, ends, quiet or as_json)
                except CedosError as error:
                    failed(where, source, error)
                else:
                    done({"path": str(source), "to": where, **fact})
        finally:
            await link.close()

    async def later(by_unix_s: float) -> None:
        waiting = FilesByDeadline(by_unix_s, quiet or as_json, done, failed)
        for source, path in _files(files, to.path):
            where = f"{to.server}/{path}"
            try:
                waiting.add_upload(source, path, where, ends)
            except CedosError as error:
                failed(where, source, error)
        await waiting.run()

    try:
        interruptible(now() if by is None else later(by))
    finally:  # also after Ctrl-C: what is there is there
        if as_json:
            render.print_json({"files": results})
    click.get_current_context().exit(status)


def _files(files: tuple[Path, ...], to: str) -> Iterator[tuple[Path, str]]:
    """Each file with its path at the server; links inside of folders are not followed."""
    for each in files:
        if not each.is_dir():
            yield each, to + each.name if to.endswith("/") or not to else to
            continue
        top = each.resolve()
        for folder, names, found in os.walk(top):
            names.sort()
            for name in sorted(found):
                path = Path(folder) / name
                if path.is_file() and not path.is_symlink():
                    yield path, f"{to}{path.relative_to(top.parent)}"


async def _put(
    source: Path, path: str, link: ServerLink, ends: Endpoints, quiet: bool
) -> dict[str, Any]:
    """One file.

    Raises:
        CedosError: the server does not have it.
    """
    began_s = time.monotonic()
    putting = Putting(source, path, link, ends.deadline_s)
    try:
        async with drawn(source.name, putting.progress, quiet=quiet):
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


def main() -> None:
    command(prog_name="cedos-put")
