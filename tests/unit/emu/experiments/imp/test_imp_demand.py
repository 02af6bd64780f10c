"""Who waits is served alike in the simulation and live; what comes after the period is not counted."""

import time

import pytest

from cedos.model import NetworkKind
from cedos.selector.budgets.prices import FREE
from cedos.selector.prefetch.outlook import Average
from cedos.storage.model_files import radios
from emu.experiments.imp import workload
from emu.experiments.imp.demand import Budgets, Offer, best, moves
from emu.experiments.imp.live import LiveHost
from emu.experiments.imp.setting import Setting, setting
from emu.experiments.imp.simulate import Trial
from emu.experiments.imp.workload import simple
from emu.places import places
from emu.places.traces import Trace
from emu.repository import ROOT
from emu.simulation.network import ReplayedNetwork
from emu.testbed.access import Access

TRACES = ROOT / "traces"
RADIOS = radios()["nexus-one"]


def offers(wifi_bps: float = 20e6, cellular_bps: float = 2e6) -> list[Offer]:
    return [
        Offer("wifi", wifi_bps, 0.02, RADIOS["wifi"], None),
        Offer("cellular", cellular_bps, 0.08, RADIOS["3g"], None),
    ]


def test_the_faster_network_serves_where_nothing_costs() -> None:
    assert best(offers(), 1e6, FREE, breaks=False) == "wifi"
    assert best(offers(wifi_bps=1e5), 1e6, FREE, breaks=False) == "cellular"
    assert best([], 1e6, FREE, breaks=False) is None


def test_what_would_break_the_cap_waits_for_a_free_network() -> None:
    assert best(offers(wifi_bps=1e5), 1e6, FREE, breaks=True) == "wifi"
    assert best(offers()[1:], 1e6, FREE, breaks=True) is None


def test_a_dear_network_is_left_alone() -> None:
    budgets = Budgets(1000.0, data_bytes=1e6)
    budgets.observe(1.0, 0.0, 9.9e5)  # nearly all of it in the first second
    prices = budgets.prices(2.0)
    assert best(offers(wifi_bps=1e5), 1e5, prices, breaks=False) == "wifi"


def test_only_what_is_done_in_half_the_time_elsewhere_moves() -> None:
    assert moves(offers(), "cellular", 1e6, FREE, breaks=False)
    assert not moves(offers(), "wifi", 1e6, FREE, breaks=False)
    assert not moves(offers(wifi_bps=3e6), "cellular", 1e6, FREE, breaks=False)
    assert not moves(offers()[1:], "cellular", 1e6, FREE, breaks=False)


@pytest.fixture(scope="module")
def place() -> Setting:
    return setting(places.load(TRACES), ["drive-past-s13"], "nexus-one", "3g", 3.0)


def test_what_is_used_after_the_period_is_not_counted(place: Setting) -> None:
    counted = {"wifi": (0, 0), "cellular": (0, 0)}
    host = LiveHost(place, Budgets(10.0), 0.0, 10.0, time.monotonic(), counted)
    host.observe(0.1, counted)
    host.observe(0.3, {"wifi": (0, 0), "cellular": (50_000, 300)})
    host.observe(9.9, {"wifi": (0, 0), "cellular": (50_000, 300)})
    host.observe(10.1, {"wifi": (0, 0), "cellular": (50_000, 300)})
    within = host.used()
    assert within.metered_bytes == 50_300
    # A whole tail but for its last 0.3 s, which the period does not see.
    radio = place.radios["cellular"]
    expected_j = radio.promotion_j + radio.tail_j
    expected_j -= 0.3 * (radio.states[1].linger_w - radio.idle_w)
    assert within.joules["cellular"] == pytest.approx(expected_j, abs=0.01)
    for at_s in range(11, 60):
        host.observe(float(at_s), {"wifi": (0, 0), "cellular": (50_000 + at_s * 1000, 300)})
    assert host.used() == within


def test_each_fetch_opens_a_connection_of_its_own() -> None:
    """As the fetchers do: a round trip before the request, and one for it."""
    steady = Trace.constant(10e6)
    access = Access(NetworkKind.CELLULAR, up=steady, down=steady, rtt_s=0.08)
    work = workload.email(1, scale=0.01)
    outcome = Trial(
        work,
        {"cellular": ReplayedNetwork(access)},
        {"cellular": RADIOS["3g"]},
        simple(work.threshold_bytes)["never"](),
        Budgets(1200.0),
        {"cellular": Average(1.0, 1e-7, 0.08, 0.0)},
        start_s=0.0,
        duration_s=1200.0,
    ).run()
    assert min(outcome.fetch_s) == pytest.approx(0.16, abs=0.01)
