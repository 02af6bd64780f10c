"""`cedos-emu run`: run an experiment, from a scenario to a run folder with its page."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedos.commands.console.render import echo, show
from emu import console
from emu.console import examples

if TYPE_CHECKING:
    from emu.places.places import Places
    from emu.runs.scenario import Scenario

_DEMO = Path(__file__).parents[1] / "experiments" / "demo.toml"
# The demo's place in the real and in the synthetic collection, and where its quick part begins, s.
#
# `p02` is typical of the six places of the README's table: the gateway takes 0.77 of kernel
# MPTCP's time there (0.78 at all six) and the daemon alone 1.11 of the best fixed policy's (1.07).
# In the quick part Wi-Fi stalls and dies. Without the real traces `walk-away-s7` stands in.
_DEMO_STARTS_S = {"p02": 111.0, "walk-away-s7": 34.0}
_QUICK_S = 10.0


@click.command(
    "run",
    epilog=examples(
        "cedos-emu run --quick",
        "cedos-emu run --places ../shared/traces-real --place p02",
        "cedos-emu run --engine simulator --policy wifi-first --policy mptcp-wifi",
        "cedos-emu run mine.toml --policy wifi-first --policy cedos --repeats 5 --out runs/mine",
    ),
)
@click.argument(
    "scenario_file", metavar="[SCENARIO.toml]", required=False, type=click.Path(path_type=Path)
)
@click.option(
    "--places",
    "directory",
    type=click.Path(path_type=Path),
    help="Collection of places.  [default: the real traces beside this repository, else traces/]",
)
@click.option("--place", help="The place to replay.  [default: the scenario's, else the first one]")
@click.option("--policy", "policy_names", multiple=True, help="Only this policy; may be repeated.")
@click.option(
    "--engine",
    type=click.Choice(["mahimahi", "simulator"]),
    help="Real programs over Mahimahi in real time, or computed.  [default: the scenario's]",
)
@click.option("--duration", "duration_s", type=click.FloatRange(1.0), help="Seconds of the load.")
@click.option("--start", "start_s", type=click.FloatRange(0.0), help="Seconds into the place.")
@click.option("--seed", type=int, help="Seed of the load.")
@click.option("--repeats", type=click.IntRange(1), help="Repetitions, with the next seeds.")
@click.option("--quick", is_flag=True, help="Only some seconds around the place's decisive moment.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Run folder to write.  [default: a new one in runs/]",
)
@click.option(
    "--predictors",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Model of the policies that predict, as `cedos-emu train --without` writes it.  [default: the "
    "shipped one, which knows the real places]",
)
@click.option(
    "--json",
    "json_file",
    type=click.Path(path_type=Path),
    help="Write the figures there, too; those of an analysis are then not printed.",
)
def command(
    scenario_file: Path | None,
    directory: Path | None,
    place: str | None,
    policy_names: tuple[str, ...],
    engine: str | None,
    duration_s: float | None,
    start_s: float | None,
    seed: int | None,
    repeats: int | None,
    quick: bool,
    out: Path | None,
    predictors: Path | None,
    json_file: Path | None,
) -> None:
    """Run an experiment: every policy on the same place from the same instant.

    A scenario with `places` runs at each of them. Each has a run folder, and a table compares them.

    A file that names an `analysis` computes the numbers of a paper's table or figure from a data set or,
    without a clock, from places, and prints them as JSON; the notebooks draw them. It has no run folder,
    and only the options --places and --json.

    Without a scenario it runs the demo: a laptop with two tethered phones whose Wi-Fi stalls and dies,
    while an unmodified client makes small requests, downloads and uploads over plain TCP and MPTCP.

    With `--engine simulator` nothing is started: the simulator computes what transfers take over plain
    TCP and MPTCP, some 100 times as fast on each core. It runs policies that never change their mind, and
    cedos by the daemon's own controller.

    The run folder holds the resolved configuration, the environment, all raw records, the figures
    and a page with pictures (`report.html`); `cedos-emu report` draws the page again. A finished run is
    not replaced; one that was interrupted is begun anew, and a scenario with `places`
    goes on with those that are missing.

    Exit codes: 0 the run is complete; 1 the testbed failed, or a finished run is in the way; 2 the
    scenario cannot be used.
    """
    import msgspec  # noqa: PLC0415

    from emu.runs import analysis  # noqa: PLC0415

    if json_file is not None:
        console.make_room(json_file, "--json")

    # An analysis needs no testbed: answer before the slow imports.
    if scenario_file is not None and analysis.is_analysis(scenario_file):
        if out is not None:
            raise click.UsageError("an analysis has no run folder; --json FILE takes its figures")
        _analyse(scenario_file, directory, json_file)
        return

    from emu import policies  # noqa: PLC0415
    from emu.places import places  # noqa: PLC0415
    from emu.runs import experiment, page, runs, scenario, table  # noqa: PLC0415
    from emu.runs.scenario import decisive_s  # noqa: PLC0415
    from emu.terminal import bar  # noqa: PLC0415

    wanted = scenario.read(scenario_file or _DEMO)
    known = places.load(places.default_directory(directory))
    # A place that cannot be used does not stop the others.
    for problem in known.broken.values():
        echo(f"left out: {problem}", err=True)
    # The demo has a place of its own, and a decisive part of it for --quick.
    if scenario_file is None and place is None:
        place = next((name for name in _DEMO_STARTS_S if name in known), None)
        if quick and start_s is None and duration_s is None and place is not None:
            start_s = _DEMO_STARTS_S[place]
    settings = wanted.policy
    if predictors is not None:
        settings = policies.with_predictors(settings, predictors.resolve())
    given = {
        "policy": settings,
        "place": place,
        "engine": engine,
        "policies": policy_names or None,
        "duration_s": duration_s if duration_s is not None else _QUICK_S if quick else None,
        "start_s": start_s,
        "seed": seed,
        "repeats": repeats,
    }
    wanted = scenario.checked(
        msgspec.structs.replace(
            wanted, **{key: value for key, value in given.items() if value is not None}
        )
    )
    if wanted.places and place is None:
        _series(wanted, known, out, json_file)
        return
    wanted = msgspec.structs.replace(wanted, places=())
    if quick and start_s is None:
        chosen = known[wanted.place] if wanted.place else next(iter(known.values()))
        wanted = msgspec.structs.replace(wanted, start_s=decisive_s(chosen, wanted.duration_s))
    resolved = experiment.resolve(wanted, known)
    target = out or runs.fresh(f"{resolved.name}-{resolved.place}")
    runs.refuse_finished(target, paged=True)
    chosen = known[resolved.place]
    repeats_too = resolved.start_s + resolved.duration_s > chosen.common_s
    echo(
        f"place {resolved.place} of {known.directory}"
        f" ({chosen.origin}),"
        f" {resolved.duration_s:g} s from second {resolved.start_s:g}"
        f"{f' (its traces repeat after {chosen.common_s} s)' if repeats_too else ''},"
        f" {len(resolved.policies)} polic{'y' if len(resolved.policies) == 1 else 'ies'};"
        f" about {_span(experiment.expected_s(resolved))}",
        err=True,
    )
    with bar(resolved.name) as progress:
        experiment.run(resolved, known, target, progress)
    table.print_table(target)
    if json_file is not None:
        console.write(json_file, (target / "summary.json").read_text(), "--json")
    drawn = page.write([target])
    echo(f"run folder: {target}")
    echo(f"page:       {drawn}")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 180 else f"{seconds / 60:.0f} min"


def _series(wanted: "Scenario", known: "Places", out: Path | None, json_file: Path | None) -> None:
    from emu.runs import page, runs, series, table  # noqa: PLC0415
    from emu.terminal import bar  # noqa: PLC0415

    target = out or runs.fresh(wanted.name)
    with bar(wanted.name) as progress:
        folders = series.run(wanted, known, target, progress, lambda line: echo(line, err=True))
    for folder in folders:
        table.print_table(folder)
    drawn = page.write(folders, target / "report.html")
    echo(f"run folders: {target}")
    echo(f"page:        {drawn}")
    found = series.figures([runs.read(folder) for folder in folders])
    for line in series.lines(found):
        echo(line)
    if json_file is not None:
        _write(json_file, found)


def _analyse(file: Path, directory: Path | None, json_file: Path | None) -> None:
    import json  # noqa: PLC0415

    from emu.runs import analysis  # noqa: PLC0415
    from emu.terminal import bar  # noqa: PLC0415

    wanted = analysis.read(file)
    with bar(wanted.analysis) as progress:
        figures = analysis.carry_out(wanted, progress, directory)
    if json_file is not None:
        _write(json_file, figures)
    else:
        show(json.dumps(figures, indent=1).splitlines())


def _write(file: Path, figures: dict[str, Any]) -> None:
    import json  # noqa: PLC0415

    from emu.runs import runs  # noqa: PLC0415

    known = {**figures, "environment": runs.describe()}
    console.write(file, json.dumps(known, indent=1) + "\n", "--json")
