"""`cedos-emu figures`: put the figures of several run folders together."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cedos.commands.console.render import echo
from emu import console
from emu.console import examples, reading_others

if TYPE_CHECKING:
    from emu.runs.runs import Recorded

# The modules of `emu.runs` that combine several run folders.
_SETS = ("calibration", "fidelity", "lost", "mobility", "series", "walk", "wget")


@click.command(
    "figures",
    epilog=examples(
        "cedos-emu figures mobility runs/mobility/* --json mobility.json",
        "cedos-emu figures fidelity runs/fixed/* --places ../shared/traces-real",
    ),
)
@click.argument("name", metavar="SET", type=click.Choice(_SETS))
@click.argument(
    "folders",
    metavar="RUN...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@click.option(
    "--places",
    "directory",
    type=click.Path(path_type=Path),
    help="Collection that was replayed; for sets that look at its traces.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="File to write."
)
@reading_others()
def command(
    name: str, folders: tuple[Path, ...], directory: Path | None, json_file: Path | None
) -> None:
    """Put the finished runs RUN... together.

    As a SET of figures does: mobility (the mixed load), calibration (of the same runs), lost (the
    daemon's lost seconds by cause), fidelity (the simulator beside live runs), series (pages and
    videos, Delphi's Figure 10), walk and wget (Figures 12 and 11).
    """
    import importlib  # noqa: PLC0415
    import inspect  # noqa: PLC0415
    import json  # noqa: PLC0415

    from emu.places import places  # noqa: PLC0415
    from emu.runs import runs  # noqa: PLC0415

    if json_file is not None:
        console.make_room(json_file, "--json")
    module = importlib.import_module(f"emu.runs.{name}")
    recorded = [runs.read(folder) for folder in folders]
    asked = inspect.signature(module.figures).parameters
    replayed = (places.load(places.default_directory(directory)),) if "places" in asked else ()
    found = module.figures(recorded, *replayed)
    for line in module.lines(found):
        echo(line)
    if json_file is not None:
        text = json.dumps({**found, "runs": [_described(run) for run in recorded]}, indent=1)
        console.write(json_file, text + "\n", "--json")


def _described(run: "Recorded") -> dict[str, Any]:
    known = {key: run.environment.get(key) for key in ("kernel", "cores", "git")}
    return {
        "place": run.scenario.place,
        "start_s": run.scenario.start_s,
        "duration_s": run.duration_s,
        "repeats": run.scenario.repeats,
        **known,
    }
