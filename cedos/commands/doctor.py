"""`cedos doctor`: what this host can and cannot do."""

import asyncio
import sys
from pathlib import Path

import click

from cedos.commands.console import render
from cedos.commands.console.manual import CONFIG, STATE, Manual, json_option
from cedos.config import load
from cedos.config.directories import directories
from cedos.doctor import Finding, FindingState
from cedos.doctor.host import can_run, examine
from cedos.errors import HostError
from cedos.plain_text import plain

# The columns of a finding's state and the space after it.
_BEFORE = 9
# A finding stands beside its topic if at least this many columns are left, else below it.
_LEAST = 30
_COLOURS = {FindingState.OK: "green", FindingState.LIMITED: "yellow", FindingState.MISSING: "red"}


@click.command(
    cls=Manual,
    examples=[
        ("sudo cedos doctor", "All findings about this host."),
        ("cedos doctor --json | jq '.findings[] | select(.state != \"ok\")'", "Only the problems."),
    ],
    exits={
        0: "The daemon can work here, perhaps with limits.",
        2: "",
        4: "The daemon cannot work here now; the last line says why.",
    },
    files=[CONFIG, STATE],
)
@click.option(
    "-c",
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="The configuration that the daemon would use.",
)
@json_option
def command(config_file: Path | None, as_json: bool) -> None:
    """Show what this host can and cannot do.

    Each line is ok, limited or missing. If it is not ok, the next lines have the missing ability
    and how to get it. The doctor changes nothing. Any user can run it; facts that only root can
    see are limited.
    """
    config = load(config_file)
    findings = asyncio.run(examine(config, directories()))
    if as_json:
        render.print_json({"can_run": can_run(findings), "findings": findings})
    else:
        width = max(len(finding.topic) for finding in findings)
        for finding in findings:
            click.echo(_line(finding, width, coloured=sys.stdout.isatty()))
    fatal = [f"{finding.topic}: {finding.found}" for finding in findings if finding.fatal]
    if fatal:
        raise HostError(f"the daemon cannot work here now ({'; '.join(fatal)})")


def _line(finding: Finding, width: int, *, coloured: bool) -> str:
    """Return the lines of a finding; `width`: that of the topics."""
    state = finding.state.ljust(7)
    if coloured:
        state = click.style(state, fg=_COLOURS[finding.state])
    columns = render.columns()
    beside = columns is None or columns - width - _BEFORE - 2 >= _LEAST
    margin = " " * (_BEFORE + (width + 2 if beside else 0))
    told = (("", finding.found), ("lost: ", finding.lost), ("fix:  ", finding.remedy))
    said = [(lead, lead + plain(text)) for lead, text in told if text]
    if columns is None:  # a file or another program: one fact a line
        lines = [margin + text for _, text in said]
    else:
        lines = [line for lead, text in said for line in render.wrap(text, margin, " " * len(lead))]
    if beside:
        lines[0] = f"{state}  {finding.topic.ljust(width)}  {lines[0].lstrip()}"
    else:
        lines.insert(0, f"{state}  {finding.topic}")
    return "\n".join(lines)
