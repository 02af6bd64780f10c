"""`cedos-emu`: one file in `emu/commands` is one command, imported only when it is used."""

from typing import Final

import click

from cedos.commands.cedos import LazyGroup
from cedos.commands.console.render import echo
from cedos.errors import HostError
from emu import console

COMMANDS: Final = {
    "age": "Make a data set as a laptop would know it, with rates that are seconds old.",
    "bench": "Measure the figures that cedos promises.",
    "claims": "Each figure of the papers and of ours, checked and measured again.",
    "collect": "Measure a transfer data set.",
    "evaluate": "Judge a model: choices against the oracle, prediction error, coverage.",
    "figures": "Put the figures of several run folders together.",
    "observed": "Make a data set of transfers that a daemon saw.",
    "places": "List, check and make collections of places.",
    "replay": "Run the controller over an event log of a laptop.",
    "report": "Draw pictures and a page from run folders.",
    "run": "Run an experiment, from a scenario to a run folder with its page.",
    "shell": "Run a command inside the emulated laptop, as `mm-link` for two phones.",
    "train": "Fit completion-time predictors to a transfer data set.",
}


@click.group(
    "cedos-emu",
    cls=LazyGroup,
    purposes=COMMANDS,
    package="emu.commands",
    rooms={},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="cedos", prog_name="cedos-emu")
def group() -> None:
    """Run experiments in the testbed: two emulated phones that replay real traces.

    It needs root for everything that emulates, and leaves the host's own networking as it is.
    """


def main() -> None:
    """Run `cedos-emu`; where a package of an extra is missing, say so in a line."""
    try:
        group(prog_name="cedos-emu")
    except ModuleNotFoundError as error:
        if (what := console.missing(error)) is None:
            raise
        echo(f"cedos-emu: {what}", err=True)
        raise SystemExit(HostError.exit_code) from None
