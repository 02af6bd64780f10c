"""Outages that transfers met live, and how many of them lost over a second by it: from run folders.

    cedos-emu figures outages RUN... --places DIR --json FILE

`emu.experiments.delphi.outages` asks what choices are worth where an outage comes; this asks
what became of whole transfers, moved and rescued ones too. A transfer meets an outage where one of its
networks is out as it begins, or goes out within a second, by the traces that were replayed. It has
lost what it took longer than under the best of the policies that all runs have.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.errors import DataSetError
from emu.figures.mobility import FIXED
from emu.places.places import Place
from emu.places.stats import DEAD_BPS, next_outage_s
from emu.runs import runs
from emu.runs.runs import Recorded
from emu.statistics import Bootstrap, ratio, share

LOST_S = 1.0

AT_START = "cedos-start"
"""Chooses as `cedos` does, but never moves or rescues a connection."""

Floats = NDArray[np.float64]
Rows = NDArray[np.bool_]


def figures(recorded: Sequence[Recorded], places: Mapping[str, Place]) -> dict[str, Any]:
    """Return how many of the transfers that meet an outage lose over a second.

    Kinds: `dies` (a network that carried something in the second before goes out within one), `dead`
    (it carried nothing then), both together `next_second`, and `all` transfers; each also of MPTCP
    connections (`..._mptcp`) and of plain TCP alone (`..._tcp`). Places are resampled as a whole: at one
    place most transfers meet the same outage.

    Returns:
        `rows`: how many transfers there are of each kind. `policies`: policy -> kind -> `lost`,
        `lost_share` and `lost_s`, the mean time lost, s (at least: some are broken off). `against`:
        policy -> kind -> `at_start` and `fixed`, how many times as many lose as under `AT_START`, and as
        under the fixed policy that loses fewest, which is chosen in each resample again (`best_fixed`: in
        all rows); infinite where those lose none, and left out if no policy does.

    Raises:
        DataSetError: a run without transfers, runs without a policy in common, or another collection
            than the one that was replayed.
    """
    names = runs.policies_of_all(runs.with_transfers(recorded))
    met: dict[str, list[bool]] = {kind: [] for kind in ("dies", "dead", "mptcp")}
    groups: list[str] = []
    times_s: dict[str, list[float]] = {name: [] for name in names}
    for run in recorded:
        place = places[run.scenario.place]
        _check_replayed(run, place)
        ordered = {
            name: sorted(
                (row for row in run.flows if row["policy"] == name),
                key=lambda row: (row["repeat"], row["number"]),
            )
            for name in names
        }
        for row in ordered[names[0]]:
            kind = _met(place, row["direction"], run.scenario.start_s + row["planned_s"])
            met["dies"].append(kind == "dies")
            met["dead"].append(kind == "dead")
            met["mptcp"].append(row["mptcp"])
            groups.append(place.name)
        for name in names:
            times_s[name] += [row["time_s"] for row in ordered[name]]
    best_s = np.min([times_s[name] for name in names], axis=0)
    late_s = {name: np.array(times_s[name]) - best_s for name in names}
    kinds = _kinds({kind: np.array(mask) for kind, mask in met.items()})
    bootstrap = Bootstrap(np.array(groups))
    lost = {name: late > LOST_S for name, late in late_s.items()}
    return {
        "experiment": "delphi_outages_live",
        "places": [run.scenario.place for run in recorded],
        "rows": {kind: int(mask.sum()) for kind, mask in kinds.items()},
        "policies": {
            name: {
                kind: {
                    "lost": int((lost[name] & mask).sum()),
                    **bootstrap.figure("lost_share", share(lost[name], mask)),
                    **bootstrap.figure(
                        "lost_s", ratio(late_s[name] * mask, mask.astype(np.float64))
                    ),
                }
                for kind, mask in kinds.items()
                if mask.any()
            }
            for name in names
        },
        "against": {
            name: {kind: _against(lost, name, mask, bootstrap) for kind, mask in kinds.items()}
            for name in names
            if name not in (*FIXED, AT_START)
        },
    }


def _check_replayed(run: Recorded, place: Place) -> None:
    for row in run.capacity:
        begins_s = run.scenario.start_s + row["at_s"]
        carried_bps = place.networks[row["network"]].down.rate_bps(begins_s, begins_s + 1.0)
        if not isclose(carried_bps, row["rate_bps"], rel_tol=1e-6, abs_tol=1.0):
            raise DataSetError(
                f"{run.directory} replayed other traces than {place.name} has in this collection: name"
                " the right one with --places"
            )


def _against(
    lost: Mapping[str, Rows], name: str, mask: Rows, bootstrap: Bootstrap
) -> dict[str, Any]:
    counted = {each: (of & mask).astype(np.float64) for each, of in lost.items()}
    fixed = [each for each in lost if each in FIXED]
    found: dict[str, Any] = {}
    if AT_START in counted:
        found |= _times("at_start", counted[name], [counted[AT_START]], bootstrap)
    if fixed:
        found["best_fixed"] = min(fixed, key=lambda each: float(counted[each].sum()))
        found |= _times("fixed", counted[name], [counted[each] for each in fixed], bootstrap)
    return found


def _times(key: str, own: Floats, others: Sequence[Floats], bootstrap: Bootstrap) -> dict[str, Any]:
    """Return the ratio to the policy that loses fewest; None: infinite."""
    least = min(float(each.sum()) for each in others)
    if least == 0.0:
        return {key: None, f"{key}_ci95": None} if own.any() else {}
    found = bootstrap.figure(key, _over_the_least(own, others))
    # (An end may lie between a number and that.)
    ends = [None if each > _MANY / 1e3 else each for each in found[f"{key}_ci95"]]
    return {**found, f"{key}_ci95": ends}


_MANY = 1e9
"""A ratio that stands for infinity, so that intervals have ends."""


def _over_the_least(own: Floats, others: Sequence[Floats]) -> Callable[[Floats], Floats]:
    def of(weights: Floats) -> Floats:
        least = np.min([weights @ each for each in others], axis=0)
        mine = weights @ own
        with np.errstate(invalid="ignore", divide="ignore"):
            found: Floats = np.where(least > 0.0, mine / least, np.where(mine > 0, _MANY, np.nan))
        return found

    return of


def _kinds(met: Mapping[str, Rows]) -> dict[str, Rows]:
    every = {"next_second": met["dies"] | met["dead"], "dies": met["dies"], "dead": met["dead"]}
    every["all"] = np.ones_like(met["dies"])
    of_kind = {kind: {"": mask, "_mptcp": mask & met["mptcp"], "_tcp": mask & ~met["mptcp"]}
               for kind, mask in every.items()}  # fmt: skip
    return {f"{kind}{which}": mask for kind, of in of_kind.items() for which, mask in of.items()}


def _met(place: Place, direction: str, at_s: float) -> str | None:
    """Which outage a transfer meets that begins then: `dies`, if one network does, `dead` or None."""
    found = None
    for access in place.networks.values():
        trace = access.up if direction == "up" else access.down
        if next_outage_s(trace, at_s, 0.0) is None:
            continue
        before = trace.rate_bps(trace.period_s + at_s - 1.0, trace.period_s + at_s)
        if before >= DEAD_BPS:
            return "dies"
        found = "dead"
    return found


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for name, kinds in found["policies"].items():
        shown = ", ".join(
            f"{kind} {of['lost']} ({of['lost_share']:.1%}, {of['lost_s']:.2f} s)"
            for kind, of in kinds.items()
        )
        yield f"{name}: {shown}"
    for name, kinds in found["against"].items():
        shown = ", ".join(
            f"{kind} {of['at_start']:.2f}" for kind, of in kinds.items() if of.get("at_start")
        )
        if shown:
            yield f"{name}, times as many as {AT_START}: {shown}"
