"""Outages that transfers met live, and how many of them lost over a second by it: from run folders.

    cedos-emu figures outages RUN... --json FILE

`emu.delphi.outages` asks what choices are worth where an outage comes; this asks what became of whole
transfers, moved and rescued ones too. A transfer meets an outage where one of its networks is out as it
begins, or goes out within a second, by the traces that were replayed. It has lost what it took longer
than under the best policy of the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emu.data.figures import Bootstrap, ratio, share
from emu.figures.mobility import FIXED
from emu.places.outages import DEAD_BPS, next_outage_s
from emu.places.places import Place
from emu.runs.runs import Recorded

LOST_S = 1.0

AT_START = "cedos-start"
"""Foretells an outage as well as `cedos` does, and bounds none."""

_STRETCH_S = 5.0
"""Transfers of the same few seconds at a place meet the same outage: they are resampled together."""


def figures(recorded: Sequence[Recorded], places: Mapping[str, Place]) -> dict[str, Any]:
    """`rows` of each kind, and by policy and kind how many lost over a second.

    Kinds: `dies`, `dead` and both together, `next_second` (as in `emu.delphi.outages`), each also of
    MPTCP connections (`..._mptcp`) and of plain TCP alone (`..._tcp`); and `all`.

    Returns:
        `policies`: policy -> kind -> `lost_share` and `lost_s`, the mean time lost, s; `against`: policy
        -> kind -> `at_start` and `fixed`, how many times as many lose as under `AT_START` and under the
        fixed policy that loses fewest there (`best_fixed`). In hindsight, that is: where Wi-Fi alone
        goes out, whoever never uses it loses nothing by it.
    """
    names = [name for name in recorded[0].policies if all(name in r.policies for r in recorded)]
    met: dict[str, list[bool]] = {kind: [] for kind in ("dies", "dead", "mptcp")}
    stretches: list[str] = []
    times_s: dict[str, list[float]] = {name: [] for name in names}
    for run in recorded:
        place = places[run.scenario.place]
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
            stretches.append(f"{place.name} {row['planned_s'] // _STRETCH_S:.0f}")
        for name in names:
            times_s[name] += [row["time_s"] for row in ordered[name]]
    best_s = np.min([times_s[name] for name in names], axis=0)
    late_s = {name: np.array(times_s[name]) - best_s for name in names}
    kinds = _kinds({kind: np.array(mask) for kind, mask in met.items()})
    bootstrap = Bootstrap(np.array(stretches))
    found: dict[str, Any] = {
        "experiment": "delphi_outages_live",
        "places": [run.scenario.place for run in recorded],
        "rows": {kind: int(mask.sum()) for kind, mask in kinds.items()},
        "policies": {},
        "against": {},
    }
    for name in names:
        lost = late_s[name] > LOST_S
        found["policies"][name] = {
            kind: bootstrap.figure("lost_share", share(lost, mask))
            | bootstrap.figure("lost_s", ratio(late_s[name] * mask, mask.astype(np.float64)))
            for kind, mask in kinds.items()
            if mask.any()
        }
    fixed = [name for name in names if name in FIXED]
    for name in names:
        if name not in (*FIXED, AT_START):
            found["against"][name] = {
                kind: _against(late_s, name, fixed, mask, bootstrap) for kind, mask in kinds.items()
            }
    return found


def _against(
    late_s: Mapping[str, NDArray[np.float64]],
    name: str,
    fixed: Sequence[str],
    mask: NDArray[np.bool_],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    lost = {each: ((of > LOST_S) & mask).astype(np.float64) for each, of in late_s.items()}
    found: dict[str, Any] = {}
    # (Where nobody else loses anything there is nothing to make less of.)
    if AT_START in lost and lost[AT_START].any():
        found |= bootstrap.figure("at_start", ratio(lost[name], lost[AT_START]))
    if fixed:
        best = min(fixed, key=lambda each: float(lost[each].sum()))
        found["best_fixed"] = best
        if lost[best].any():
            found |= bootstrap.figure("fixed", ratio(lost[name], lost[best]))
    return found


def _kinds(met: Mapping[str, NDArray[np.bool_]]) -> dict[str, NDArray[np.bool_]]:
    every = {"next_second": met["dies"] | met["dead"], "dies": met["dies"], "dead": met["dead"]}
    every["all"] = np.ones_like(met["dies"])
    of_kind = {kind: {"": mask, "_mptcp": mask & met["mptcp"], "_tcp": mask & ~met["mptcp"]}
               for kind, mask in every.items()}  # fmt: skip
    return {f"{kind}{which}": mask for kind, of in of_kind.items() for which, mask in of.items()}


def _met(place: Place, direction: str, at_s: float) -> str | None:
    """`dead`: a network is out and stays so; `dies`: one goes out within a second; None: neither."""
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


def said(found: Mapping[str, Any]) -> Iterator[str]:
    """A line for each policy: how many lose over a second, and how many times as many as others."""
    for name, kinds in found["policies"].items():
        shown = ", ".join(
            f"{kind} {of['lost_share']:.1%} ({of['lost_s']:.2f} s)" for kind, of in kinds.items()
        )
        yield f"{name}: {shown}"
    for name, kinds in found["against"].items():
        shown = ", ".join(
            f"{kind} {of['at_start']:.2f}" for kind, of in kinds.items() if "at_start" in of
        )
        yield f"{name}, times as many as {AT_START}: {shown}"
