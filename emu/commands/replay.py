"""`cedos-emu replay`: run the controller over an event log of a laptop."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedos.commands.console.render import echo
from emu.console import examples

if TYPE_CHECKING:
    from emu.replay import Replay

_SHOWN = 20


@click.command(
    "replay",
    epilog=examples(
        "sudo cedos up --record monday.log",
        "cedos-emu replay monday.log",
        "cedos-emu replay monday.log --explain 198.51.100.7",
    ),
)
@click.argument("log", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--model",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The predictors that the daemon used.  [default: the shipped ones]",
)
@click.option(
    "--explain", "flow", metavar="FLOW", help="Tell all decisions about a flow, by address or name."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write a file.")
def command(log: Path, model: Path | None, flow: str | None, json_file: Path | None) -> None:
    """Run the controller over a recorded event log, and compare what it decides.

    The same events give the same commands, so a log shows afterwards why something was decided, and a
    change of the program shows what it would have done otherwise. Nothing is carried out. Status 1:
    commands differ from the recorded ones.
    """
    from emu.replay import controller_of, open_log, replay  # noqa: PLC0415

    header, events = open_log(log)
    controller = controller_of(header, model)
    found = replay(controller, events)
    began = datetime.fromtimestamp(header["unix_s"])
    if json_file is not None:
        json_file.write_text(json.dumps(_figures(found)) + "\n", encoding="utf-8")
    if flow is not None:
        _explain(found, flow)
        return
    echo(
        f"{found.events:,} events in {found.seconds:,.0f} s from {began:%Y-%m-%d %H:%M}, {found.flows:,}"
        f" flows, {len(found.decisions):,} decisions"
    )
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
    }


def _explain(found: "Replay", flow: str) -> None:
    about = found.about(flow)
    if not about:
        echo(f"nothing was decided about {flow}; the names of hosts are replaced in most logs")
        raise SystemExit(1)
    for at_s, decision in about[-_SHOWN:]:
        echo(f"{at_s:9.3f} s  {decision.choice}: {decision.reason}")
    if len(about) > _SHOWN:
        echo(f"({len(about) - _SHOWN} earlier ones are not shown)")
