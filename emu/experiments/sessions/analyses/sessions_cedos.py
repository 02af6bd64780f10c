"""Cedos' Tables III and IV and its switching delay (V-A), as far as they can be measured here.

Tables III and IV over a cable of the paper's rate instead of 802.11n, with both ends on one machine;
UDT and IBR-DTN are not there. Switching over two scripted networks of the paper's round trips.
"""

from statistics import fmean
from typing import Any

from emu.experiments.sessions import switching
from emu.lab.data.folds import Progress
from emu.places.places import Places
from emu.statistics import student_ci95
from emu.workloads.sessions import cable
from emu.workloads.sessions.fairness import jain
from emu.workloads.sessions.pair import Pair, pair

_MODES = {"tcp": "raw", "session-clear": "clear", "session": "aead"}
_CROWDS = {"tcp": (0, 100), "session": (100, 0), "mixed": (50, 50)}
_KINDS = ("one-at-a-time", "lte-always")


def run(
    places: Places,
    *,
    rate_mbps: float = 95.0,
    size_mb: float = 100.0,
    rounds: int = 3,
    crowd_s: float = 15.0,
    changes: int = 100,
    each_s: float = 1.0,
    switching_mbps: float = 10.0,
    progress: Progress = lambda share, what: None,
) -> dict[str, Any]:
    """Measures all three.

    `size_mb`: of the download; the paper's has 250 MB.
    `rounds`: of each protocol.
    `crowd_s`: how long 100 connections are watched, after a third of it.

    Returns:
        `{"throughput": {PROTOCOL: {...}}, "fairness": {CROWD: {...}}, "switching": {KIND: ...}}`.
    """
    rate = f"{rate_mbps:g}mbit"
    with cable.cable(rate) as (near, far), pair(near, far, cable.SERVER) as ends:
        throughput = _throughput(ends, round(1e6 * size_mb), rounds, progress)
        fairness = {}
        for number, (name, (sessions, raws)) in enumerate(_CROWDS.items()):
            progress(0.3 + 0.1 * number, f"100 connections: {name}")
            fairness[name] = _crowd(ends, sessions, raws, crowd_s)
    moves = {}
    for number, kind in enumerate(_KINDS):
        progress(0.6 + 0.2 * number, f"switching: {kind}")
        found = switching.measure(kind, changes, each_s, 1e6 * switching_mbps)
        moves[kind] = {way: _times(each) for way, each in found.items()}
    return {
        "rate_mbps": rate_mbps,
        "size_mb": size_mb,
        "rounds": rounds,
        "throughput": throughput,
        "fairness": fairness,
        "switching": moves,
        "rtts_s": {"wifi": switching.WIFI_RTT_S, "lte": switching.LTE_RTT_S},
    }


def _throughput(ends: Pair, size: int, rounds: int, progress: Progress) -> dict[str, Any]:
    runs: dict[str, list[tuple[float, float, float]]] = {name: [] for name in _MODES}
    for number in range(rounds):
        for name, mode in _MODES.items():
            progress(0.3 * number / rounds, f"one download: {name}")
            near, far = ends.both("push", "pull", mode, {"mode": mode, "size": size}, size=size)
            seconds = near["seconds"]
            runs[name].append(
                (8 * size / seconds / 1e6, near["cpu_s"] / seconds, far["cpu_s"] / seconds)
            )
    found = {}
    for name, each in runs.items():
        figures: dict[str, Any] = {}
        for key, values in zip(
            ("mbps", "cpu_share_sender", "cpu_share_receiver"), zip(*each, strict=True), strict=True
        ):
            figures[key], figures[f"{key}_ci95"] = student_ci95(values)
        found[name] = figures
    return found


def _crowd(ends: Pair, sessions: int, raws: int, seconds: float) -> dict[str, Any]:
    near, _ = ends.both(
        "receive_from_many", "send_to_many", "aead", {"sessions": sessions, "raws": raws},
        sessions=sessions, raws=raws, raw_port=ends.there("raw")["port"],
        warm_s=seconds / 3, seconds=seconds,
    )  # fmt: skip
    rates: list[float] = near["rates"]
    return {"sessions": sessions, "tcp": raws, "mbps": sum(rates) / 1e6, "jain": jain(rates)}


def _times(found: dict[str, list[float]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for key, values in found.items():
        ordered = sorted(values)
        figures[key] = {
            "n": len(ordered),
            "mean": fmean(ordered) if ordered else None,
            "median": ordered[len(ordered) // 2] if ordered else None,
            "least": ordered[0] if ordered else None,
            "most": ordered[-1] if ordered else None,
            "all": ordered,
        }
    return figures
