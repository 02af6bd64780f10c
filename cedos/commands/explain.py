"""`cedos explain`: a decision in plain words."""

import textwrap
import time
from collections.abc import Iterator, Sequence

import click

from cedos.api.budgets import BudgetMessage
from cedos.api.client import ControlClient
from cedos.api.hints import PROGRAM
from cedos.api.messages import DecisionMessage, EvaluationMessage, TransferMessage
from cedos.commands.console import prefetch_text, probing_text, render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories
from cedos.model import Bulk, Direction, Strategy, Urgency

_WIDTH = 100
_USUAL = (Urgency.FOREGROUND, Bulk.SMALL)


@click.command(
    cls=Manual,
    examples=[
        ("cedos explain", "The latest decision of all."),
        ("cedos explain example.org", "The latest about a server, by its name."),
        ("cedos explain 198.51.100.1:443", "The latest about a remote address and port."),
        ("cedos explain 17", "The decision of this number."),
        ("cedos explain --prefetch", "What programs fetch ahead of time, or do not, and why."),
        ("cedos explain --probes", "Which networks are probed, which are not, and why."),
    ],
    exits={0: "", 1: "No decision about such a flow is known.", **dict.fromkeys((2, 3, 6), "")},
    files=[SOCKET],
)
@click.argument("flow", required=False)
@click.option("--prefetch", is_flag=True, help="What programs prefetch, in place of a flow.")
@click.option("--probes", is_flag=True, help="Why networks are probed or not, in place of a flow.")
@json_option
def command(flow: str | None, prefetch: bool, probes: bool, as_json: bool) -> None:
    """Says why a flow goes where it goes.

    FLOW is a server's name (or the end of it), an address, an address with its port, a local port,
    a whole flow as `cedos status` shows it, or the number of a decision; without it, the latest
    decision is explained. Of a connection through a gateway FLOW is its server, with or without the
    port; what is decided there is about all small or all large data of the session.

    Shown are what was known of the transfer, what each strategy was expected to cost (time with
    its 90 % interval, energy, metered bytes, and all in the one currency of the objective), which
    one was chosen and why, and the measurements it rests on, with their ages at that moment. Where
    there are budgets (`cedos budget`), their prices of today follow.

    With --prefetch: what programs could fetch ahead of time, how likely each item is asked for, the
    waiting that it saves, what it takes in joules and metered bytes beyond what it spares later, what
    is gained at today's prices, and what is done with it.

    With --probes: for each network and direction what the configured rule says at this moment, what an
    answer is expected to save, what a probe takes in bytes and joules, what these are worth at today's
    prices, and why the last one was sent.
    """
    client = ControlClient(directories().socket)
    if probes:
        if flow is not None or prefetch:
            raise click.UsageError("--probes is about networks: leave FLOW and --prefetch out")
        probing = client.probing()
        if as_json:
            render.print_json(probing)
        else:
            render.show(probing_text.lines(probing))
        return
    if prefetch:
        if flow is not None:
            raise click.UsageError("--prefetch is about programs: leave FLOW out")
        programs = client.prefetched()
        if as_json:
            render.print_json(programs)
        else:
            render.show(prefetch_text.lines(programs))
        return
    decision = client.explain(flow)
    if as_json:
        render.print_json(decision)
        return
    render.show(lines(decision, time.time(), flow))
    if budgets := client.budgets():
        render.show(prices(budgets, time.time()))


def lines(decision: DecisionMessage, now_unix_s: float, asked: str | None = None) -> Iterator[str]:
    """`asked`: the flow that a person wants explained."""
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.made_unix_s))
    ago = render.ago(max(0.0, now_unix_s - decision.made_unix_s))
    yield f"Decision {decision.number}, {ago} ({made} local time): {render.strategy(decision.choice)}"
    yield from textwrap.wrap(
        f"Why: {render.sentence(decision.reason)}",
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    yield ""
    transfer = decision.transfer
    named = transfer.flow or transfer.server_name or asked in (None, str(decision.number))
    if decision.gateway:
        yield from textwrap.wrap(
            f"{asked} is reached through {decision.gateway}. This was decided for all"
            f" {transfer.label.bulk} data of the session with it.",
            _WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
    elif not named:
        yield f"  Nothing was decided about {asked} alone: it went where all new connections went."
    yield from _transfer(transfer)
    yield ""
    if decision.evaluations:
        yield from _expected(decision)
        yield ""
    yield "  Known at that moment"
    rows = [
        (
            network,
            render.indicator_name(name),
            render.indicator(name, one.value),
            render.age(one.age_s),
            ", ".join(
                word
                for word, there in (("probed", one.active), ("synthetic", one.synthetic))
                if there
            ),
        )
        for network, known in sorted(decision.context.items())
        for name in render.in_order(known)
        if render.worth_telling(name, (one := known[name]).value)
    ]
    yield from render.table(("NETWORK", "INDICATOR", "VALUE", "AGE", "HOW"), rows, indent="  ")


def _expected(decision: DecisionMessage) -> Iterator[str]:
    unit = "" if decision.objective == "max-s-per-e" else ", in seconds,"
    yield f"  Expected. The least cost{unit} is chosen ({render.objective(decision.objective)})"
    header = ("  STRATEGY", "MEAN TIME", "90 % INTERVAL", "ENERGY", "METERED", "COST")
    ranked = sorted(
        decision.evaluations,
        key=lambda one: (one.strategy != decision.choice, one.cost is None, one.cost or 0.0),
    )
    yield from render.table(header, (_row(one, decision.choice) for one in ranked), indent="  ")


def prices(budgets: Sequence[BudgetMessage], now_unix_s: float) -> Iterator[str]:
    """What budgets make of bytes, joules and money today, line by line."""
    yield ""
    yield "  Prices now"
    for one in budgets:
        left = render.amount(max(one.supply - one.spent, 0.0), one.resource)
        of = render.amount(one.supply, one.resource)
        supply = f"{left} of {of} left until {render.instant(one.ends_unix_s)} local time"
        what = {"data": "a megabyte", "energy": "a joule", "money": "a unit of money"}[one.resource]
        if one.over:
            line = "this budget has ended."
        elif one.suspended:
            line = f"no price now ({one.suspended})."
        elif one.spent_up or one.s_per_unit is None:
            line = f"used up, {supply}."
            if one.spent < one.supply:
                line = f"nearly used up, {supply}. That is kept for what has no other way."
        else:
            s_per_unit = one.s_per_unit * (1e6 if one.resource == "data" else 1.0)
            price = f"must save {render.worth(s_per_unit)} of waiting"
            line = f"{what} {'is almost free' if s_per_unit < 0.001 else price}, {supply}."
        if one.barred:
            line += f" Programs are blocked on {', '.join(one.barred)} until then."
        elif one.unkept:
            line += f" Programs should be blocked, but cannot be: {render.sentence(one.unkept)}"
        elif one.hard and not one.over:
            line += " It is hard: once it is used up, programs are blocked on its networks."
        yield f"  {one.name}: {line}"


def _transfer(transfer: TransferMessage) -> Iterator[str]:
    what = "Download" if transfer.direction is Direction.DOWN else "Upload"
    urgency, bulk = transfer.label.urgency, transfer.label.bulk
    # The usual label is that of programs that said nothing, whatever they carry.
    label = "" if (urgency, bulk) == _USUAL else f" (label: {urgency}, {bulk})"
    yield f"  {what} of {render.estimate(transfer.size)}{label}"
    if transfer.deadline_s is not None:
        wanted = render.duration(transfer.deadline_s)
        yield (
            f"  Wanted within {wanted}. What is surely in time counts as {wanted}, what may be late as"
            " the end of its interval"
        )
    if transfer.server_name and transfer.server_name.startswith(PROGRAM):
        yield f"  For all connections of the {transfer.server_name}"
    elif transfer.server_name:
        yield f"  Server {transfer.server_name}"
    if transfer.flow:
        yield f"  Flow {transfer.flow}"


def _row(one: EvaluationMessage, choice: Strategy) -> tuple[str, ...]:
    return (
        ("* " if one.strategy == choice else "  ") + render.strategy(one.strategy),
        render.duration(one.time_s),
        f"{render.duration(one.time_low_s)} to {render.duration(one.time_high_s)}",
        render.energy(one.energy_j),
        render.size(one.metered_bytes),
        render.cost(one.cost),
    )
