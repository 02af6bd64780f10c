"""Data sets made of others: transfers known as late as a laptop knows them, and what a daemon saw.

`aged`: a data set's contexts have fresh rates of both networks; a laptop has that of the one in use. Each
row comes back with the rates that its place's traces carried some seconds earlier, and with what another
small download of the same instant took, which is a little better than what a laptop knows.

`observed`: of each transfer of a daemon's history only the time by the strategy that carried it is known.
What shared its network, queued before it or fell silent meanwhile made it longer, as the daemon expected
(`selector.decision.times`); of that the row is freed, since predictors are asked for networks on which
nothing else is under way.
"""

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cedos.errors import DataSetError
from cedos.model import Direction
from emu.data.collect import history
from emu.places.places import Place
from predictors.inputs import CONTEXT_COLUMNS, LARGEST_AGE_S, NETWORKS

# The number of aged rows made of each row.
COPIES = 2

# The largest download by which others are judged: it ends soon and costs little.
SMALL_BYTES = 30_000

# The shares of rows in which the rates of these networks are old. Mostly one network is used.
_OLD = ((NETWORKS[:1], 0.35), (NETWORKS[1:], 0.25), (NETWORKS, 0.25), ((), 0.15))

_LEAST_AGE_S = 1.5
_RECENT_SHARE = 0.8

_Small = dict[tuple[tuple[str, float], str], list[Mapping[str, Any]]]


def aged(
    rows: Sequence[Mapping[str, Any]], places: Mapping[str, Place], *, seed: int = 1
) -> list[dict[str, Any]]:
    """Return `COPIES` aged rows of each row that begins long enough after its place does.

    DataSetError: a row's place is not among the places, or has no start.
    """
    small = _small_downloads(rows)
    found = []
    for number, row in enumerate(rows):
        place = places.get(str(row["place"]))
        if place is None:
            raise DataSetError(f"row {number + 1}: place {row['place']} is not among those given")
        if "start_s" not in row:
            raise DataSetError(f"row {number + 1}: it has no start_s")
        for copy in range(COPIES):
            draw = random.Random(
                f"{seed}/{row['place']}/{row['start_s']}/{row['size_bytes']}/{row['direction']}/{copy}"
            )
            changed = _rates(row, place, draw) | _recent(row, small, draw)
            if changed:
                found.append({**_unprobed(row), **changed})
    return found


def _unprobed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without active probes, which a laptop can seldom afford."""
    return {
        name: value for name, value in row.items() if "_udp_" not in name and "_dns_" not in name
    }


def _rates(row: Mapping[str, Any], place: Place, draw: random.Random) -> dict[str, float]:
    """Return the past rates of some networks as they were some seconds before, with their age."""
    start_s, direction = float(row["start_s"]), Direction(str(row["direction"]))
    old = draw.choices([names for names, _ in _OLD], [share for _, share in _OLD])[0]
    changed: dict[str, float] = {}
    for network in old:
        longest_s = min(LARGEST_AGE_S, start_s - 1.0)
        if longest_s <= _LEAST_AGE_S:
            continue
        age_s = round(math.exp(draw.uniform(math.log(_LEAST_AGE_S), math.log(longest_s))), 3)
        then = history(place, start_s - age_s, direction)
        rates = {
            name: rate
            for name, rate in then.items()
            if name.startswith(f"{network}_past") and name in row
        }
        if rates:
            changed |= rates | {f"{network}_rate_age_s": age_s}
    return changed


def _recent(row: Mapping[str, Any], small: _Small, draw: random.Random) -> dict[str, float]:
    """Another small download of the same instant, as if it had just ended, for some networks."""
    changed: dict[str, float] = {}
    for network in NETWORKS:
        known = draw.random() < _RECENT_SHARE
        candidates = [each for each in small[_instant(row), network] if each is not row]
        if known and candidates:
            one = draw.choice(candidates)
            changed |= {
                f"{network}_recent_bytes": float(one["size_bytes"]),
                f"{network}_recent_s": float(one[f"t_{network}_s"]),
                f"{network}_recent_age_s": 0.0,
            }
    return changed


def _small_downloads(rows: Sequence[Mapping[str, Any]]) -> _Small:
    """Return the small downloads that ended, by instant and network."""
    found: _Small = defaultdict(list)
    for row in rows:
        if row["size_bytes"] > SMALL_BYTES or row["direction"] != "down":
            continue
        for network in NETWORKS:
            if row.get(f"t_{network}_s") is not None and not row.get(f"censored_{network}"):
                found[_instant(row), network].append(row)
    return found


def _instant(row: Mapping[str, Any]) -> tuple[str, float]:
    return str(row["place"]), float(row["start_s"])


# A transfer that others lengthened by more than this factor tells of them, not of its network.
MOST_LENGTHENED = 3.0

_DIGITS = 5


def observed(
    predictions: Iterable[Mapping[str, Any]], place: str, group: str
) -> Iterator[dict[str, Any]]:
    """Return a row for each prediction (of `emu.runs.decisions.rows_of`) that tells something."""
    for each in predictions:
        columns, longer = dict(each["columns"] or {}), each["lengthened"]
        if not columns or not longer or longer > MOST_LENGTHENED:
            continue
        yield {
            "place": place,
            "group": group,
            "start_s": round(each["ended_s"] - each["took_s"], 3),
            "size_bytes": each["size_bytes"],
            "direction": each["direction"],
            f"t_{each['strategy']}_s": _rounded(each["took_s"] / longer),
            f"censored_{each['strategy']}": False,
            **{name: _rounded(columns[name]) for name in CONTEXT_COLUMNS if name in columns},
        }


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
