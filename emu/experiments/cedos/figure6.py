"""Cedos' Figure 6: 100 MB flows against slow Wi-Fi, against one another, and one urgent among nine."""

from collections.abc import Mapping
from typing import Final

from cedos.selector.deadlines.chance import ChanceScheduler
from cedos.selector.deadlines.plan import D2Sched, DeadlineScheduler
from emu.experiments.cedos.compare import AtOnce, EachAlone, feasible, most_wifi_bytes
from emu.experiments.cedos.simulate import Carried, simulate
from emu.experiments.cedos.world import Wanted, World

SIZE_BYTES: Final = 100e6
WIFI_BPS: Final = {"a": 0.8e6, "b": 0.0, "c": 6.3e6}
CELLULAR_BPS: Final = {"a": 4.7e6, "b": 4.7e6, "c": 0.0}
# The time for which both networks were used before. The paper's scheduler uses the last measured
# rate.
_MEASURED_S: Final = 60

SCHEDULERS: Final[tuple[DeadlineScheduler, ...]] = (
    AtOnce("wifi-first"),
    EachAlone(),
    D2Sched(),
    ChanceScheduler(),
)


def world(case: str) -> World:
    flows = {
        "a": [Wanted(0, SIZE_BYTES, 300.0)],
        "b": [Wanted(0, SIZE_BYTES, 1800.0)] * 10,
        "c": [Wanted(0, SIZE_BYTES, 1800.0)] * 9 + [Wanted(0, SIZE_BYTES, 300.0)],
    }[case]
    long_s = 3600
    wifi, cellular = WIFI_BPS[case], CELLULAR_BPS[case]
    return World(
        [wifi] * long_s,
        [cellular] * long_s,
        flows,
        [wifi] * _MEASURED_S if wifi else (),
        [cellular] * _MEASURED_S if cellular else (),
    )


def run(case: str, *, keep_parts: bool = False) -> dict[str, list[Carried]]:
    """Run a case under each scheduler."""
    return {each.name: simulate(world(case), each, keep_parts=keep_parts) for each in SCHEDULERS}


def figures() -> dict[str, Mapping[str, object]]:
    """Return by case and scheduler: deadlines met, share over Wi-Fi, when each was done."""
    found: dict[str, Mapping[str, object]] = {}
    for case in "abc":
        of = world(case)
        total = sum(flow.size_bytes for flow in of.flows)
        by: dict[str, object] = {
            name: {
                "met": sum(
                    one.done_s <= flow.deadline_s for one, flow in zip(done, of.flows, strict=True)
                ),
                "wifi_share": sum(one.wifi_bytes for one in done) / total,
                "done_s": [round(one.done_s, 1) for one in done],
            }
            for name, done in run(case).items()
        }
        found[case] = by | {
            "flows": len(of.flows),
            "feasible": len(feasible(of)),
            "clairvoyant_wifi_share": most_wifi_bytes(of) / total,
        }
    return found
