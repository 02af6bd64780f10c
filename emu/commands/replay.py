"""`cedos-emu replay`: run the controller over an event log of a laptop."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cedos.commands.console import render
from cedos.commands.console.render import echo
from emu import console
from emu.console import examples, reading_others

if TYPE_CHECKING:
    from emu.replay import Compared, OtherPolicy, Replay

_SHOWN = 20


@click.command(
    "replay",
    epilog=examples(
        "sudo cedos up --record monday.log",
        "cedos-emu replay monday.log",
        "cedos-emu replay monday.log --explain 198.51.100.7",
        "cedos-emu replay monday.log --policy wifi-first",
    ),
)
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The predictors that the daemon used.  [default: the shipped ones]",
)
@click.option(
    "--explain",
    "flow",
    metavar="FLOW",
    help="Tell all decisions about a flow, by address or name: those that it followed, too.",
)
@click.option(
    "--policy",
    metavar="NAME",
    help="Compare a fixed policy's choices on the same flows: wifi-first, mptcp-cellular ...",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write a file.")
@reading_others()
def command(
    log: Path, model: Path | None, flow: str | None, policy: str | None, json_file: Path | None
) -> None:
    """Run the controller over a recorded event log, and compare what it decides.

    The same events give the same commands, so a log shows afterwards why something was decided, and a
    change of the program shows what it would have done otherwise. Nothing is carried out. Status 1:
    commands differ from the recorded ones.

    A log tells which network each flow began on. It cannot tell what a flow would have taken on another
    one: with --policy, seconds and joules of both sides are predictions.
    """
    from emu import policies  # noqa: PLC0415
    from emu.replay import (  # noqa: PLC0415
        OtherPolicy,
        began,
        controller_of,
        open_log,
        replay,
    )

    other = OtherPolicy(policies.networks_of(policy)) if policy is not None else None
    header, events = open_log(log)
    controller = controller_of(header, model)
    since = began(header)
    found = replay(controller, events, other)
    if json_file is not None:
        figures = _figures(found)
        if other is not None:
            figures["policy"] = {
                "name": policy,
                "total": other.total,
                "destinations": other.destinations,
            }
        console.write(json_file, msgspec.json.encode(figures) + b"\n", "--json")
    if flow is not None:
        _explain(found, flow)
        return
    echo(
        f"{found.events:,} events in {found.seconds:,.0f} s from {since:%Y-%m-%d %H:%M}, {found.flows:,}"
        f" flows, {len(found.decisions):,} decisions"
    )
    echo(
        f"An event took {found.event_us(0.5):.0f} us of the processor in the median,"
        f" {found.event_us(0.99):.0f} us at 99 %"
    )
    if other is not None and policy is not None:
        render.show(_comparison(other, policy))
    else:
        for name, count in found.commands.most_common():
            echo(f"  {count:>9,}  {name}")
    if found.different:
        echo(
            f"{len(found.different):,} events gave other commands than recorded; the first is event"
            f" {found.different[0]:,}"
        )
        raise SystemExit(1)
    echo("The commands are those that were recorded.")


def _figures(found: "Replay") -> dict[str, Any]:
    return {
        "events": found.events,
        "seconds": found.seconds,
        "flows": found.flows,
        "decisions": len(found.decisions),
        "different": len(found.different),
        "commands": dict(found.commands),
        "kinds": dict(found.kinds),
        "event_us_p50": found.event_us(0.5),
        "event_us_p99": found.event_us(0.99),
    }


def _explain(found: "Replay", flow: str) -> None:
    about = found.about(flow)
    if not about:
        echo(
            f"no decision about {flow} is in the log. Most logs have other names for hosts; an address"
            " finds them. What was decided before the log began is not in it either"
        )
        raise SystemExit(1)
    for at_s, decision in about[-_SHOWN:]:
        echo(f"{at_s:9.3f} s  {decision.choice}: {decision.reason}")
    if len(about) > _SHOWN:
        echo(f"({len(about) - _SHOWN} earlier ones are not shown)")


def _comparison(other: "OtherPolicy", policy: str) -> Iterator[str]:
    """Yield the lines of a comparison: by network, then by destination, most bytes first."""
    total = other.total
    if not total.flows:
        yield "No flow ended that could have gone over another network."
        return
    yield (
        f"{policy} would have begun {total.elsewhere:,} of {total.flows:,} flows on another network,"
        f" {total.dead:,} on one that was dead then."
    )
    sides = (total.recorded, total.policy)
    yield from render.table(
        ("NETWORK", "FLOWS", policy, "BYTES", policy),
        [
            (
                network,
                *(f"{side.flows[network]:,}" for side in sides),
                *(render.size(side.bytes[network]) for side in sides),
            )
            for network in {name: None for side in sides for name in {**side.bytes, **side.flows}}
        ],
    )
    most = sorted(other.destinations.items(), key=lambda each: -each[1].recorded.bytes.total())
    rows = [("all", total), *most[:_SHOWN]]
    yield from render.table(
        ("TO", "FLOWS", "ELSEWHERE", "METERED", policy, "SECONDS", policy, "JOULES", policy),
        [_row(name, each) for name, each in rows],
    )
    if len(most) > _SHOWN:
        yield f"({len(most) - _SHOWN} more destinations are in the file of --json)"
    yield from render.wrap(
        f"Seconds and joules are sums over the {total.predicted:,} flows for which both are predicted,"
        " from what was known when each began and the size that it turned out to have. What flows would"
        f" have taken under {policy} was not measured."
    )


def _row(name: str, each: "Compared") -> tuple[str, ...]:
    recorded, policy = each.recorded, each.policy
    figures = [f"{each.flows:,}", f"{each.elsewhere:,}"]
    figures += [render.size(side.metered_bytes) for side in (recorded, policy)]
    if not each.predicted:
        return (name, *figures, *4 * ("",))
    figures += [f"{side.seconds:.1f}" for side in (recorded, policy)]
    figures += [f"{side.joules:.1f}" for side in (recorded, policy)]
    return (name, *figures)
