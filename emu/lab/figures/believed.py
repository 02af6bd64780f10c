"""What the daemon believed its networks could carry, against what the traces could: from run folders.

    cedos-emu figures believed RUN... --json FILE

At every decision of a policy the rate that was expected of each network
(`cedos.selector.decision.aging`) is compared with what its trace carried in the next seconds.
Networks that were known to be dead or silent then are left out: no rate is expected of them.
Daemons that decide oftener count for more.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cedos.model import (
    Context,
    Direction,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    Transfer,
)
from cedos.selector.decision.aging import DRIFTS, aged
from cedos.selector.decision.features import features
from cedos.selector.decision.liveness import dead_networks
from cedos.selector.decision.roles import ROLES, Roles
from cedos.selector.decision.silent import silent_s
from emu.lab.runs.runs import Recorded
from emu.testbed.access import INTERFACES

Floats = NDArray[np.float64]

AHEAD_S = 2.0
"""So many seconds after a decision count: what most transfers take, or less."""

_LEAST_BPS = 1e5
"""Whatever carries less is as good as dead; how much less is no matter."""

_UNLIKE = 1.5
"""From this ratio on it matters which network is faster."""

_NETWORKS = {
    kind.value: Network(interface, interface, index, kind, kind is NetworkKind.CELLULAR)
    for index, (kind, interface) in enumerate(INTERFACES.items(), 1)
}
_ROLES = Roles(_NETWORKS["wifi"], _NETWORKS["cellular"])
_DOWNLOAD = Transfer(SizeEstimate(1, 1, 1, "default"), Direction.DOWN)


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """`{"policies": {NAME: {...}}}` of those policies that decide.

    Of each network `n` comparisons, `factor` (the geometric mean of how many times too much or too
    little was believed) and `bias` (more than 1: too much); `order_share`: how often the network was
    believed faster that was, of the instants at which one was 1.5 times as fast as the other.
    """
    found: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for run in recorded:
        for policy, pairs in _compared(run):
            for role, pair in pairs.items():
                found[policy][role].append(pair)
            if len(pairs) == len(ROLES):
                (wifi, wifi_was), (cellular, cellular_was) = pairs["wifi"], pairs["cellular"]
                found[policy]["order"].append((wifi - cellular, wifi_was - cellular_was))
    return {
        "experiment": "delphi_believed",
        "places": [run.scenario.place for run in recorded],
        "ahead_s": AHEAD_S,
        "policies": {policy: _figures(each) for policy, each in found.items()},
    }


def _figures(found: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for role in ROLES:
        if pairs := np.array(found[role]).reshape(-1, 2).tolist():
            off = np.array([believed - was for believed, was in pairs])
            result[role] = {
                "n": len(off),
                "factor": round(float(np.exp(np.abs(off).mean())), 3),
                "bias": round(float(np.exp(off.mean())), 3),
            }
    order = np.array(found["order"]).reshape(-1, 2)
    unlike = order[np.abs(order[:, 1]) >= np.log(_UNLIKE)]
    if len(unlike):
        result["order_share"] = round(float((unlike[:, 0] * unlike[:, 1] > 0).mean()), 3)
        result["order_n"] = len(unlike)
    return result


def _compared(run: Recorded) -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
    """Of each decision its policy, and by network the logarithms of what was believed and what was."""
    capacity = {
        role: np.array([row["rate_bps"] for row in run.capacity if row["network"] == role])
        for role in ROLES
    }
    for row in run.decisions:
        if not 0.0 <= row["at_s"] <= run.duration_s - AHEAD_S:
            continue
        context = _context(json.loads(row["record"])["context"])
        columns, _ = aged(
            features(context, _DOWNLOAD, _ROLES), context, _ROLES, _DOWNLOAD.direction
        )
        pairs = {}
        for role, network in _NETWORKS.items():
            if silent_s(context, network.name) > 0.0 or dead_networks(context, [network]):
                continue
            believed = columns.get(f"{role}_past1_bps", DRIFTS[role].usual_bps)
            was = _mean_bps(capacity[role], row["at_s"])
            pairs[role] = (_log(believed), _log(was))
        yield row["policy"], pairs


def _context(record: dict[str, Any]) -> Context:
    return Context(
        record["at_s"],
        {
            name: {each: Indicator(**facts) for each, facts in known.items()}
            for name, known in record["networks"].items()
        },
    )


def _mean_bps(per_second: Floats, at_s: float) -> float:
    edges = np.arange(len(per_second) + 1.0)
    carried = np.concatenate(([0.0], np.cumsum(per_second)))
    start, end = np.interp([at_s, at_s + AHEAD_S], edges, carried)
    return float(end - start) / AHEAD_S


def _log(rate_bps: float) -> float:
    return float(np.log(max(rate_bps, _LEAST_BPS)))


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    for policy, each in found["policies"].items():
        roles = ", ".join(
            f"{role} off by a factor of {each[role]['factor']:.2f} (bias {each[role]['bias']:.2f},"
            f" {each[role]['n']} times)"
            for role in ROLES
            if role in each
        )
        order = (
            f", the faster one known in {each['order_share']:.0%}" if "order_share" in each else ""
        )
        yield f"{policy}: {roles}{order}"
