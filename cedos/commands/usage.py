"""`cedos usage`: bytes over each network, metered or not, with energy and budgets."""

import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import click

from cedos.api.budgets import BudgetMessage, ServerUsage, UsageMessage
from cedos.api.client import ControlClient
from cedos.commands.budget import without_daemon
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, STATE, Manual, json_option
from cedos.commands.console.render import echo
from cedos.config import amounts
from cedos.config.directories import Directories, directories
from cedos.errors import ConfigError, DaemonUnreachableError, HistoryError, PrivilegeError


@click.command(
    cls=Manual,
    examples=[
        ("cedos usage", "The last seven days."),
        ("cedos usage --since 2026-11-01", "Since a date."),
        (
            "cedos usage --since 24h --json | jq '[.networks[].metered_bytes] | add'",
            "Metered bytes.",
        ),
    ],
    exits=(0, 2, 3),
    files=[SOCKET, STATE],
)
@click.option(
    "--since",
    default="7d",
    show_default=True,
    help='The start: a duration ago ("7d", "24h"), or a time ("2026-11-01", "2026-11-01 08:00").',
)
@json_option
def command(since: str, as_json: bool) -> None:
    """Show the use of all programs by network, and the state of the budgets.

    METERED are the bytes of both directions while the network was metered, NOT METERED all others.
    ENERGY is that of the radio, estimated from its traffic. The counters are the interfaces' own,
    so nothing is left out, and the time while the daemon was stopped counts too. The start is
    exact to a quarter of an hour.

    helper-1 has the bytes of all neighbours who had that name in turn; `cedos share receipts` lists
    them by neighbour.

    Below are the servers with most bytes, those over metered networks first: from open connections
    and the last 200,000 that ended. Connections that ended while no daemon ran are missing.

    A server behind a gateway has its own row, "github.com (through gw.example.org)". If the
    session with the gateway used several networks at once, a connection's bytes are divided like
    all bytes of the session in that second. The gateway's own row has the rest: overhead,
    datagrams and other sessions.
    """
    try:
        since_unix_s = amounts.parse_past(since, datetime.now()).timestamp()
    except ValueError as error:
        raise ConfigError(f"--since {error}") from error
    where = directories()
    try:
        client = ControlClient(where.socket)
        used, standing = client.usage(since_unix_s), client.budgets()
        note = ""
    except DaemonUnreachableError:
        used, standing = _without_daemon(where, since_unix_s), without_daemon(where)
        known = bool(used.networks or standing)
        note = "No daemon answers. This was counted until the last one ended." * known
    render.tell(used, lines(used, standing, time.time()), as_json=as_json)
    if note:
        echo(note, err=as_json)


def lines(
    used: UsageMessage, standing: Sequence[BudgetMessage], now_unix_s: float
) -> Iterator[str]:
    began_s = used.counted_since_unix_s
    since = f"since {render.instant(used.since_unix_s)}"
    if not used.networks:
        yield from render.wrap(
            f"Nothing was counted {since}; `cedos up` counts what all programs use."
        )
    else:
        if began_s is not None:
            since = f"since {render.instant(began_s)}, when counting began"
        ago = render.format_ago(now_unix_s - (began_s or used.since_unix_s))
        yield from render.wrap(f"Used {since} ({ago}), by all programs")
        yield ""
        rows = [
            (
                each.network,
                render.size(each.metered_bytes),
                render.size(each.free_bytes),
                render.energy(each.radio_j),
            )
            for each in used.networks
        ]
        metered = sum(each.metered_bytes for each in used.networks)
        free = sum(each.free_bytes for each in used.networks)
        rows.append(
            ("in all", render.size(metered), render.size(free), render.energy(used.radio_j))
        )
        yield from render.table(("NETWORK", "METERED", "NOT METERED", "ENERGY"), rows)
    if counted := [one for one in standing if not one.battery]:
        yield ""
        for one in counted:
            yield from render.wrap(_budget(one))
    if used.servers:
        yield ""
        servers = [
            (_server(each), render.size(sum(sizes.values())), render.networks(sizes))
            for each in used.servers
            if (sizes := each.bytes_by_network)
        ]
        yield from render.table(("SERVER", "CARRIED", "OVER"), servers)
        oldest = used.flows_since_unix_s
        if not used.with_open:
            yield from render.wrap("Connections that are open now are not among them.")
        if oldest:
            yield from render.wrap(
                f"Connections that ended before {render.instant(oldest)} are not among them."
            )


def _budget(one: BudgetMessage) -> str:
    spent, supply = (render.amount(each, one.resource) for each in (one.spent, one.supply))
    share = f" ({render.percent(one.spent / one.supply)})" if one.supply else ""
    ends = "It ended" if one.over else "Its period ends"
    # A period that ended before the counting has no start.
    since = f" since {render.instant(one.begins_unix_s)}" if one.begins_unix_s > 0.0 else ""
    return (
        f'Budget "{one.name}": {spent} of {supply} used{share}{since}.'
        f" {ends} at {render.instant(one.ends_unix_s)}."
    )


def _server(used: ServerUsage) -> str:
    return f"{used.server} (through {used.gateway})" if used.gateway else used.server


def _without_daemon(where: Directories, since_unix_s: float) -> UsageMessage:
    # These imports are slow, and needed only while no daemon answers.
    from cedos.daemon.budgets import used  # noqa: PLC0415
    from cedos.storage.usage import Usage  # noqa: PLC0415

    file: Path = where.state / Usage.FILE
    try:
        if not file.exists():
            return UsageMessage(since_unix_s=since_unix_s)
    except PermissionError as error:
        raise PrivilegeError(
            f"{file} cannot be read by you. While no daemon answers, only root sees what was used"
        ) from error
    try:
        usage = Usage(file, read_only=True)
    except HistoryError as error:
        raise ConfigError(str(error)) from error
    try:
        counted = used.by_network(usage, since_unix_s)
    finally:
        usage.close()
    return used.by_server(counted, where.history)
