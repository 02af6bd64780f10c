"""Faults of a collection of places: the first problem of each file, with its line; and what is odd."""

import difflib
from collections.abc import Callable
from pathlib import Path

from cedos.errors import PlaceError, TraceError
from cedos.host.monitor.providers import series_file
from emu.places.places import Place, scan
from emu.places.stats import PlaceStats, place_stats


def check(
    directory: Path, progress: Callable[[float, str], None] = lambda share, what: None
) -> tuple[dict[str, PlaceStats], list[str], list[str]]:
    """Read a whole collection.

    Return the figures of every place that can be replayed, all problems, and warnings of what can be
    replayed but may not be meant; each once.

    `progress` is called with the share of the places that are done, and the current one's name.
    """
    usable, problems = scan(directory)
    figures, warnings = {}, list[str]()
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
            warnings += _oddities(place, directory)
            try:
                figures[name] = place_stats(place)
            except TraceError as error:
                problems.append(str(error))
    progress(1.0, "done")
    return figures, list(dict.fromkeys(problems)), list(dict.fromkeys(warnings))


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


def _oddities(place: Place, directory: Path) -> list[str]:
    """Return what can be replayed, for traces repeat, but may not be meant."""
    found = []
    if place.common_s > place.longest_s:
        found.append(
            f"{directory / 'places.csv'}: common_s of {place.name!r} is {place.common_s}; its traces "
            f"repeat after {place.longest_s} s"
        )
    for net in place.networks.values():
        for path, trace in {net.down_path: net.down, net.up_path: net.up}.items():
            if trace.remark:
                found.append(trace.remark)
            # (A single one marks the period of a network that is dead throughout.)
            if len(trace) > 1 and trace.times_ms[0] == trace.period_ms > 1000:
                found.append(
                    f"{path}:{len(trace)}: all opportunities are at {trace.period_ms} ms; a trace "
                    "spreads them over its seconds"
                )
        if abs(net.up.period_s - net.down.period_s) >= 1.0:
            found.append(
                f"{net.up_path}: repeats after {net.up.period_s:g} s, and {net.down_path.name} after "
                f"{net.down.period_s:g} s"
            )
    return found
