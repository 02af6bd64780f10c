"""`cedos-emu bench`: measure the figures that cedos promises."""

import json
from pathlib import Path

import click

from cedos.commands.console.render import echo
from emu import console
from emu.console import block, examples


@click.command(
    "bench",
    epilog="\n\n".join(
        [
            block(
                "Benches",
                "budget     200 simulated months: budgets met, time bought, against Odyssey's controller",
                "crash      kill -9 in the middle: what is restored, which connections survive",
                "daemon     processor share idle and under load, start time, memory",
                "deadlines  100 simulated days: deadlines met, share over Wi-Fi against the optimum",
                "decision   microseconds of one decision",
                "gateway    unmodified curl through the gateway: both networks' sum, cuts, first bytes",
                "profiler   microseconds and share of packets that reach user space",
                "rescue     first packets of programs into a dead network: when under way",
                "session    sessions against raw TCP: throughput, fairness, resumption, messages",
                "sharing    three neighbours' networks: their sum, who leaves and joins, what is paid",
                "sizes      how well sizes are told near a transfer's start, and learned",
                "switch     from the command to the first data packet on the other network",
                "trials     until a Wi-Fi that was slow is used again by connections that cannot move",
                "uncertainty  microseconds of one decision that weighs its predictors' errors",
            ),
            examples(
                "cedos-emu bench decision --json decision.json",
                "cedos-emu bench gateway sum first-bytes",
            ),
        ]
    ),
)
@click.argument("name", metavar="NAME")
@click.argument("parts", metavar="[PART]...", nargs=-1)
@click.option(
    "--json",
    "out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the figures to this file, with the host they were measured on.",
)
def command(name: str, parts: tuple[str, ...], out: Path | None) -> None:
    """Run the bench NAME, or these PARTs of it, on this machine and print its figures.

    Times depend on the machine; run it while nothing else does.
    """
    from emu import bench  # noqa: PLC0415
    from emu.runs import runs  # noqa: PLC0415

    if out is not None:
        console.make_room(out, "--json")
    figures = bench.run(name, lambda line: echo(line, err=True), parts)
    width = max(len(key) for key in figures)
    for key, value in figures.items():
        echo(f"{key:<{width}}  {value:.4g}")
    if out is not None:
        known = {"bench": name, "host": runs.describe(), "figures": figures}
        console.write(out, json.dumps(known, indent=2) + "\n", "--json")
