"""Everything wrong with a collection of places, each problem with its file and line."""

from collections.abc import Callable
from pathlib import Path

from cedos.errors import PlaceError, TraceError
from emu.places.places import Place, scan
from emu.places.stats import PlaceStats, place_stats


def check(
    directory: Path, progress: Callable[[float, str], None] = lambda share, what: None
) -> tuple[dict[str, PlaceStats], list[str]]:
    """Reads a whole collection.

    The figures of every place that can be replayed, and all problems, each once.

    `progress` is called with the share of the places that are done, and the current one's name.
    """
    usable, problems = scan(directory)
    figures = {}
    total = len(usable)
    # Places are let go one by one: each holds on to its traces once they were read.
    for number, name in enumerate(list(usable)):
        progress(number / total, name)
        place = usable.pop(name)
        broken = _unreadable(place)
        problems += broken
        if not broken:
            problems += _disagreements(place, directory)
            figures[name] = place_stats(place)
    progress(1.0, "done")
    return figures, list(dict.fromkeys(problems))


def _unreadable(place: Place) -> list[str]:
    problems = []
    for net in place.networks.values():
        for part in ("down", "up", "series"):
            try:
                getattr(net, part)
            except (PlaceError, TraceError) as error:
                problems.append(str(error))
    return problems


def _disagreements(place: Place, directory: Path) -> list[str]:
    """What the files say against each other; they can all be read."""
    problems = []
    if place.common_s != place.measured_common_s:
        problems.append(
            f"{directory / 'places.csv'}: common_s of {place.name!r} is {place.common_s}, but its "
            f"traces share {place.measured_common_s} s"
        )
    if place.measured_common_s < 1:
        problems.append(
            f"{directory / 'places.csv'}: {place.name!r} lasts less than a second; a trace of at "
            "least some seconds is needed"
        )
    for net in place.networks.values():
        if net.up.period_ms != net.down.period_ms:
            problems.append(
                f"{net.up_path}: lasts {net.up.period_s:g} s, but {net.down_path.name} lasts "
                f"{net.down.period_s:g} s; both directions must repeat together"
            )
        if net.series_path and abs(net.series.seconds - net.down.period_s) >= 1.0:
            problems.append(
                f"{net.series_path}: has {net.series.seconds} s, but {net.down_path.name} lasts "
                f"{net.down.period_s:g} s; one row per second of the trace is needed"
            )
    return problems
