"""Tables 1 and 2, Figure 22: what a scheduler knows of a path, the time of a choice, and its memory."""

import time
import tracemalloc
from typing import Any, Final

from cedos.session.protocol.schedulers.interface import (
    ALL_RANKS,
    Backlog,
    PathFacts,
    PathState,
    Scheduler,
)
from cedos.session.protocol.schedulers.plain import LowestRtt, RoundRobin
from cedos.session.protocol.schedulers.swtc import PACKET_BYTES, Swtc

# Table 1 of the paper: what each scheduler needs to know about a path.
METRICS: Final = {
    "swtc": ("rtt", "bandwidth", "cwnd", "loss"),
    "eapc": ("rtt", "bandwidth"),
    "ods": ("rtt",),
    "fmtcp": ("rtt", "loss"),
    "cwa-mptcp": ("rtt", "cwnd"),
    "co-mptcp": ("rtt",),
}
# The fields of this program with those facts.
_FIELDS: Final = {
    "rtt": ("rtt_s", "rtt_min_s"),
    "bandwidth": ("rate_bps",),
    "cwnd": ("window_bytes",),
    "loss": ("loss",),
}
# The paper's bytes for each number.
_STATE_BYTES: Final = 4
_COUNTS: Final = (1, 2, 4, 8, 16, 32)
# The packets in flight on each path whose acknowledgements SWTC expects.
_IN_FLIGHT: Final = 20


class _Reads(PathFacts):
    """Facts that note which of them are read."""

    __slots__ = ("read",)

    def __getattribute__(self, name: str) -> Any:
        if name in PathFacts.__slots__:
            object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


def paths(count: int) -> list[PathState]:
    return [
        PathState(
            number,
            PathFacts(
                rtt_s=0.05 + 0.003 * number,
                rtt_min_s=0.04,
                rate_bps=4e6 + 1e5 * number,
                loss=0.01,
                window_bytes=60_000,
            ),
            up_at_s=0.0,
            in_flight_bytes=_IN_FLIGHT * PACKET_BYTES,
        )
        for number in range(count)
    ]


_CHOICES = 50


def choice_us(scheduler: Scheduler, count: int) -> float:
    """Return the shortest mean time of a choice among so many paths."""
    states, backlog = paths(count), Backlog([0, 10_000_000, 0, 0])
    took_s = []
    for _ in range(60):
        began = time.perf_counter()
        for number in range(_CHOICES):
            scheduler.choose(states[number % count], states, backlog, 65_536, 1e-3 * number)
        took_s.append((time.perf_counter() - began) / _CHOICES)
    return 1e6 * min(took_s)


def memory_bytes(count: int) -> int:
    """Return what SWTC keeps for so many paths, each with twenty packets in flight."""
    states, backlog = paths(count), Backlog([0, 10_000_000, 0, 0])
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    scheduler = Swtc(PACKET_BYTES)
    for number in range(4 * _IN_FLIGHT * count):
        path = states[number % count]
        for each in states:
            each.allowed = ALL_RANKS if each is path else 0  # each path gets its part
        scheduler.choose(path, states, backlog, PACKET_BYTES, 1e-3 * number)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(scheduler.schedules) == count
    return after - before


def facts_read() -> list[str]:
    """Return the metrics of Table 1 that a choice of SWTC really reads."""
    states = paths(3)
    for state in states:
        facts = _Reads()
        object.__setattr__(facts, "read", set())
        for name in PathFacts.__slots__:
            setattr(facts, name, object.__getattribute__(state.facts, name))
        state.facts = facts
    Swtc().choose(states[0], states, Backlog([0, 10_000_000, 0, 0]), 65_536, 0.0)
    read = set().union(*(object.__getattribute__(state.facts, "read") for state in states))
    return [metric for metric, names in _FIELDS.items() if read.issuperset(names)]


def figures() -> dict[str, Any]:
    """Return the time and the memory of a choice by the number of paths, and what it is made from."""
    return {
        "metrics": METRICS,
        "read": facts_read(),
        "choice_us": {
            name: {f"{count}": round(choice_us(make(), count), 2) for count in _COUNTS}
            for name, make in (
                ("swtc", Swtc), ("lowest-rtt", LowestRtt), ("round-robin", RoundRobin),
            )
        },
        "memory_bytes": {f"{count}": memory_bytes(count) for count in _COUNTS},
        "papers_bytes": {
            name: {f"{count}": _STATE_BYTES * len(metrics) * count for count in _COUNTS}
            for name, metrics in METRICS.items()
        },
    }  # fmt: skip
