"""`cedos transfers`: transfers with deadlines, and what they wait for."""

import os
import pwd
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

import click

from cedos.api.client import ControlClient
from cedos.api.transfers import TransferInTable, at_instant, instant, lateness, sentence
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories
from cedos.errors import DaemonUnreachableError
from cedos.model import Direction

_TIMEOUT_S: Final = 3.5
_BY_ITSELF: Final = "what waits goes on by itself, where its program runs"


@click.command(
    cls=Manual,
    examples=[
        ("cedos transfers", "All transfers with their expected ends."),
        (
            "cedos transfers --json | jq '.[].turn.begin_unix_s'",
            "When each must begin at the latest.",
        ),
        ("cedos explain server.example", "The cost of each way, for the last decision."),
    ],
    exits=(0, 1, 3, 6),
    files=[SOCKET, ("/var/lib/cedos/transfers.json", "The table; it survives a restart.")],
)
@json_option
def command(as_json: bool) -> None:
    """Show transfers with deadlines, the earliest first.

    These are the files of `cedos-get --by` and `cedos-put --by`, and the episodes of `cedos-pod`.

    WANTED BY is the deadline. HERE has the received bytes by network; "earlier" are bytes over
    unknown networks, of a killed program or of one without --by. The line below has what the
    transfer waits for or does, when a metered network must begin if Wi-Fi brings no more, and the
    expected end, with a 90 % interval in brackets. A transfer that may be late says so first. A
    failed podcast episode has its error and the time of the next attempt.

    Metered networks wait as long as that risks no deadline by more than 1 % (0.1 % in its last two
    minutes). If the program of a transfer does not run, start the same command again.

    While no daemon answers, the table of the last daemon is shown to users who may read it, with
    status 6. --json is then an object with "daemon_answers": false and "transfers" (null:
    unknown).
    """
    client = ControlClient(directories().socket, _TIMEOUT_S)
    try:
        transfers = client.transfers()
    except DaemonUnreachableError as error:
        _as_left(str(error), as_json)
        raise DaemonUnreachableError(f"{error}; {_BY_ITSELF}") from error
    render.tell(transfers, lines(transfers, datetime.now(), os.getuid()), as_json=as_json)


def _as_left(why: str, as_json: bool) -> None:
    # A slow import, needed only while no daemon answers.
    from cedos.daemon.transfers import KeptTransfers  # noqa: PLC0415

    kept: KeptTransfers | None = None
    with suppress(OSError, ValueError, RecursionError):
        kept = KeptTransfers.read(directories().state)
    if as_json:
        facts = {"daemon_answers": False, "error": why, "known_unix_s": None, "transfers": None}
        if kept is not None:
            facts |= {"known_unix_s": kept.at_unix_s, "transfers": kept.transfers}
        render.print_json(facts)
    elif kept is not None and kept.transfers:
        now = datetime.now()
        known = instant(kept.at_unix_s, now)
        render.show(render.wrap(f"No daemon answers. What the last one knew, {known}:"))
        render.show(lines(kept.transfers, now, os.getuid(), answers=False))


def lines(
    transfers: Sequence[TransferInTable], now: datetime, uid: int, *, answers: bool = True
) -> Iterator[str]:
    """Yield the table; `answers`: whether it is the daemon's or the last daemon's."""
    if not transfers:
        yield from render.wrap(
            "Nothing waits for a deadline. `cedos-get --by 18:00 HOST/NAME` fetches a file that can."
        )
        return
    others = any(each.uid != uid for each in transfers)
    up = any(each.direction is Direction.UP for each in transfers)
    where, how_far = ("FROM, TO", "HERE, THERE") if up else ("FROM", "HERE")
    header = ("TRANSFER", where, "WANTED BY", how_far, *(("USER",) if others else ()))
    rows = [
        (
            each.name,
            f"to {each.server}" if each.direction is Direction.UP else each.server,
            instant(each.deadline_unix_s, now),
            _describe_here(each),
            *((_user(each.uid),) if others else ()),
        )
        for each in transfers
    ]
    table = render.rows_of_table(header, rows)
    yield from table[0]
    for each, row in zip(transfers, table[1:], strict=True):
        yield from row
        why = (
            _describe_reason(each, now)
            if answers
            else "no daemon plans it: its program does, if that runs"
        )
        yield from render.wrap(why, "    ")


def _describe_reason(each: TransferInTable, now: datetime) -> str:
    if not each.running:
        last = f"; last tried in vain: {each.why}" if each.why else ""
        if now.timestamp() > each.deadline_unix_s:
            return (
                f"late, and its program does not run: the same command, given again, goes on{last}"
            )
        return f"its program does not run: it waits until the same command is given again{last}"
    if each.again_unix_s is not None:
        late = lateness(each.turn, each.deadline_unix_s, now)
        again = f"tried again {at_instant(each.again_unix_s, now)}"
        return "; ".join(filter(None, (late, each.why, again)))
    text = sentence(each.turn, each.deadline_unix_s, now)
    if each.turn.metered_bytes >= 1e5:
        text += f"; about {render.size(each.turn.metered_bytes)} of it metered"
    return text


def _describe_here(each: TransferInTable) -> str:
    whole = f" of {render.size(each.size_bytes)}" if each.size_bytes is not None else ""
    share = f" ({render.percent(each.done_bytes / each.size_bytes)})" if each.size_bytes else ""
    by = ""
    if each.done_bytes:
        shares = sorted(each.bytes_by_network.items(), key=lambda one: -one[1])
        parts = [(f"over {name}", count) for name, count in shares]
        parts.append(("earlier", each.earlier_bytes))
        total = sum(count for _, count in parts)
        told = [(how, count / total) for how, count in parts if count >= 0.005 * total]
        by = ": " + ", ".join(f"{render.percent(of_it)} {how}" for how, of_it in told)
    return f"{render.size(each.done_bytes)}{whole}{share}{by}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
