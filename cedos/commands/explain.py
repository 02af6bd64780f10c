"""`cedos explain`: a decision for people."""

import time
from collections.abc import Iterator, Sequence

import click

from cedos.api.budgets import BudgetMessage
from cedos.api.client import ControlClient
from cedos.api.messages import (
    DecisionMessage,
    EvaluationMessage,
    NetworkMessage,
    NowMessage,
    TransferMessage,
)
from cedos.budget_kinds import Resource
from cedos.commands.console import render
from cedos.commands.console.manual import SOCKET, Manual, json_option
from cedos.config.directories import directories
from cedos.controller.hint import PROGRAM
from cedos.model import Bulk, Direction, Strategy, Urgency
from cedos.plain_text import plain

_USUAL = (Urgency.FOREGROUND, Bulk.SMALL)


@click.command(
    cls=Manual,
    examples=[
        ("cedos explain", "The latest decision of all."),
        ("cedos explain example.org", "The latest about a server, by its name."),
        ("cedos explain 198.51.100.1:443", "The latest about a remote address and port."),
        ("cedos explain 17", "The decision of this number."),
    ],
    exits={0: "", 1: "No decision about such a flow is known.", **dict.fromkeys((2, 3, 6), "")},
    files=[SOCKET],
)
@click.argument("flow", required=False)
@json_option
def command(flow: str | None, as_json: bool) -> None:
    """Explain why a flow uses its network.

    For a living flow the first line has the networks that carry it now, and what is wrong with
    them. Then comes the latest decision about it, and the first one if that was another.

    FLOW is a server's name or the end of it, an address, an address with its port, a local port, a
    flow as `cedos status` shows it, or the number of a decision. Without FLOW, the latest decision
    is explained. For a connection through a gateway FLOW is its server, with or without the port;
    such decisions are about all small or all large data of the session.

    The output has the transfer, the expected cost of each strategy (time with its 90 % interval,
    energy, metered bytes, and the sum in the unit of the objective), the choice and its reason,
    and the measurements with their ages at that moment. If there are budgets (`cedos budget`),
    their prices of today follow.
    """
    client = ControlClient(directories().socket)
    decision = client.explain(flow)
    if as_json:
        render.print_json(decision)
        return
    render.show(lines(decision, time.time(), flow))
    considered = [each.strategy for each in decision.evaluations]
    render.show(neighbours(considered, client.networks()))
    if budgets := client.budgets():
        render.show(prices(budgets, time.time()))


def lines(decision: DecisionMessage, now_unix_s: float, asked: str | None = None) -> Iterator[str]:
    """Yield the explanation; `asked` is the flow in the user's words."""
    if decision.now is not None:
        yield from render.wrap(_describe_now(decision.now, decision.choice))
        yield ""
    made = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(decision.made_unix_s))
    ago = render.format_ago(max(0.0, now_unix_s - decision.made_unix_s))
    yield from render.wrap(
        f"Decision {decision.number}, {ago} ({made} local time): {render.strategy(decision.choice)}"
    )
    yield from render.wrap(f"Why: {render.sentence(decision.reason)}", "  ")
    yield ""
    if (began := decision.began) is not None:
        ago = render.format_ago(max(0.0, now_unix_s - began.made_unix_s))
        yield from render.wrap(
            f"It began with decision {began.number}, {ago}: {render.sentence(began.reason)}", "  "
        )
        yield ""
    transfer = decision.transfer
    named = transfer.flow or transfer.server_name or asked in (None, str(decision.number))
    if decision.gateway:
        yield from render.wrap(
            f"{asked} is reached through {decision.gateway}. This was decided for all"
            f" {transfer.label.bulk} data of the session with it.",
            "  ",
        )
    elif not named:
        yield from render.wrap(
            f"Nothing was decided about {asked} alone: it went where all new connections went.",
            "  ",
        )
    yield from _transfer(transfer)
    yield ""
    if decision.evaluations:
        yield from _describe_expected(decision)
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


def neighbours(considered: Sequence[Strategy], networks: Sequence[NetworkMessage]) -> Iterator[str]:
    """Yield a line for each helper in these strategies whose neighbour's name is known."""
    names = {name for each in considered for name in each.networks}
    for each in networks:
        if each.neighbour and each.name in names:
            yield f"  {each.name} is {plain(each.neighbour)} now."


def _describe_now(now: NowMessage, choice: Strategy) -> str:
    """Return the sentences about where a living flow is."""
    over = " and ".join(now.networks)
    if not over:
        where = "Now: no data came lately"
    elif set(now.networks) <= set(choice.networks):
        where = f"Now: it goes over {over}"
    else:
        where = f"Now: it goes over {over}, though {render.strategy(choice)} was chosen"
    return render.sentence(f"{where}. {now.why}" if now.why else where)


def _describe_expected(decision: DecisionMessage) -> Iterator[str]:
    unit = "" if decision.objective == "max-s-per-e" else ", in seconds,"
    yield from render.wrap(
        f"Expected. The least cost{unit} is chosen ({render.objective(decision.objective)})", "  "
    )
    header = ("  STRATEGY", "MEAN TIME", "90 % INTERVAL", "ENERGY", "METERED", "COST")
    ranked = sorted(
        decision.evaluations,
        key=lambda one: (one.strategy != decision.choice, one.cost is None, one.cost or 0.0),
    )
    yield from render.table(header, (_row(one, decision.choice) for one in ranked), indent="  ")


def prices(budgets: Sequence[BudgetMessage], now_unix_s: float) -> Iterator[str]:
    """Yield a line for each budget with its price of today."""
    yield ""
    yield "  Prices now"
    for one in budgets:
        left = render.amount(max(one.supply - one.spent, 0.0), one.resource)
        of = render.amount(one.supply, one.resource)
        supply = f"{left} of {of} left until {render.instant(one.ends_unix_s)} local time"
        unit = Resource(one.resource).unit
        if one.over:
            line = "this budget has ended."
        elif one.suspended:
            line = f"no price now ({one.suspended})."
        elif one.spent_up or one.s_per_unit is None:
            line = f"used up, {supply}."
            if one.spent < one.supply:
                line = f"nearly used up, {supply}."
                line += " The rest is for connections that have no other network."
        else:
            s_per_unit = one.s_per_unit * unit.priced
            price = f"must save {render.worth(s_per_unit)} of waiting"
            line = f"a {unit.priced_name} {'is almost free' if s_per_unit < 0.001 else price}, {supply}."
        if one.barred:
            line += f" Programs are blocked on {', '.join(one.barred)} until then."
        elif one.unkept:
            line += f" Programs should be blocked, but cannot be: {render.sentence(one.unkept)}"
        elif one.hard and not one.over:
            line += " It is hard: once it is used up, programs are blocked on its networks."
        yield from render.wrap(f"{one.name}: {line}", "  ")


def _transfer(transfer: TransferMessage) -> Iterator[str]:
    what = "Download" if transfer.direction is Direction.DOWN else "Upload"
    urgency, bulk = transfer.label.urgency, transfer.label.bulk
    # Programs without hints have the usual label, so it is not shown.
    label = "" if (urgency, bulk) == _USUAL else f" (label: {urgency}, {bulk})"
    yield from render.wrap(f"{what} of {render.estimate(transfer.size)}{label}", "  ")
    if transfer.deadline_s is not None:
        wanted = render.duration(transfer.deadline_s)
        yield from render.wrap(
            f"Wanted within {wanted}. A time that is surely within counts as {wanted}; one that may be"
            " late counts as the end of its interval.",
            "  ",
        )
    if transfer.server_name and transfer.server_name.startswith(PROGRAM):
        yield from render.wrap(f"For all connections of the {transfer.server_name}", "  ")
    elif transfer.server_name:
        yield from render.wrap(f"Server {transfer.server_name}", "  ")
    if transfer.flow:
        yield from render.wrap(f"Flow {transfer.flow}", "  ")


def _row(one: EvaluationMessage, choice: Strategy) -> tuple[str, ...]:
    return (
        ("* " if one.strategy == choice else "  ") + render.strategy(one.strategy),
        render.duration(one.time_s),
        f"{render.duration(one.time_low_s)} to {render.duration(one.time_high_s)}",
        render.energy(one.energy_j),
        render.size(one.metered_bytes),
        render.cost(one.cost),
    )
