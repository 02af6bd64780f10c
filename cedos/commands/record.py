"""`cedos record`: the event log of the running daemon."""

import re
from collections.abc import Iterator

import click

from cedos.api.client import ControlClient
from cedos.api.messages import FILE_NAME, RecordingMessage, RecordingRequest
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories

_FILES = [
    SOCKET,
    ("/var/lib/cedos/records/", "The logs, which root and the daemon's user may read."),
]


class _Group(Manual, click.Group): ...


@click.group(
    cls=_Group,
    invoke_without_command=True,
    examples=[
        ("cedos record start", "Begins a log of all that happens, named after the time."),
        ("cedos record start train.log", "Begins a log of that name."),
        ("cedos record", "Whether a log is written, and where."),
        ("cedos record stop", "Ends it."),
        ("sudo cedos-emu replay /var/lib/cedos/records/train.log", "Runs the decisions again."),
    ],
    exits={0: "", 1: "There is no log, or one already.", **dict.fromkeys((2, 3, 6), "")},
    files=_FILES,
)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Record all that the daemon is told, so that its decisions can be run again.

    `cedos-emu replay` runs the same decisions, and tells why they were taken or what another policy
    would have done. Attach the log to a report of a fault. Names of hosts with a dot are replaced.
    Names of one word (this host's own, say), of Wi-Fi networks and access points, and addresses stay.

    A log has some 100 MB a day. It goes on in a further file every 20 MB, of which each can be replayed
    alone, and beyond 500 MB the oldest is removed. It ends with the daemon, and when the daemon reads
    its configuration again.
    """
    if context.invoked_subcommand is None:
        _tell(_client().recording(), as_json=as_json)


@command.command(
    "start",
    cls=Manual,
    examples=[
        ("cedos record start", "Begins a log."),
        ("sudo cedos record start --names mine.log", "With the names of hosts as they are."),
    ],
    exits={0: "", 1: "A log is written already, or none can be.", **dict.fromkeys((2, 3, 6), "")},
    files=_FILES,
)
@click.argument("file", required=False)
@click.option("--names", is_flag=True, help="Record the names of hosts as they are (only root).")
@json_option
def start(file: str | None, names: bool, as_json: bool) -> None:
    """Begin a log, called FILE in the daemon's folder of logs.

    No file is overwritten. FILE is a name, not a path: the daemon writes nowhere else.
    """
    if file is not None and re.match(FILE_NAME, file) is None:
        raise click.UsageError(
            f'"{file}" is no plain name. The daemon writes in a folder of its own: a name of letters,'
            " digits, dots, dashes and underscores would be right"
        )
    _tell(_client().record(RecordingRequest(on=True, file=file, names=names)), as_json=as_json)


@command.command(
    "stop",
    cls=Manual,
    examples=[("cedos record stop", "Ends the log, and prints its files.")],
    exits={0: "", 1: "There is none.", **dict.fromkeys((2, 3, 6), "")},
    files=_FILES,
)
@json_option
def stop(as_json: bool) -> None:
    """End the log."""
    _tell(_client().record(RecordingRequest(on=False)), as_json=as_json)


def _tell(told: RecordingMessage, *, as_json: bool) -> None:
    render.tell(told, lines(told), as_json=as_json)


def lines(told: RecordingMessage) -> Iterator[str]:
    if not told.files or told.since_unix_s is None:
        yield from render.wrap("Nothing is recorded. `cedos record start` would begin a log.")
        return
    state = "Being recorded" if told.on else "Recorded"
    names = "as they are" if told.names else "replaced"
    yield from render.wrap(
        f"{state} since {render.instant(told.since_unix_s)}: {told.events:,} events,"
        f" {render.size(told.size_bytes)}, names of hosts {names}."
    )
    yield from told.files
    if told.problem:
        yield from render.wrap(f"Nothing is recorded any more: {told.problem}.")


def _client() -> ControlClient:
    return ControlClient(directories().socket)
