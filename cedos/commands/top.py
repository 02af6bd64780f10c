"""`cedos top`: problems, networks and flows, refreshed."""

import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count as counted
from typing import Final

import click

from cedos.api.client import ControlClient
from cedos.api.messages import FlowMessage, StatusMessage, server_text
from cedos.commands import status
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual
from cedos.config.directories import directories
from cedos.errors import DaemonUnreachableError
from cedos.model import CarriedConnection
from cedos.plain_text import plain

# Control sequences of ECMA-48 and xterm: alternate screen without cursor, and back; home; clear
# the line; clear the screen.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _ERASE_LINE, _ERASE_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"

# The width that is kept for a flow's network, rates, bytes and age.
_BESIDE_SERVER: Final = 52


@click.command(
    cls=Manual,
    examples=[
        ("cedos top", "Until Ctrl-C."),
        ("cedos top --interval 0.2 --count 50", "Five times a second, for ten seconds."),
    ],
    exits=(0, 1, 3, 6),
    files=[SOCKET],
)
@click.option(
    "-i",
    "--interval",
    "interval_s",
    type=click.FloatRange(0.05, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option("-n", "--count", type=click.IntRange(1), help="End after so many refreshes.")
def command(interval_s: float, count: int | None) -> None:
    """Show problems, networks and flows repeatedly on a separate screen, until Ctrl-C.

    Problems come first. Then each network has a line. Then the network of new connections, with the
    reason. Then the flows with the most traffic now: the server, the network that carries the flow,
    the rates since the last refresh, and all bytes. The reason follows below a flow, unless the flow
    went where all new connections went. `cedos status` has what does not fit the screen.

    If the daemon ends, the command waits for the next one.
    """
    client = ControlClient(directories().socket)
    view = FullScreen()
    view.take(client.status(), time.monotonic())
    screen = sys.stdout.isatty()
    with _own_screen() if screen else nullcontext(), suppress(KeyboardInterrupt):
        for shown in counted(1):
            if screen:
                click.echo(view.page(), nl=False)
            else:
                render.show(view.lines())
            if shown == count:
                return
            time.sleep(interval_s)
            try:
                view.take(client.status(), time.monotonic())
            except DaemonUnreachableError as error:
                view.fail(str(error))


@dataclass(frozen=True, slots=True)
class _Row:
    """A flow of this host, or a connection through a gateway.

    `by_network`: its bytes so far; empty if only the network of the whole is known.
    """

    key: str
    server: str
    networks: str
    down: int | None
    up: int | None
    age_s: float | None
    decision: int | None
    by_network: Mapping[str, int] = field(default_factory=dict)


class FullScreen:
    """The content of the screen: the last status, and the bytes of the one before."""

    def __init__(self) -> None:
        self._status: StatusMessage | None = None
        self._why = ""
        self._at_s = self._passed_s = 0.0
        self._rows: dict[str, _Row] = {}
        self._before: dict[str, _Row] = {}

    def take(self, now: StatusMessage, at_s: float) -> None:
        """Take a status, for rates beside the one before."""
        self._why, self._status = "", now
        self._before, self._passed_s, self._at_s = self._rows, at_s - self._at_s, at_s
        self._rows = {each.key: each for each in _rows(now)}

    def fail(self, why: str) -> None:
        """Show why there is no status."""
        self._why, self._rows = why, {}

    def page(self) -> str:
        """Return what draws the screen: as many lines as fit, and how many do not."""
        width, height = shutil.get_terminal_size()
        lines = self.lines()
        if len(lines) > height:
            lines[height - 1 :] = [f"and {len(lines) - height + 1} more lines"]
        shown = (f"{cut(line, width)}{_ERASE_LINE}" for line in lines)
        return _HOME + "\n".join(shown) + _ERASE_BELOW

    def lines(self) -> list[str]:
        """Return all lines, of which the screen shows some."""
        now = self._status
        if self._why or now is None:
            return list(map(plain, render.wrap(self._why)))
        return [plain(line) for line in self._lines(now)]

    def _lines(self, now: StatusMessage) -> Iterator[str]:
        yield from status.problem_lines(now, after=("",))
        yield from status.networks(now)
        yield ""
        yield from status.default_lines(now)
        yield ""
        others = now.other_flows + now.other_carried
        if not self._rows:
            yield "no flows"
            return
        header = ("SERVER", "NETWORK", "DOWN", "UP", "BYTES", "AGE", "WHY")
        rows = sorted(self._rows.values(), key=self._bytes_lately, reverse=True)
        yield from render.table(
            header, [(*self._cells(row), _describe_verdict(row, now)) for row in rows]
        )
        if others:
            yield f"and {others} more, which carried less"

    def _bytes_lately(self, row: _Row) -> int:
        before = self._before.get(row.key)
        return sum(now - then for now, then in _pairs(row, before))

    def _cells(self, row: _Row) -> tuple[str, ...]:
        before = self._before.get(row.key)
        rates: list[str] = [
            render.rate(8 * max(now - then, 0) / self._passed_s) if before else render.UNKNOWN
            for now, then in _pairs(row, before)
        ]
        if row.down is None:
            rates = [render.UNKNOWN] * 2
        known = [each for each in (row.down, row.up) if each is not None]
        return (
            _shorten(row.server, max((render.columns() or 100) - _BESIDE_SERVER, _BESIDE_SERVER)),
            _recent_networks(row, before) or row.networks,
            *rates,
            render.size(sum(known)) if known else render.UNKNOWN,
            render.duration(row.age_s),
        )


def _pairs(row: _Row, before: _Row | None) -> Iterable[tuple[int, int]]:
    then = before or row
    return ((row.down or 0, then.down or 0), (row.up or 0, then.up or 0))


def _recent_networks(row: _Row, before: _Row | None) -> str:
    """Return the networks that carried bytes since the last refresh, most first; "": none did."""
    then = before.by_network if before else {}
    more = {name: size - then.get(name, 0) for name, size in row.by_network.items()}
    return " + ".join(sorted((name for name in more if more[name] > 0), key=lambda n: -more[n]))


def _describe_verdict(row: _Row, now: StatusMessage) -> str:
    """Return the verdict on a flow; `cedos explain` has all."""
    if row.decision in (None, now.default.decision):
        return render.UNKNOWN
    return now.reasons.get(row.decision or 0, render.UNKNOWN).partition(". ")[0]


def _shorten(text: str, most: int) -> str:
    """Leave out the middle of a long name: its ends tell most."""
    over = len(text) - most
    half = most // 2
    return text if over <= 0 else f"{text[:half]}…{text[half + over + 1 :]}"


def _rows(now: StatusMessage) -> Iterator[_Row]:
    yield from map(_own_row, now.flows)
    yield from map(_through_gateway, now.carried)


def _own_row(flow: FlowMessage) -> _Row:
    counted = not flow.flow.startswith("udp ")  # only at the end
    return _Row(
        flow.flow,
        status.server(flow),
        render.strategy(flow.strategy),
        flow.bytes_down if counted else None,
        flow.bytes_up if counted else None,
        flow.age_s,
        flow.decision,
    )


def _through_gateway(each: CarriedConnection) -> _Row:
    return _Row(
        f"{each.gateway} {each.server} {each.port} {each.number}",
        server_text(each.server, each.port),
        " + ".join(each.bytes_by_network) or render.strategy(each.strategy),
        each.bytes_down,
        each.bytes_up,
        each.age_s,
        each.decision,
        each.bytes_by_network,
    )


def cut(text: str, cells: int) -> str:
    """Cut a line so that it takes at most so many cells of a terminal."""
    taken = 0
    for at, character in enumerate(text):
        taken += 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if taken > cells:
            return text[:at]
    return text


@contextmanager
def _own_screen() -> Iterator[None]:
    click.echo(_ENTER, nl=False)
    try:
        yield
    finally:
        click.echo(_LEAVE, nl=False)
