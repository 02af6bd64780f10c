"""`cedos budget`: budgets, what was spent of them, and the waiting that it saved."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

import click

from cedos.api.budgets import BudgetMessage
from cedos.api.client import ControlClient
from cedos.api.lock import running_pid
from cedos.budget_kinds import Resource, Tariff
from cedos.commands.console import render
from cedos.commands.console.manual import CONFIG, SOCKET, STATE, Manual, json_option
from cedos.commands.console.render import echo
from cedos.config import amounts, load
from cedos.config.directories import Directories, directories
from cedos.errors import ConfigError, DaemonUnreachableError, HistoryError, NotFoundError
from cedos.model import Budget, Every, is_name
from cedos.selector.budgets.keeper import period_at
from cedos.storage import budget_file

_T = TypeVar("_T")
_STARTING_S: Final = 5.0
_AGAIN_S: Final = 0.1

_EXITS = {0: "", 1: "There is no such budget.", **dict.fromkeys((2, 3), "")}


class _Group(Manual, click.Group): ...


@click.group(
    "budget",
    cls=_Group,
    invoke_without_command=True,
    examples=[
        ("cedos budget", "All budgets: use, supply, forecast, price, and the waiting they saved."),
        ("cedos budget set data 4GB --until 2026-12-01 --every month", "A data plan."),
        (
            "cedos budget set data 1GB --until 20:00 --network lte0 --name today",
            "Another one for today, of one network.",
        ),
        ("cedos budget set data 4GB --until 30d --hard", "A hard limit."),
        ("cedos budget set battery --until 18:00", "The battery lasts until six."),
        ("cedos budget set money 20 --until 30d", "Where networks have a money_per_mb."),
        ("cedos budget remove data", "Removes the budget."),
    ],
    exits=_EXITS,
    files=[SOCKET, STATE, CONFIG],
)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Show, set and remove budgets.

    Every decision spends data, joules and money where they save most time, so that the supply lasts
    until the end and little is left over. The use of all programs counts, from the start of the
    period or of the counting.

    A budget is a price: programs still get through when it is used up, if there is no other network.
    A hard budget (--hard) is also a wall: once it is used up, its networks are closed to programs and
    to hosts whose packets this host forwards, until the budget grows or a new period begins. This
    host keeps its addresses. `cedos status` warns from 90 % on.

    Without a subcommand, all budgets are shown. While no daemon runs, the last daemon's counts are
    shown, and changes apply from the next start.
    """
    if context.invoked_subcommand is not None:
        return
    where = directories()
    try:
        client = ControlClient(where.socket)
        standing = client.budgets()
        notes = client.status().budget_problems
    except DaemonUnreachableError:
        standing = without_daemon(where)
        notes = budget_file.kept_aside(where.state / budget_file.FILE)
        notes += [
            f"The budget {one.name} is over and limits nothing." for one in standing if one.over
        ]
        notes.append("No daemon answers. This was counted until the last one ended.")
    render.tell(standing, lines(standing, time.time()), as_json=as_json)
    for note in notes:
        echo(note, err=as_json)


@command.command(
    "set",
    cls=Manual,
    examples=[
        ("cedos budget set data 4GB --until 2026-12-01 --every month", "A data plan."),
        ("cedos budget set battery --until 18:00", "The battery lasts until six."),
    ],
    exits=_EXITS,
    files=[SOCKET, STATE],
)
@click.argument("what", type=click.Choice([*(each.value for each in Resource), "battery"]))
@click.argument("amount", required=False)
@click.option("--until", required=True, help='The end: "18:00", "30d", "2026-12-01 08:00".')
@click.option(
    "--every",
    type=click.Choice([each.value for each in Every]),
    help="It recurs: a new supply after each end.",
)
@click.option(
    "--network",
    "networks",
    multiple=True,
    help="Networks whose data counts.  [default: all metered ones]",
)
@click.option("--name", help="The name of the budget.  [default: WHAT]")
@click.option(
    "--hard/--soft",
    default=None,
    help="Block programs on its networks once it is spent (data and money), or not.  [default: as the"
    " budget that it replaces, else soft]",
)
def set_command(
    what: str,
    amount: str | None,
    until: str,
    every: str | None,
    networks: tuple[str, ...],
    name: str | None,
    hard: bool | None,
) -> None:
    """Set a budget of WHAT: AMOUNT of data ("4GB"), energy ("20kJ") or money; none for the battery.

    Sizes need a unit, kB to TB or KiB to TiB. A number alone means bytes and must be a million or
    more. `energy` is that of this host's radios, estimated from their traffic. `battery` is the
    energy in the battery. A budget replaces the one of the same name. What was spent in the period
    still counts, and a hard one stays hard unless --soft says otherwise.
    """
    if what != "data" and networks:
        raise ConfigError(f"--network is for data, not for {what}")
    try:
        budget = Budget(
            name=what if name is None else name,
            resource=Resource.ENERGY if what == "battery" else Resource(what),
            supply=_supply(what, amount),
            until=amounts.parse_end(until, datetime.now()).isoformat(),
            networks=networks,
            every=Every(every) if every is not None else None,
            battery=what == "battery",
            hard=hard,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    where = directories()
    client = ControlClient(where.socket)
    try:
        standing = _ask_daemon(where, lambda: client.set_budget(budget))
    except DaemonUnreachableError:
        _set_without_daemon(where, budget)
        echo(f'"{budget.name}" is kept. It counts once a daemon starts; none answers now.')
        return
    render.show(lines([standing], time.time()))
    for note in client.status().budget_problems:
        if f'"{budget.name}" counts nothing' in note:
            echo(f"Warning: {note}", err=True)
    if networks:
        there = sorted(network.name for network in client.networks())
        for strange in sorted(set(networks) - set(there)):
            echo(
                f'Warning: there is no network "{strange}" now (there are: {", ".join(there) or "none"}).'
                " Its data counts once it comes.",
                err=True,
            )


@command.command(
    "remove",
    cls=Manual,
    examples=[("cedos budget remove data", "Removes the budget of this name.")],
    exits=_EXITS,
    files=[SOCKET, STATE],
)
@click.argument("name")
def remove_command(name: str) -> None:
    """Remove the budget NAME. To remove one of the configuration file, edit the file."""
    where = directories()
    client = ControlClient(where.socket)
    try:
        if not is_name(name):  # the daemon has none such; without one, any may be in the file
            client.budgets()
            raise NotFoundError(f'no budget "{name}" was set; `cedos budget` lists all')
        _ask_daemon(where, lambda: client.remove_budget(name))
    except DaemonUnreachableError:
        file = where.state / budget_file.FILE
        known = budget_file.read(file)
        if known.pop(name, None) is None:
            raise NotFoundError(f'no budget "{name}" was set; `cedos budget` lists all') from None
        budget_file.write(file, known)
    echo(f'removed "{name}"')


def lines(standing: list[BudgetMessage], now_unix_s: float) -> Iterator[str]:
    if not standing:
        yield from render.wrap(
            "no budget; `cedos budget set data 4GB --until 2026-12-01 --every month` sets one"
        )
        return
    header = (
        *("BUDGET", "RESOURCE", "USED", "SUPPLY", "ENDS (LOCAL TIME)", "USED AT THE END"),
        *("PRICE NOW", "SAVED"),
    )
    yield from render.table(header, (_row(one, now_unix_s) for one in standing))
    yield from render.wrap(
        "USED AT THE END: expected if use goes on as lately, nine times of ten within the range"
        ' ("-": too early to say).'
    )
    yield from render.wrap(
        "PRICE NOW: a unit is spent only where it saves so much time. SAVED: time saved so far."
    )
    if soft := [one.name for one in standing if not one.hard and not one.battery]:
        which = f" ({', '.join(soft)})" if len(soft) < len(standing) else ""
        yield from render.wrap(
            f"Once it is used up, programs still get through{which}; `--hard` makes it a wall."
        )


def _row(one: BudgetMessage, now_unix_s: float) -> tuple[str, ...]:
    share = f" ({render.percent(one.spent / one.supply)})" if one.supply else ""
    of = "battery" if one.battery else one.resource
    if one.networks:
        of += f" of {', '.join(one.networks)}"
    if one.hard:
        of += ", hard"
    ends = render.instant(one.ends_unix_s)
    left_s = one.ends_unix_s - now_unix_s
    forecast = render.UNKNOWN
    if one.forecast is not None and not one.over and not one.suspended:
        low, high = (
            render.amount(one.forecast if each is None else each, one.resource)
            for each in (one.forecast_low, one.forecast_high)
        )
        forecast = low if low == high else f"{low} to {high}"
    return (
        one.name,
        of,
        f"{render.amount(one.spent, one.resource)}{share}",
        _describe_supply(one),
        f"{ends} (over)" if one.over else f"{ends} (in {render.duration(left_s)})",
        forecast,
        _price(one),
        render.duration(one.bought_s),
    )


def _describe_supply(one: BudgetMessage) -> str:
    if not one.supply:
        return render.UNKNOWN
    return render.amount(one.supply, one.resource)


def _price(one: BudgetMessage) -> str:
    if one.suspended:
        return one.suspended
    if one.barred:
        return f"used up: {', '.join(one.barred)} blocked"
    if one.unkept:
        return "used up, but not enforced"
    if one.spent_up:
        return "nearly used up" if one.spent < one.supply else "used up"
    if one.s_per_unit is None:
        return render.UNKNOWN
    unit = Resource(one.resource).unit
    price_s, per = one.s_per_unit * unit.priced, unit.priced_symbol
    if price_s < 0.001:
        return "almost free"
    return f"{render.worth(price_s)}{f' per {per}' if per else ''}"


def _supply(what: str, amount: str | None) -> float:
    if what == "battery":
        if amount is not None:
            raise ValueError("the battery itself reports its energy; omit AMOUNT")
        return 0.0
    if amount is None:
        raise ValueError(f'{what} needs an amount, such as "4GB", "20kJ" or "20"')
    return amounts.READERS[Resource(what)](amount)


def _ask_daemon(where: Directories, ask: Callable[[], _T]) -> _T:
    """Return the daemon's answer.

    A starting daemon is waited for, since it has read the budgets' file.
    """
    until_s = time.monotonic() + _STARTING_S
    while True:
        try:
            return ask()
        except DaemonUnreachableError:
            starting = running_pid(where.pid_file) is not None
            if not starting or time.monotonic() > until_s:
                raise
        time.sleep(_AGAIN_S)


def _set_without_daemon(where: Directories, wanted: Budget) -> None:
    """Keep a budget for the next daemon."""
    now = datetime.now()
    file = where.state / budget_file.FILE
    known, aside = budget_file.read_or_move_aside(file)
    if aside:
        echo(f"Warning: {aside}", err=True)
    earlier = (budget_file.configured_budgets(load(), now, where.state) | known).get(wanted.name)
    found = budget_file.begin_budget(wanted, now, earlier)
    budget_file.write(file, known | {found.name: found})


def without_daemon(where: Directories) -> list[BudgetMessage]:
    """Return all budgets as the last daemon left them. Their prices are unknown."""
    # Slow imports, needed only while no daemon answers.
    from cedos.daemon.budgets.metering import money_per_mb  # noqa: PLC0415
    from cedos.storage.usage import Usage  # noqa: PLC0415

    config = load()
    set_ones = budget_file.read(where.state / budget_file.FILE)
    budgets = budget_file.configured_budgets(config, datetime.now(), where.state) | set_ones
    file: Path = where.state / Usage.FILE
    usage = None
    if file.exists():
        try:
            usage = Usage(file, read_only=True)
        except HistoryError as error:
            raise ConfigError(str(error)) from error
    found = []
    for kept in budgets.values():
        budget = kept
        period = period_at(budget, time.time())
        used = 0.0
        if usage is not None and not budget.battery:
            meter, tariff = budget.resource.meter, Tariff(money_per_mb(config))
            used = meter.measure_use(usage, budget.networks, period.begins_s, tariff)
        found.append(
            BudgetMessage.of(
                budget,
                spent=used,
                begins_unix_s=period.begins_s,
                ends_unix_s=period.ends_s,
                over=time.time() >= period.ends_s,
                source="command" if budget.name in set_ones else "configuration",
            )
        )
    if usage is not None:
        usage.close()
    return found
