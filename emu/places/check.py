"""Faults of a collection of places: the first problem of each file, with its line."""

import difflib
from collections.abc import Callable
from pathlib import Path

from cedos.errors import PlaceError, TraceError
from cedos.host.monitor.providers import series_file
from emu.places.places import Place, scan
from emu.places.stats import PlaceStats, place_stats


def check(
    directory: Path, progress: Callable[[float, str], None] = lambda share, what: None
) -> tuple[dict[str, PlaceStats], list[str]]:
    """Read a whole collection.

    Return the figures of every place that can be replayed, and all problems, each once.

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
        problems += _misspelt(place)
        if not broken:
            problems += _disagreements(place)
            try:
                figures[name] = place_stats(place)
            except TraceError as error:
                problems.append(str(error))
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


def _misspelt(place: Place) -> list[str]:
    """Unread columns whose names are almost those of known ones; any others are the user's own."""
    problems = []
    for net in place.networks.values():
        try:
            columns = (*net.series.columns, *net.series.texts)
        except PlaceError:
            continue
        missing = [name for name in series_file.NUMERIC if name not in columns]
        problems += [
            f"{net.series_path}:1: nothing reads column {name!r}; did you mean {near[0]!r}?"
            for name in sorted(set(columns) - set(series_file.NUMERIC))
            if (near := difflib.get_close_matches(name.lower(), missing, n=1, cutoff=0.8))
        ]
    return problems


def _disagreements(place: Place) -> list[str]:
    """Return contradictions between the files, which can all be read."""
    return [
        f"{net.series_path}: has {net.series.seconds} s, but {net.down_path.name} lasts "
        f"{net.down.period_s:g} s; one row per second of the trace is needed"
        for net in place.networks.values()
        if net.series_path and abs(net.series.seconds - net.down.period_s) >= 1.0
    ]
