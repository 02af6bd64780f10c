"""What several runs must have in common to be put together."""

from collections.abc import Collection, Sequence
from pathlib import Path

from cedos.errors import DataSetError
from emu.lab.runs.runs import Recorded


def with_transfers(recorded: Sequence[Recorded]) -> Sequence[Recorded]:
    """Return the runs, if there are transfers in all of them: those of pages and videos have none.

    Raises:
        DataSetError: names the one that has none.
    """
    for run in recorded:
        if not run.flows:
            raise DataSetError(f"{run.directory} has no transfers: it is a run of pages or videos")
    return recorded


def one_a_place(recorded: Sequence[Recorded]) -> Sequence[Recorded]:
    """Return the runs, if each is of another place. DataSetError: names two of the same."""
    known: dict[str, Path] = {}
    for run in recorded:
        place = run.scenario.place
        if place in known:
            raise DataSetError(f"{known[place]} and {run.directory} are both of {place}")
        known[place] = run.directory
    return recorded


def policies_of_all(recorded: Sequence[Recorded], some: Collection[str] = ()) -> list[str]:
    """Return the policies that all runs have, in the first one's order.

    DataSetError: there are none, or none of `some`, where any are named.
    """
    found = [name for name in recorded[0].policies if all(name in r.policies for r in recorded)]
    if not found or (some and not set(some) & set(found)):
        which = f" of {', '.join(some)}" if some else ""
        raise DataSetError(
            f"no policy{which} is in all runs: "
            + "; ".join(f"{run.directory} has {', '.join(run.policies)}" for run in recorded)
        )
    return found
