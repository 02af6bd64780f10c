"""`cedos-emu places`: list, check and make collections of places."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import click

from cedos.commands.console import render
from cedos.commands.console.render import echo
from cedos.errors import PlaceError, TraceError
from emu.console import examples, reading_others
from emu.places.check import check as check_collection
from emu.places.places import AccessTrace, Place, default_directory, load
from emu.places.stats import PlaceStats, place_stats
from emu.places.synth import KINDS, MAX_SECONDS, MIN_SECONDS, generate
from emu.terminal import bar

_places_option = click.option(
    "--places",
    "directory",
    type=click.Path(path_type=Path),
    help="The collection; the real traces beside the repository, else its own samples, without.",
)


@click.group("places")
def command() -> None:
    """Show, check and make collections of places: folders with places.csv, wifi/ and cellular/.

    A place is one Wi-Fi and one cellular trace that are replayed together, with the indicators that
    were measured (or, for synthetic places, drawn) beside them.
    """


@command.command("list", epilog=examples("cedos-emu places list --places ../shared/traces-real"))
@_places_option
@reading_others()
def list_command(directory: Path | None) -> None:
    """Show the places of a collection.

    With each its scenario, rates, outages, which network is better, and base RTTs. Rates are over
    bins of one second of the place's length, in which a shorter trace repeats; an outage is a second
    below 0.1 Mbit/s. RTTs are marked g (given in places.csv), m (measured) or d (drawn from the
    place's name, because none was measured).
    """
    collection = load(default_directory(directory))
    with bar("reading") as report:
        rows = []
        broken = list(collection.broken.values())
        for number, name in enumerate(list(collection)):
            report(number / len(collection), name)
            place = collection[name]
            try:
                rows.append((place, place_stats(place)))
            except (PlaceError, TraceError) as error:
                broken.append(str(error))
    for problem in broken:
        echo(f"left out: {problem}", err=True)
    table = render.table(_HEADER, [_row(place, stats) for place, stats in rows])
    render.show([*table, "", f"{len(rows)} places in {collection.directory}"])


@command.command("check", epilog=examples("cedos-emu places check my-walks"))
@click.argument("directory", type=click.Path(path_type=Path))
@reading_others()
def check_command(directory: Path) -> None:
    """Print what is wrong with a collection.

    Reads every file and names the first problem of each, with its line; ends with an error where there
    is any, with a summary where there is none.
    """
    with bar("checking") as report:
        figures, problems = check_collection(directory, report)
    for problem in problems:
        echo(problem)
    if problems:
        raise PlaceError(f"{directory}: {len(problems)} problem{'s' * (len(problems) > 1)}")
    collection = load(directory)
    unsaid = sum(not place.origin_said for place in collection.values())
    better = Counter(stats.better for stats in figures.values())
    rtts = Counter(net.rtt_source for net in _networks(collection.values()))
    seconds = sum(stats.common_s for stats in figures.values())
    groups = len({place.group for place in collection.values()})
    render.show(
        [
            f"{directory} is fine: {len(collection)} places in {groups} groups, "
            f"{seconds / 60:.0f} minutes",
            f"  {sum(place.simultaneous for place in collection.values())} measured simultaneously, "
            f"{sum(place.synthetic for place in collection.values())} synthetic"
            f"{f', {unsaid} not said whether measured' if unsaid else ''}",
            f"  {', '.join(f'{count} {name}' for name, count in sorted(better.items()))}",
            f"  base RTTs: {', '.join(f'{count} {name}' for name, count in sorted(rtts.items()))}",
        ]
    )


@command.command(
    "synth",
    epilog=examples("cedos-emu places synth --kind walk-away --seed 1 --count 20 --out my-walks"),
)
@click.option("--kind", type=click.Choice(list(KINDS)), required=True, help="What happens there.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the first place.")
@click.option("--count", type=click.IntRange(1), default=1, show_default=True, help="Of places.")
@click.option(
    "--seconds",
    type=click.IntRange(MIN_SECONDS, MAX_SECONDS),
    default=120,
    show_default=True,
    help="The length of each place.",
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), required=True, help="The collection."
)
def synth_command(kind: str, seed: int, count: int, seconds: int, out: Path) -> None:
    """Make synthetic places.

    Adds places KIND-sSEED, KIND-sSEED+1, ... to a collection, which is made where missing. They
    follow published figures and the statistics of real traces, and are marked as synthetic.
    The same kind, seed and length give the same bytes.
    """
    with bar("drawing") as report:
        for number in range(count):
            report(number / count, f"{kind}, seed {seed + number}")
            generate(kind, seed + number, seconds, out)
    echo(f"{count} synthetic place{'s' * (count > 1)} ({kind}) in {out}")


def _networks(places: Iterable[Place]) -> Iterable[AccessTrace]:
    return (net for place in places for net in place.networks.values())


_HEADER = (
    "place",
    "scenario",
    "s",
    "Wi-Fi Mbit/s",
    "cell. Mbit/s",
    "Wi-Fi out",
    "cell. out",
    "class",
    "Wi-Fi RTT",
    "cell. RTT",
    "measured",
)


def _row(place: Place, stats: PlaceStats) -> tuple[str, ...]:
    measured = "together" if place.simultaneous else "apart" if place.origin_said else "not said"
    return (
        place.name,
        place.scenario,
        str(stats.common_s),
        *(f"{net.mean_bps / 1e6:.2f}" for net in (stats.wifi, stats.cellular)),
        *(f"{net.outage_share:.1%}" for net in (stats.wifi, stats.cellular)),
        stats.better,
        *(f"{net.rtt_s * 1e3:.1f} ms {net.rtt_source[0]}" for net in place.networks.values()),
        "SYNTHETIC" if place.synthetic else measured,
    )
