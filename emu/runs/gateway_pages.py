"""Pages in Chromium, plain over Wi-Fi and through the gateway, which it knows nothing of.

On an emulated laptop: good networks (45 and 40 Mbit/s), and places on the way; the six real ones of the
mixed load's figures where the collection has them (`CEDOS_BENCH_PLACES` names another one). The same
generated sites in the same order, from the same instant of the place; through the gateway the kernel
redirects the browser's connections and its look-ups. Plain is what Chromium does on a laptop without
cedos: it stays on Wi-Fi.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from cedos.model import NetworkKind
from emu.places.places import Places, default_directory, load
from emu.places.traces import Trace
from emu.runs import browsing
from emu.runs.browsing import BrowsingPlan, Person
from emu.runs.scenario import PageLoad, Scenario
from emu.testbed.access import Access
from emu.testbed.phones import Laptop
from emu.testbed.programs.daemon import put_on_time, through_gateway
from emu.testbed.programs.gateway import GATEWAY

_GOOD: Final = "good"
_SYNTHETIC: Final = {"walk-away-s7": 20.0, "drive-past-s13": 10.0, "station-s9": 20.0}
# Real places with their starts, where Wi-Fi is about to be lost, or stalls.
_REAL: Final = {
    "sbu7-1": 30.0, "sbu7-2": 39.0, "sbu7-3": 30.0, "sbu7-5": 33.0, "sbu13-1": 10.0, "p02": 151.0,
}  # fmt: skip
WARM_S: Final = 6.0
_LIMIT_S: Final = 30.0
_BROWSER_USER: Final = "65534"
_SCENARIO: Final = Scenario(
    page=(PageLoad("pages", sites=8, every_s=4.0),), duration_s=24.0, limit_s=_LIMIT_S, seed=5
)
_UP: Final = Trace.constant(10e6)


def measure(progress: Callable[[str], None]) -> dict[str, float]:
    """`page_ratio_good`, `page_ratio_mobility`: mean load times through the gateway over plain.

    A page that was not there after 30 s counts as that. EmulationError: the testbed, the daemon or the
    browser.
    """
    took: dict[tuple[str, str], list[float]] = {}
    wanted = browsing.plan(_SCENARIO, _SCENARIO.seed)
    mobility = tuple(_starts_s())
    for place in (_GOOD, *mobility):
        accesses = _accesses(place)
        for way in ("plain", "gateway"):
            found = took[place, way] = _load_times_s(accesses, wanted, way)
            progress(
                f"{place}, {way}: {statistics.mean(found):.2f} s,"
                f" median {statistics.median(found):.2f} s, {len(found)} pages"
            )

    def mean_s(way: str, places: Sequence[str]) -> float:
        return statistics.mean(each for place in places for each in took[place, way])

    return {
        f"page_ratio_{name}": mean_s("gateway", places) / mean_s("plain", places)
        for name, places in (("good", (_GOOD,)), ("mobility", mobility))
    }


def _accesses(place: str) -> tuple[Access, Access]:
    if place == _GOOD:
        return (
            Access(NetworkKind.WIFI, _UP, Trace.constant(45e6), 0.020),
            Access(NetworkKind.CELLULAR, _UP, Trace.constant(40e6), 0.050),
        )
    return at_place(place, _starts_s()[place] - WARM_S)


def _starts_s() -> dict[str, float]:
    return _REAL if _REAL.keys() <= bench_places().keys() else _SYNTHETIC


def _load_times_s(accesses: tuple[Access, Access], wanted: BrowsingPlan, way: str) -> list[float]:
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*accesses, source_rules=way == "plain"))
        servers = stack.enter_context(browsing.serve(wanted, laptop, GATEWAY))
        put_on_time(laptop)
        if way == "gateway":
            stack.enter_context(through_gateway(laptop, _BROWSER_USER))
        log = laptop.directory / "chromium.log"
        person = stack.enter_context(Person(laptop, servers, wanted, log, mptcp=False, nice=0))
        laptop.attach(*accesses)  # from the place's beginning, whatever took long until here
        put_on_time(laptop)
        time.sleep(WARM_S)
        browsed = person.browse(zero_at_s=time.monotonic(), limit_s=_LIMIT_S)
    return [
        _LIMIT_S if each.loaded.censored or each.loaded.problem else each.loaded.load_s
        for each in browsed.visits
    ]


def at_place(place: str, start_s: float) -> tuple[Access, Access]:
    """Return Wi-Fi and the cellular network of a place from one of its seconds on."""
    networks = bench_places()[place].networks
    wifi, cellular = (
        Access(kind, each.up, each.down, each.rtt_s).rotated(start_s)
        for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR)
        for each in (networks[str(kind)],)
    )
    return wifi, cellular


def bench_places() -> Places:
    """Return the collection that `CEDOS_BENCH_PLACES` names, else the default one. PlaceError."""
    named = os.environ.get("CEDOS_BENCH_PLACES")
    return load(Path(named) if named else default_directory())
