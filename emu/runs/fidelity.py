"""A comparison of the simulator with live runs: the same transfers, simulated and measured.

    cedos-emu figures fidelity RUN... --places DIR --json FILE

Each live run of a policy that the simulator can run is simulated with the same plan, place and start.
Ratios are simulated over live times. The simulator gets only the configuration of the live run.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from cedos.errors import ConfigError, DataSetError
from cedos.model import Direction
from emu import policies
from emu.places.places import Place
from emu.runs.runs import Recorded
from emu.runs.scenario import Scenario
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
        `speed`: seconds of a place by seconds of one core (`core`, `by_policy`).

    Raises:
        DataSetError: no live run of a policy that the simulator can run.
    """
    cells: dict[tuple[str, str], list[_Compared]] = defaultdict(list)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        # A cell is a policy at a place. Its parts are repeats, each of which a process simulates.
        pending: dict[tuple[str, str], list[Future[_Compared]]] = defaultdict(list)
        for run in recorded:
            for policy in run.policies:
                # Others than fixed policies and the daemon cannot be simulated.
                try:
                    simulated = policies.simulated(policy, run.scenario.policy.get(policy))
                except ConfigError:
                    continue
                if run.scenario.engine != "mahimahi":
                    raise DataSetError(
                        f"{run.directory} is simulated; fidelity is asked of live runs"
                    )
                place = places[run.scenario.place]
                for repeat in range(run.scenario.repeats):
                    rows = [
                        row
                        for row in run.flows
                        if row["policy"] == policy and row["repeat"] == repeat
                    ]
                    pending[policy, run.scenario.place].append(
                        pool.submit(_compare, run.scenario, rows, simulated, place)
                    )
        cells |= {key: [each.result() for each in of_cell] for key, of_cell in pending.items()}
    if not cells:
        raise DataSetError("no run has a policy that the simulator can run")
    times = {key: np.concatenate([each.times_s for each in cell]) for key, cell in cells.items()}
    # Each policy at each place is a cell of its own, then all together.
    by_policy: dict[str, dict[str, Any]] = defaultdict(dict)
    for (policy, place_name), pairs in sorted(times.items()):
        by_policy[policy][place_name] = _cell(pairs)
    found = [cell for each in by_policy.values() for cell in each.values()]
    ordered = list(_same_order(times))
    every = [each for cell in cells.values() for each in cell]
    return {
        "policies": dict(by_policy),
        "together": {
            **_cell(np.concatenate(list(times.values()))),
            "means_within_share": _within([cell["mean_ratio"] for cell in found]),
            "medians_within_share": _within([cell["median_ratio"] for cell in found]),
            "order_share": float(np.mean(ordered)) if ordered else None,
        },
        "speed": {
            "by_policy": {
                policy: _speed([each for name in of for each in cells[policy, name]])
                for policy, of in by_policy.items()
            },
            "core": _speed(every),
        },
    }


@dataclass(frozen=True, slots=True)
class _Compared:
    """The times of each transfer, simulated and live, and the processor time of the simulation."""

    times_s: Floats
    simulated_s: float
    processor_s: float


def _compare(
    scenario: Scenario,
    rows: Sequence[Mapping[str, Any]],
    simulated: policies.Simulated,
    place: Place,
) -> _Compared:
    """Simulate one repeat of a policy in a live run."""
    began_s = time.process_time()
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
        start_s=scenario.start_s,
        warm_up_s=scenario.warm_up_s,
        limit_s=scenario.limit_s,
    )
    live_s = {row["number"]: row["time_s"] for row in rows}
    return _Compared(
        np.array([(each.time_s, live_s[each.planned.number]) for each in found.completed]),
        max(each.started_at_s + each.time_s for each in found.completed),
        time.process_time() - began_s,
    )


def _speed(compared: Sequence[_Compared]) -> float:
    """Return seconds of a place by seconds of one core."""
    return sum(each.simulated_s for each in compared) / sum(each.processor_s for each in compared)


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
    """Yield for each pair of policies at a place whether the simulator orders them as live runs do."""
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
    yield f"times real time: {found['speed']['core']:.0f} a core"
    if together["order_share"] is not None:
        yield f"in the same order: {together['order_share']:.0%} of pairs of policies"


def _line(policy: str, place: str, cell: Mapping[str, Any]) -> str:
    return (
        f"{policy:16} {place:12} {cell['n']:5} {cell['mean_s']:7.3f} {cell['mean_ratio']:5.2f}"
        f" {cell['median_ratio']:6.2f} {cell['near_share']:5.0%}"
    )
