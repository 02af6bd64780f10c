"""Causes of the seconds that the daemon's transfers lose, in live or simulated runs.

    cedos-emu run SCENARIO --engine simulator --repeats 50 --out runs/lost/P ...
    cedos-emu figures lost runs/lost/* --json FILE

Each transfer of `cedos` is compared with the fastest fixed policy on the same transfer. If it took
longer by over 50 ms and 15 %, the loss has one cause, by the network that carried the transfer and the
capacity of Wi-Fi then:

- `wifi-dead-before`: it began on a Wi-Fi that could carry nothing then, nor in the second before;
- `wifi-died`: Wi-Fi could carry nothing for a second while the transfer was on it;
- `price`: it kept off LTE, which would have saved less than the metered bytes are worth;
- `wifi-slower`: it was on a living Wi-Fi that was slower, and LTE was worth its price;
- `lte-slower`: it was on LTE;
- `both`: MPTCP carried it over both networks.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cedos.errors import DataSetError
from cedos.model import NetworkKind
from emu.runs import runs
from emu.runs.mobility import FIXED
from emu.runs.runs import Recorded
from emu.statistics import ci95, resampled
from emu.testbed.access import ADDRESSES

OURS = "cedos"
CAUSES = ("wifi-dead-before", "wifi-died", "price", "wifi-slower", "lte-slower", "both")
_LEAST_S, _LEAST_SHARE = 0.05, 0.15
# A network that could carry less in a second is dead then.
_DEAD_BPS = 50_000.0
# The shipped price: a megabyte over a metered network must save so much.
_S_PER_MB = 1.0
# A network with a smaller share of a transfer's bytes did not carry it.
_PART = 0.05
_RESAMPLES = 1000

_Losses = dict[tuple[str, str], dict[str, float]]


def figures(recorded: Sequence[Recorded]) -> dict[str, Any]:
    """Return the seconds of all policies, and the daemon's losses by kind of connection and cause.

    Returns:
        `seconds`: by policy; `oracle`: of the fastest fixed policy on each transfer; `best_of_place`: of
        the policy that was the best at each place. `causes`: connection (`plain`, `mptcp`) -> cause ->
        `n`, `share` of all losses, `lost_s` in hindsight with its interval by runs.

    Raises:
        DataSetError: a run lacks the daemon or a fixed policy.
    """
    needed = {OURS, *FIXED}
    if missing := [each for each in recorded if not needed <= set(each.policies)]:
        raise DataSetError(f"{missing[0].directory} lacks {OURS} or a policy of {', '.join(FIXED)}")
    best = _best_of_places(recorded)
    seconds: dict[str, float] = defaultdict(float)
    of_runs: list[_Losses] = []
    for run in recorded:
        times = {name: runs.times_s(run, name) for name in needed}
        for name, each in times.items():
            seconds[name] += float(each.sum())
        seconds["oracle"] += float(np.min([times[name] for name in FIXED], axis=0).sum())
        seconds["best_of_place"] += float(times[best[run.scenario.place]].sum())
        of_runs += _losses(run)
    lost = [sum(each["lost_s"] for each in of_run.values()) for of_run in of_runs]
    samples = resampled(len(of_runs), np.random.default_rng(1), _RESAMPLES)
    causes: dict[str, dict[str, Any]] = {"plain": {}, "mptcp": {}}
    for connection, of_connection in causes.items():
        for cause in CAUSES:
            key = (connection, cause)
            found = [of_run[key] for of_run in of_runs if key in of_run]
            if not found:
                continue
            each_s = np.array([of_run.get(key, {"lost_s": 0.0})["lost_s"] for of_run in of_runs])
            of_connection[cause] = {
                "n": sum(int(each["n"]) for each in found),
                "lost_s": float(each_s.sum()),
                "lost_s_ci95": [float(end) for end in ci95(each_s[samples].sum(axis=1))],
                "share": float(each_s.sum() / sum(lost)),
            }
    return {
        "places": sorted(best),
        "repeats": len(of_runs),
        "transfers": sum(len(runs.times_s(run, OURS)) for run in recorded),
        "seconds": dict(seconds),
        "causes": causes,
    }


def _best_of_places(recorded: Sequence[Recorded]) -> dict[str, str]:
    """Return the fixed policy with the least seconds at each place."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(FIXED, 0.0))
    for run in recorded:
        for name in FIXED:
            sums[run.scenario.place][name] += float(runs.times_s(run, name).sum())
    return {place: min(of, key=of.__getitem__) for place, of in sums.items()}


def _losses(run: Recorded) -> Iterator[_Losses]:
    """Yield the losses of each repeat, by kind of connection and cause."""
    wifi_bps = {row["at_s"]: row["rate_bps"] for row in run.capacity if row["network"] == "wifi"}
    by_repeat: dict[int, _Losses] = {repeat: {} for repeat in range(run.scenario.repeats)}
    rows = {(row["policy"], row["repeat"], row["number"]): row for row in run.flows}
    for (policy, repeat, number), row in rows.items():
        if policy != OURS:
            continue
        others = [rows[name, repeat, number]["time_s"] for name in FIXED]
        lost_s = row["time_s"] - min(others)
        if lost_s <= max(_LEAST_S, _LEAST_SHARE * min(others)):
            continue
        key = ("mptcp" if row["mptcp"] else "plain", _cause(row, lost_s, wifi_bps))
        of_key = by_repeat[repeat].setdefault(key, {"n": 0, "lost_s": 0.0})
        of_key["n"] += 1
        of_key["lost_s"] += lost_s
    yield from by_repeat.values()


def _cause(row: Mapping[str, Any], lost_s: float, wifi_bps: Mapping[float, float]) -> str:
    carried = row["wifi_bytes"] + row["cellular_bytes"]
    # If nothing was carried, the network of its first packet counts.
    began = float(row["local_ip"] == ADDRESSES[NetworkKind.WIFI])
    wifi_share = row["wifi_bytes"] / carried if carried else began
    first_s = int(row["started_s"])
    within = range(first_s, int(row["started_s"] + row["time_s"]) + 1)
    dead = {second for second in (first_s - 1, *within) if wifi_bps.get(second, np.inf) < _DEAD_BPS}
    if wifi_share < _PART:
        return "lte-slower"
    if dead and first_s in dead and (first_s - 1 in dead or first_s == 0):
        return "wifi-dead-before"
    if dead:
        return "wifi-died"
    if wifi_share < 1 - _PART:
        return "both"
    return "price" if lost_s < _S_PER_MB * row["size_bytes"] / 1e6 else "wifi-slower"


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    seconds = found["seconds"]
    shown = ", ".join(f"{name} {each:.0f}" for name, each in sorted(seconds.items()))
    yield f"{found['transfers']} transfers in {found['repeats']} repeats; s: {shown}"
    for connection, of_connection in found["causes"].items():
        for cause, each in of_connection.items():
            low, high = each["lost_s_ci95"]
            yield (
                f"{connection:6} {cause:17} {each['n']:6} transfers, {each['lost_s']:7.1f} s"
                f" [{low:.0f}, {high:.0f}], {each['share']:4.0%}"
            )
