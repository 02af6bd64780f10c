"""Delphi's Figure 11 from run folders: throughput by place and by size, relative to Wi-Fi first.

    cedos-emu figures wget RUN... --json FILE

The runs of one place are put together (`emu/experiments/delphi_wget.toml`). A policy's throughput is the
mean of size over completion time of its transfers, as in the paper. The fastest transfers rule that
mean, so the ratio of the sums of times stands beside it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from emu.runs import runs
from emu.runs.runs import Recorded
from emu.statistics import Floats, Rows, ci95, resampled

_BASE = "wifi-first"
_RESAMPLES = 2000
PAPER = "1.25 to 4 times Wi-Fi's throughput (section 9.2)"


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return `by_place`, `by_size` and `all` of each policy beside Wi-Fi first.

    Each holds `mean_mbps`, `normalised` (of Wi-Fi's mean), `time_ratio` (the sum of Wi-Fi's times over
    its own), each with `KEY_ci95`, `n`, `censored` and the share of transfers by network. Intervals:
    bootstrap over transfers, the same ones for both policies; over places of equal weight where several
    are put together. DataSetError: a run without transfers, or one without Wi-Fi first.
    """
    recorded = runs.by_place(runs.with_transfers(recorded))
    policies = runs.policies_of_all(recorded, [_BASE])
    times: dict[tuple[str, int], dict[str, Floats]] = {}
    facts: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for run in recorded:
        place = run.scenario.place
        for size in sorted({row["size_bytes"] for row in run.flows}):
            mine = [row for row in run.flows if row["size_bytes"] == size]
            # Pair the policies' transfers: the same number is the same transfer.
            of = {
                policy: sorted(
                    (row for row in mine if row["policy"] == policy),
                    key=lambda row: (row["repeat"], row["number"]),
                )
                for policy in policies
            }
            times[place, size] = {
                p: np.array([r["time_s"] for r in rows]) for p, rows in of.items()
            }
            facts[place, size] = {p: _facts(rows) for p, rows in of.items()}
    places = sorted({place for place, _ in times})
    sizes = sorted({size for _, size in times})
    return {
        "experiment": "delphi_wget",
        "paper": PAPER,
        "base": _BASE,
        "places": places,
        "by_place": {
            place: _group([(place, size) for size in sizes], times, facts) for place in places
        },
        "by_size": {
            str(size): _group([(place, size) for place in places], times, facts) for size in sizes
        },
        "all": _group(list(times), times, facts),
    }


def _facts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    networks = [row["network"] for row in rows]
    return {
        "n": len(rows),
        "censored": sum(row["censored"] for row in rows),
        "networks": {name: networks.count(name) for name in sorted(set(networks))},
    }


def _group(
    keys: Sequence[tuple[str, int]],
    times: dict[tuple[str, int], dict[str, Floats]],
    facts: dict[tuple[str, int], dict[str, dict[str, Any]]],
) -> dict[str, Any]:
    """Put cells (a size at a place) together: the mean of their ratios, each cell with equal weight."""
    cells = [key for key in keys if key in times and len(times[key][_BASE])]
    found: dict[str, Any] = {}
    for policy in times[cells[0]] if cells else ():
        draw = np.random.default_rng(1)
        drawn = [resampled(len(times[key][_BASE]), draw, _RESAMPLES) for key in cells]
        every = [np.arange(len(times[key][_BASE]))[None, :] for key in cells]
        entry: dict[str, Any] = {
            "n": sum(facts[key][policy]["n"] for key in cells),
            "censored": sum(facts[key][policy]["censored"] for key in cells),
            "networks": _sum([facts[key][policy]["networks"] for key in cells]),
        }
        for name, measure in (
            ("mean_mbps", _mean_mbps),
            ("normalised", _normalised),
            ("time_ratio", _time_ratio),
        ):
            value = measure(cells, times, policy, every)[0]
            entry[name] = round(float(value), 4)
            ends = ci95(measure(cells, times, policy, drawn))
            entry[f"{name}_ci95"] = [round(end, 4) for end in ends]
        found[policy] = entry
    return found


def _sum(counts: Sequence[dict[str, int]]) -> dict[str, int]:
    names = sorted({name for each in counts for name in each})
    return {name: sum(each.get(name, 0) for each in counts) for name in names}


Cells = Sequence[tuple[str, int]]
Times = dict[tuple[str, int], dict[str, Floats]]


def _rates(key: tuple[str, int], times: Times, policy: str, rows: Rows) -> Floats:
    mean: Floats = (8e-6 * key[1] / times[key][policy][rows]).mean(axis=1)
    return mean


def _mean_mbps(cells: Cells, times: Times, policy: str, rows: Sequence[Rows]) -> Floats:
    rates = [_rates(key, times, policy, each) for key, each in zip(cells, rows, strict=True)]
    mean: Floats = np.mean(rates, axis=0)
    return mean


def _normalised(cells: Cells, times: Times, policy: str, rows: Sequence[Rows]) -> Floats:
    ratios = [
        _rates(key, times, policy, each) / _rates(key, times, _BASE, each)
        for key, each in zip(cells, rows, strict=True)
    ]
    mean: Floats = np.mean(ratios, axis=0)
    return mean


def _time_ratio(cells: Cells, times: Times, policy: str, rows: Sequence[Rows]) -> Floats:
    base = np.sum(
        [times[k][_BASE][r].sum(axis=1) for k, r in zip(cells, rows, strict=True)], axis=0
    )
    own = np.sum(
        [times[k][policy][r].sum(axis=1) for k, r in zip(cells, rows, strict=True)], axis=0
    )
    ratio: Floats = base / own
    return ratio


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for title in ("by_place", "by_size"):
        for name, group in found[title].items():
            shown = ", ".join(
                f"{policy} {entry['normalised']:.2f} {entry['normalised_ci95']}"
                for policy, entry in group.items()
            )
            yield f"{name}: {shown}"
