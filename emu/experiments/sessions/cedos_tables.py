"""Cedos' Tables III and IV and its switching delay (V-A), measured over emulated links.

While networks change, the client downloads without end. The delay is the paper's: from the last data
packet of the one network to the first of the other, as the client's interfaces see them.
"""

import os
import time
from contextlib import closing
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from cedos.errors import EmulationError
from cedos.model import Direction
from cedos.session.protocol.crypto import KeyPair
from emu.data.evaluate import Progress
from emu.experiments.sessions.world import Program, Scripted, World
from emu.places.places import Places
from emu.places.traces import Trace
from emu.statistics import student_ci95
from emu.testbed.access import LTE, WLAN
from emu.testbed.hosts import SERVER
from emu.testbed.programs.bulk import Sniffer
from emu.workloads.sessions.pair import SERVER as CABLE_SERVER
from emu.workloads.sessions.pair import Pair, cable, pair
from emu.workloads.sessions.throughput import jain

# The paper's round trips from a train (V-B1); its rates are not given.
WIFI_RTT_S, LTE_RTT_S = 0.014, 0.042
_PORT: Final = 7400
_DATA_BYTES: Final = 600  # a packet as long carries data, not an answer to some
_QUEUE: Final = (100, 100)
# A silence belongs to a change if it lies within this share of the time to the next change.
_AROUND: Final = 0.7


@dataclass(frozen=True, slots=True)
class Change:
    """A change of networks: from and to which interface, at which second of the script."""

    at_s: float
    before: str
    after: str


def script(
    kind: str, changes: int, each_s: float, rate_bps: float
) -> tuple[list[Scripted], list[Change]]:
    """Return both networks and when the flow has to change.

    `kind`: `one-at-a-time`: the one network goes when the other comes, as the paper's phone has it;
    `lte-always`: only Wi-Fi comes and goes.
    """
    ends = [(number * each_s, (number + 1) * each_s) for number in range(changes + 1)]
    trace = Trace.constant(rate_bps, 12.0)
    wifi = Scripted(WLAN, trace, trace, [(0.0, WIFI_RTT_S)], ends[::2], _QUEUE)
    alone = ends[1::2] if kind == "one-at-a-time" else None
    lte = Scripted(LTE, trace, trace, [(0.0, LTE_RTT_S)], alone, _QUEUE)
    found = []
    for number in range(changes):
        pair = (WLAN, LTE) if number % 2 == 0 else (LTE, WLAN)
        found.append(Change((number + 1) * each_s, *pair))
    return [wifi, lte], found


def measure(kind: str, changes: int, each_s: float, rate_bps: float) -> dict[str, Any]:
    """Delays of all changes, by direction, in seconds.

    Returns:
        `{"wifi-to-lte": {"packets_s": [...], "silences_s": [...]}, "lte-to-wifi": ...}`: between
        packets as the paper has it (less than 0: the other network began before), and the longest
        time around the change in which the application had nothing to read.
    """
    networks, planned = script(kind, changes, each_s, rate_bps)
    key = os.urandom(32)
    there: dict[str, Any] = {"host": SERVER, "port": _PORT}
    duration_s = (changes + 1) * each_s - 0.2
    with World(networks) as world:
        server = Program(world.server, "server", "stream", **there, key=key.hex())
        client = Program(
            world.client, "client", "stream", **there, server_key=KeyPair(key).public.hex(),
            seconds=duration_s - 0.5, silence_s=0.005,
        )  # fmt: skip
        with server, client:
            server.ready().go()
            client.ready()
            time.sleep(0.3)
            with world.client.entered():
                sniffer = Sniffer(WLAN, LTE)
            with closing(sniffer):
                world.begin()
                client.go()
                answer = client.answer(duration_s + 20)
        if answer is None:
            raise EmulationError("the stream's reader did not come to its end")
        began_s = world.began_s
    ahead_s = time.time() - time.monotonic()
    seen: dict[str, list[float]] = {WLAN: [], LTE: []}
    for packet in sniffer.seen:
        if packet.direction is Direction.DOWN and packet.data_bytes >= _DATA_BYTES:
            seen[packet.interface].append(packet.at_unix_s - ahead_s)
    return delays(planned, seen, answer["silences"], began_s, each_s)


def delays(
    planned: list[Change],
    seen: dict[str, list[float]],
    silences: list[list[float]],
    began_s: float,
    each_s: float,
) -> dict[str, Any]:
    """Put packets, silences and planned changes together; see `measure`."""
    found: dict[str, Any] = {
        name: {"packets_s": [], "silences_s": []} for name in ("wifi-to-lte", "lte-to-wifi")
    }
    for change in planned:
        at_s = began_s + change.at_s
        until_s = at_s + each_s
        last = [t for t in seen[change.before] if t < until_s and t > at_s - each_s]
        first = [t for t in seen[change.after] if at_s - 0.01 < t < until_s]
        name = "wifi-to-lte" if change.after == LTE else "lte-to-wifi"
        around = [
            end_s - begin_s
            for begin_s, end_s in silences
            if end_s > at_s and begin_s < at_s + _AROUND * each_s
        ]
        if last and first:
            found[name]["packets_s"].append(round(first[0] - last[-1], 5))
        found[name]["silences_s"].append(round(max(around, default=0.0), 5))
    return found


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
    """Measure all three.

    `size_mb`: of the download; the paper's has 250 MB.
    `rounds`: of each protocol.
    `crowd_s`: how long 100 connections are watched, after a third of it.

    Returns:
        `{"throughput": {PROTOCOL: {...}}, "fairness": {CROWD: {...}}, "switching": {KIND: ...}}`.
    """
    rate = f"{rate_mbps:g}mbit"
    with cable(rate) as (near, far), pair(near, far, CABLE_SERVER) as ends:
        throughput = _throughput(ends, round(1e6 * size_mb), rounds, progress)
        fairness = {}
        for number, (name, (sessions, raws)) in enumerate(_CROWDS.items()):
            progress(0.3 + 0.1 * number, f"100 connections: {name}")
            fairness[name] = _crowd(ends, sessions, raws, crowd_s)
    moves = {}
    for number, kind in enumerate(_KINDS):
        progress(0.6 + 0.2 * number, f"switching: {kind}")
        found = measure(kind, changes, each_s, 1e6 * switching_mbps)
        moves[kind] = {way: _times(each) for way, each in found.items()}
    return {
        "rate_mbps": rate_mbps,
        "size_mb": size_mb,
        "rounds": rounds,
        "throughput": throughput,
        "fairness": fairness,
        "switching": moves,
        "rtts_s": {"wifi": WIFI_RTT_S, "lte": LTE_RTT_S},
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
