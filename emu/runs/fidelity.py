"""The simulator held against live runs: the same transfers, computed and measured.

    cedos-emu figures fidelity RUN... --places DIR --json FILE

Every run of a policy that the simulator can run is simulated with the same plan, place and start. Ratios
are simulated over live. The simulator knows nothing of the live run but its configuration.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from cedos.errors import ConfigError, DataSetError
from cedos.model import Direction
from emu import policies
from emu.places.places import Place
from emu.runs.runs import Recorded
from emu.simulator.run import simulate
from emu.statistics import Floats
from emu.workloads.mixed import PlannedTransfer

# A simulated transfer is near if its time and the live one differ by at most this factor.
_NEAR = 1.25
# Policies whose live means differ by a smaller factor need not be in the same order.
_APART = 1.15


def figures(recorded: Sequence[Recorded], places: Mapping[str, Place]) -> dict[str, Any]:
    """Return how near the simulator comes, by policy and place and over all.

    Returns:
        `policies`: policy -> place -> `n`, `mean_s` (live), `mean_ratio`, `median_ratio`, `near_share`.
        `together`: `n`, `mean_ratio`, `near_share`, the shares of policies and places whose mean and
        median are within 10 % (`means_within_share`, `medians_within_share`), and of pairs of policies
        of one place that are in the same order (`order_share`; null without a pair that is apart).

    Raises:
        DataSetError: no live run of a policy that the simulator can run.
    """
    times: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for run in recorded:
        for policy in run.policies:
            # Only fixed policies can be simulated.
            try:
                simulated = policies.simulated(policy, run.scenario.policy.get(policy))
            except ConfigError:
                continue
            if run.scenario.engine != "mahimahi":
                raise DataSetError(f"{run.directory} is simulated; fidelity is asked of live runs")
            times[policy, run.scenario.place] += _both(
                run, policy, simulated, places[run.scenario.place]
            )
    if not times:
        raise DataSetError("no run has a policy that the simulator can run")
    # Each policy at each place is a cell of its own, then all together.
    cells = {key: np.array(pairs) for key, pairs in times.items()}
    by_policy: dict[str, dict[str, Any]] = defaultdict(dict)
    for (policy, place), pairs in sorted(cells.items()):
        by_policy[policy][place] = _cell(pairs)
    found = [cell for each in by_policy.values() for cell in each.values()]
    ordered = list(_same_order(cells))
    return {
        "policies": dict(by_policy),
        "together": {
            **_cell(np.concatenate(list(cells.values()))),
            "means_within_share": _within([cell["mean_ratio"] for cell in found]),
            "medians_within_share": _within([cell["median_ratio"] for cell in found]),
            "order_share": float(np.mean(ordered)) if ordered else None,
        },
    }


def _both(
    run: Recorded, policy: str, simulated: policies.Simulated, place: Place
) -> list[tuple[float, float]]:
    """Return what each transfer took, simulated and live; s."""
    pairs = []
    for repeat in range(run.scenario.repeats):
        rows = [row for row in run.flows if row["policy"] == policy and row["repeat"] == repeat]
        plan = [
            PlannedTransfer(
                number=row["number"],
                name=row["name"],
                at_s=row["planned_s"],
                host=row["host"],
                direction=Direction(row["direction"]),
                size_bytes=row["size_bytes"],
                mptcp=row["mptcp"],
            )
            for row in sorted(rows, key=lambda row: row["number"])
        ]
        found = simulate(
            place,
            plan,
            simulated,
            start_s=run.scenario.start_s,
            warm_up_s=run.scenario.warm_up_s,
            limit_s=run.scenario.limit_s,
        )
        live_s = {row["number"]: row["time_s"] for row in rows}
        pairs += [(each.time_s, live_s[each.planned.number]) for each in found.completed]
    return pairs


def _cell(pairs: Floats) -> dict[str, Any]:
    simulated, live = pairs[:, 0], pairs[:, 1]
    apart = np.maximum(simulated / live, live / simulated)
    return {
        "n": len(pairs),
        "mean_s": float(live.mean()),
        "mean_ratio": float(simulated.mean() / live.mean()),
        "median_ratio": float(np.median(simulated) / np.median(live)),
        "near_share": float((apart <= _NEAR).mean()),
    }


def _within(ratios: Sequence[float], share: float = 0.1) -> float:
    return float(np.mean([abs(ratio - 1) <= share for ratio in ratios]))


def _same_order(cells: Mapping[tuple[str, str], Floats]) -> Iterator[bool]:
    """Tell of each pair of policies at a place whether the simulator orders them as the live runs."""
    means: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for (_, place), pairs in cells.items():
        means[place].append((float(pairs[:, 0].mean()), float(pairs[:, 1].mean())))
    for of_place in means.values():
        for (simulated, live), (other_simulated, other_live) in combinations(of_place, 2):
            if max(live, other_live) > _APART * min(live, other_live):
                yield (simulated < other_simulated) == (live < other_live)


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"{'policy':16} {'place':12} {'n':>5} {'live s':>7} {'mean':>5} {'median':>6} {'near':>5}"
    for policy, of_policy in found["policies"].items():
        for place, cell in of_policy.items():
            yield _line(policy, place, cell)
    together = found["together"]
    yield _line("all", "", together)
    yield (
        f"within 10 %: means {together['means_within_share']:.0%}, medians"
        f" {together['medians_within_share']:.0%} of policies and places"
    )
    if together["order_share"] is not None:
        yield f"in the same order: {together['order_share']:.0%} of pairs of policies"


def _line(policy: str, place: str, cell: Mapping[str, Any]) -> str:
    return (
        f"{policy:16} {place:12} {cell['n']:5} {cell['mean_s']:7.3f} {cell['mean_ratio']:5.2f}"
        f" {cell['median_ratio']:6.2f} {cell['near_share']:5.0%}"
    )
