"""What the scripted networks are: real ones, and the ideal ones that IntNW was compared with.

The dissertation (2.5.1.4) makes one virtual network out of two, second by second: always the one of
the lower round trip, always the one of the higher bandwidth, or the sum of both bandwidths at the
lower of both round trips. Moving costs nothing there: no real protocol could do as well.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from emu.lab.simulation.coverage import Coverage
from emu.places.traces import Trace
from emu.testbed.access import Access

VIRTUAL: Final = "virt0"
IDEALS: Final = ("lowest-latency", "highest-bandwidth", "aggregate")


@dataclass(frozen=True, slots=True)
class Scripted:
    """One network: opportunities both ways, round trips by second, when the client has a carrier.

    Attributes:
        name: of the client's interface.
        rtts: (from second, round trip in seconds), the first from 0.
        carrier: contacts in seconds as the host notices them; None: always there.
        queue_packets: up and down.
    """

    name: str
    up: Trace
    down: Trace
    rtts: Sequence[tuple[float, float]]
    carrier: Sequence[tuple[float, float]] | None = None
    queue_packets: tuple[int, int] = (60, 60)

    def script(self) -> dict[str, Any]:
        delays = [(since_s, rtt_s / 2) for since_s, rtt_s in self.rtts]
        up, down = (
            {
                "times_ms": trace.times_ms.tolist(),
                "period_ms": trace.period_ms,
                "queue_packets": queue,
                "delays": delays,
            }
            for trace, queue in zip((self.up, self.down), self.queue_packets, strict=True)
        )
        carrier = None if self.carrier is None else [list(each) for each in self.carrier]
        return {"name": self.name, "up": up, "down": down, "carrier": carrier}


def real(access: Access, name: str, detection_s: float) -> Scripted:
    coverage = Coverage(access.down, detection_s)
    contacts: list[tuple[float, float]] | None = None
    if coverage.contacts:
        contacts = [(each.begin_s, each.noticed_s) for each in coverage.contacts]
    return Scripted(
        name,
        access.up,
        access.down,
        [(0.0, access.rtt_s)],
        contacts,
        (access.queue_up_packets, access.queue_down_packets),
    )


def ideal(accesses: Mapping[str, Access], kind: str) -> Scripted:
    """The virtual network of one of `IDEALS`, from two networks of the same period."""
    first, second = accesses.values()
    period_ms = first.down.period_ms
    if not all(
        trace.period_ms == period_ms for each in (first, second) for trace in (each.up, each.down)
    ):
        raise ValueError("an ideal network is made of networks of one period")
    seconds = -(-period_ms // 1000)
    both = (first, second)
    rates = np.array([_by_second(each.down, seconds) for each in both])
    there = rates * 12_000 >= 1e5
    rtts = np.where(there, np.array([[each.rtt_s] for each in both]), np.inf)
    choice = _CHOICES[kind](rates, rtts)
    best = np.where(np.isinf(rtts.min(axis=0)), max(each.rtt_s for each in both), rtts.min(axis=0))
    chosen_rtts = best
    if kind != "aggregate":
        of_chosen = np.take_along_axis(
            np.array([[each.rtt_s] * seconds for each in both]), choice[None], 0
        )
        chosen_rtts = of_chosen[0]

    def merged(traces: Sequence[Trace]) -> Trace:
        parts = []
        for number, trace in enumerate(traces):
            times = trace.times_ms[trace.times_ms < period_ms]
            keep = np.ones(len(times), dtype=bool) if kind == "aggregate" else None
            parts.append(times[choice[times // 1000] == number if keep is None else keep])
        return Trace(np.sort(np.concatenate(parts)), period_ms)

    changes = [
        (float(second), float(chosen_rtts[second]))
        for second in range(seconds)
        if second == 0 or chosen_rtts[second] != chosen_rtts[second - 1]
    ]
    queues = [(each.queue_up_packets, each.queue_down_packets) for each in both]
    queue = (max(q[0] for q in queues), max(q[1] for q in queues))
    return Scripted(
        VIRTUAL, merged([each.up for each in both]), merged([each.down for each in both]), changes,
        None, queue,
    )  # fmt: skip


def _by_second(trace: Trace, seconds: int) -> npt.NDArray[np.float64]:
    times = trace.times_ms[trace.times_ms < trace.period_ms]
    return np.bincount(times // 1000, minlength=seconds)[:seconds].astype(float)


_Floats = npt.NDArray[np.float64]
_CHOICES: dict[str, Callable[[_Floats, _Floats], npt.NDArray[np.intp]]] = {
    "lowest-latency": lambda rates, rtts: np.where(
        np.isinf(rtts.min(axis=0)), rates.argmax(axis=0), rtts.argmin(axis=0)
    ),
    "highest-bandwidth": lambda rates, rtts: rates.argmax(axis=0),
    "aggregate": lambda rates, rtts: rates.argmax(axis=0),
}
