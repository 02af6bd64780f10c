"""The prefetching experiments: workloads as published, budgets kept, demand first, small grids."""

import numpy as np
import pytest

from cedos.model import NetworkKind
from cedos.selector.prefetch.outlook import Average
from cedos.selector.prefetch.queue import Queue
from cedos.storage.model_files import radios
from emu import ROOT
from emu.experiments.imp import grid, workload
from emu.experiments.imp.demand import Budgets
from emu.experiments.imp.grid import drive
from emu.experiments.imp.simulate import Trial
from emu.experiments.imp.workload import simple
from emu.experiments.replayed_network import ReplayedNetwork
from emu.places import places
from emu.places.stats import OUTAGE_BPS, rates_bps
from emu.places.traces import Trace
from emu.testbed.access import Access

TRACES = ROOT / "traces"
RADIOS = {name: radios()["nexus-one"][of] for name, of in (("wifi", "wifi"), ("cellular", "3g"))}


def networks(wifi_from_s=60, wifi_s=120):
    """2 Mbit/s of cellular for ever, and once in ten minutes a contact with 20 Mbit/s of Wi-Fi."""
    wifi = Trace.constant(20e6, wifi_s)
    wifi = Trace(wifi.times_ms + wifi_from_s * 1000, 600_000)
    cellular = Trace.constant(2e6)
    return {
        "wifi": ReplayedNetwork(Access(NetworkKind.WIFI, up=wifi, down=wifi, rtt_s=0.02)),
        "cellular": ReplayedNetwork(
            Access(NetworkKind.CELLULAR, up=cellular, down=cellular, rtt_s=0.08)
        ),
    }


def play(queue, budgets, seed=1):
    averages = {
        "wifi": Average(0.2, 1 / 20e6, 0.02, 480.0),
        "cellular": Average(1.0, 1 / 2e6, 0.08, 0.0),
    }
    work = workload.email(seed)
    return Trial(
        work, networks(), RADIOS, queue, budgets, averages, start_s=0.0, duration_s=1200.0
    ).run()


@pytest.mark.parametrize("seed", range(4))
def test_the_inbox_is_the_papers(seed):
    work = workload.email(seed)
    assert len(work.items) == len(work.steps) == 35
    assert sum(item.read for item in work.items) == 28
    assert 5e6 < work.total_bytes < 7e6
    assert work.total_bytes == workload.email(seed + 1).total_bytes


@pytest.mark.parametrize("classes", [True, False])
def test_the_news_are_the_papers(classes):
    work = workload.news(3, classes=classes)
    assert len(work.items) == len(work.steps) == 25
    assert np.mean([item.read for item in work.items]) == pytest.approx(0.64)
    assert len({item.cls for item in work.items}) == (5 if classes else 1)
    median = np.median([item.size_bytes for item in work.items])
    assert 64_000 < median < 128_000
    issued = sum(of for _, of in work.history.values())
    assert sum(came for came, _ in work.history.values()) / issued == pytest.approx(0.64, abs=0.08)


def test_a_drive_has_contacts_as_published_and_the_places_own_networks():
    place = places.load(TRACES)["drive-past-s13"]
    accesses = drive(place, 3600, seed=1)
    assert accesses["wifi"].down.period_s == accesses["cellular"].down.period_s == 3600
    share = float((rates_bps(accesses["wifi"].down, 3600) >= OUTAGE_BPS).mean())
    assert 0.03 < share < 0.4
    assert accesses["cellular"].down.mean_bps == pytest.approx(
        place.cellular.down.mean_bps, rel=0.05
    )
    assert drive(place, 3600, seed=1)["wifi"].down == accesses["wifi"].down
    assert drive(place, 3600, seed=2)["wifi"].down != accesses["wifi"].down


def test_without_budgets_ours_is_always():
    ours, always = play(Queue(), Budgets(1200.0)), play(simple(0.0)["always"](), Budgets(1200.0))
    assert ours.prefetched == always.prefetched
    assert np.mean(ours.fetch_s) == pytest.approx(np.mean(always.fetch_s), abs=0.02)


@pytest.mark.parametrize("controller", ["pacer", "odyssey"])
def test_budgets_are_kept_and_buy_time(controller):
    budgets = Budgets(1200.0, None, 1.5e6, controller)
    ours, wifi = play(Queue(), budgets), play(simple(0.0)["wifi-only"](), Budgets(1200.0))
    assert ours.data_bytes <= 1.5e6
    assert np.mean(ours.fetch_s) <= np.mean(wifi.fetch_s) + 1e-9


@pytest.mark.parametrize("cap", [0.0, 100_000.0])
def test_a_cap_on_data_is_not_broken_by_demand_either(cap):
    one = play(Queue(), Budgets(1200.0, None, cap))
    assert one.data_bytes <= cap
    assert len(one.fetch_s) == 28  # all come, when Wi-Fi does


@pytest.mark.parametrize("application", ["email", "news"])
def test_a_small_grid_hangs_together(application):
    place = {
        "name": "there",
        "parts": ["drive-past-s13"],
        "energy_j": 100.0,
        "data_mb": 1.0,
        "contacts_seed": 1,
    }
    found = grid.run(
        places.load(TRACES),
        application=application,
        place=[place],
        scale=0.2,
        trials=1,
        duration_s=300.0,
    )
    assert found["simulated"]
    there = found["places"]["there"]
    assert there["synthetic"]
    assert there["contacts_drawn"]
    for name, figures in there["strategies"].items():
        low, high = figures["fetch_s_ci95"]
        assert low <= figures["fetch_s"] <= high
        assert ("met" in figures) == (name.startswith("imp-") and name != "imp-free")
    for name, beside in there["beside"].items():
        assert set(beside["meeting"]) <= set(simple(0.0)), name


DEMAND_RADIOS = radios()["nexus-one"]


def test_each_fetch_opens_a_connection_of_its_own():
    """As the fetchers do: a round trip before the request, and one for it."""
    steady = Trace.constant(10e6)
    access = Access(NetworkKind.CELLULAR, up=steady, down=steady, rtt_s=0.08)
    work = workload.email(1, scale=0.01)
    outcome = Trial(
        work,
        {"cellular": ReplayedNetwork(access)},
        {"cellular": DEMAND_RADIOS["3g"]},
        simple(work.threshold_bytes)["never"](),
        Budgets(1200.0),
        {"cellular": Average(1.0, 1e-7, 0.08, 0.0)},
        start_s=0.0,
        duration_s=1200.0,
    ).run()
    assert min(outcome.fetch_s) == pytest.approx(0.16, abs=0.01)
