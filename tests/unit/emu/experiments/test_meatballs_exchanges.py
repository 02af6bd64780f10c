"""Small exchanges: races, policies, the simulated driver, the analyses."""

import math

import numpy as np
import pytest

from cedos.errors import CedosError
from cedos.model import NetworkKind
from cedos.selector.decision.living import AGAIN_S
from cedos.storage.model_files import radios
from emu import ROOT
from emu.experiments.meatballs import exchanges, offload_policy
from emu.experiments.meatballs.exchange_policy import (
    LEAST_BYTES,
    STYLES,
    ExchangePolicy,
    Preferring,
    Request,
    requests,
)
from emu.experiments.meatballs.exchanges import simulate
from emu.experiments.meatballs.offload import SharedProcessor
from emu.experiments.meatballs.trial import SETTINGS, Chosen, Client, Usage
from emu.experiments.replayed_network import HEADER_BYTES, ReplayedNetwork
from emu.places import places
from emu.places.traces import Trace
from emu.testbed.access import Access

BOTH = frozenset({"wifi", "cellular"})


class _Quick(Preferring):
    """Wi-Fi, and the other network too after 0.3 s of silence."""

    def choose(self, task, now_s, usable, silent):
        late = silent.get("wifi", 0.0) > 0.3
        return Chosen(frozenset({"cellular"} if late else {"wifi"}), 0.2)


def test_silence_begins_the_other_and_keeps_the_first():
    told = []
    client = Client(_Quick(), lambda *what: told.append(("start", *what[1:])),
                    lambda *what: told.append(("cancel", *what[1:])))  # fmt: skip
    for way in BOTH:
        client.on_attach(way, 0.0)
    client.begin(Request(0, 0.0, 1000, 4000), 0.0)
    client.wake(0.1)
    client.wake(0.2)
    assert told == [("start", "wifi", 0.0)]
    assert client.next_wake_s == 0.4
    client.wake(0.4)
    assert told[1:] == [("start", "cellular", 0.4)]
    client.on_answer(0, "cellular", 0.5)
    client.on_answer(0, "wifi", 0.6)
    assert told[2:] == [("cancel", "wifi", 0.5)]
    assert client.next_wake_s == math.inf
    (race,) = client.records(9.0)
    assert (race.winner, race.wait_s, race.redundant, race.hedged) == ("cellular", 0.5, True, False)


TASK = Request(0, 0.0, 1000, 4000)


def deciding(style, setting):
    known = radios()["nexus-one"]
    of = {"wifi": known["wifi"], "cellular": known["3g"]}
    usage = Usage(of)
    policy = ExchangePolicy(STYLES[style], SETTINGS[setting], of, ["cellular"], usage)
    for name in of:
        policy.on_attach(name, 0.0)
    policy.connected("wifi", 0.02, 0.02)
    policy.connected("cellular", 0.06, 0.06)
    return policy


def used(policy, count=15, wifi_s=0.022):
    """Some quiet exchanges over both; returns the time after them."""
    now_s = 10.0
    for _ in range(count):
        policy.measured(TASK, "wifi", wifi_s, now_s)
        policy.measured(TASK, "cellular", 0.063, now_s)
        now_s += 10.0
    return now_s


def reevaluate_after_s(chosen):
    assert callable(chosen.reevaluate_after_s)
    found = chosen.reevaluate_after_s()
    assert found is not None
    return found


MEATBALLS = ["brute-force", "brute-force, as published", "error-bounds", "bayesian"]


@pytest.mark.parametrize("style", [*MEATBALLS, "adaptive"])
def test_where_all_costs_much_the_free_network_is_used_alone(style):
    policy = deciding(style, "high")
    now_s = used(policy)
    assert policy.choose(TASK, now_s, BOTH, {}).ways == {"wifi"}


@pytest.mark.parametrize("style", MEATBALLS)
def test_silence_sends_it_over_the_other_network_too(style):
    policy = deciding(style, "low")
    now_s = used(policy, 30)
    first = policy.choose(TASK, now_s, BOTH, {})
    if first.ways == BOTH:
        # Those that do not know that they will reevaluate hedge from the start.
        assert not STYLES[style].foresees
        return
    waited_s, later = reevaluate_after_s(first), first
    while not later.ways >= {"cellular"}:
        assert waited_s < 10.0
        later = policy.choose(TASK, now_s + waited_s, BOTH, {"wifi": waited_s})
        assert later.reevaluate_after_s in (None, AGAIN_S)
        waited_s += 0.2
    assert waited_s < 2.0


def test_a_stall_is_an_error_and_no_latency():
    """After one, the published method leaves the network alone for good; ours goes on asking."""
    ways = {}
    for style in ("brute-force", "brute-force, as published"):
        policy = deciding(style, "mid")
        now_s = used(policy, 3)
        policy.measured(TASK, "wifi", 2.0, now_s)
        ways[style] = policy.choose(TASK, now_s + 20.0, BOTH, {}).ways
    assert ways["brute-force, as published"] == {"cellular"}
    assert "wifi" in ways["brute-force"]


WIFI = radios()["nexus-one"]["wifi"]


class Both(Preferring):
    """Everything over everything."""

    def choose(self, task, now_s, usable, silent):
        return Chosen(usable)


def network(kind, rtt_s, *gaps):
    times = np.arange(1, 100_001)
    for first, past in gaps:
        times = times[(times <= first * 1000) | (times > past * 1000)]
    trace = Trace(times, 100_000)
    return ReplayedNetwork(Access(NetworkKind(kind), up=trace, down=trace, rtt_s=rtt_s))


def trial(policy, at_s, *wifi_gaps):
    networks = {"wifi": network("wifi", 0.02, *wifi_gaps), "cellular": network("cellular", 0.06)}
    usage = Usage(dict.fromkeys(networks, WIFI))
    found = simulate([Request(0, at_s, 1000, 4000)], networks, policy, usage, duration_s=50.0)
    assert len(found) == 1
    return found[0], usage


def test_the_preferred_network_is_used_alone():
    record, usage = trial(Preferring("wifi", "cellular"), 10.0)
    assert (record.winner, record.redundant) == ("wifi", False)
    assert record.wait_s == pytest.approx(0.023, abs=0.002)
    assert usage.bytes_of("cellular") == 2 * HEADER_BYTES  # the connection
    assert usage.bytes_of("wifi") > 5000


def test_a_hidden_loss_is_waited_out_and_sent_again():
    record, _ = trial(Preferring("wifi", "cellular"), 10.5, (10, 20))
    assert record.winner == "cellular"
    assert record.wait_s == pytest.approx(2.5 + 0.063, abs=0.003)
    assert [way for way, _ in record.starts] == ["wifi", "cellular"]


def test_both_is_as_fast_as_the_faster_one_and_costs_twice():
    record, usage = trial(Both(), 10.0)
    assert record.winner == "wifi"
    assert record.hedged
    assert record.wait_s == pytest.approx(0.023, abs=0.002)
    # Cancelled after 23 ms: the cellular server had the request at 31, heard of the end at 53.
    assert usage.bytes_of("cellular") > 5000
    record, _ = trial(Both(), 10.5, (10, 20))
    assert record.winner == "cellular"
    assert record.wait_s == pytest.approx(0.063, abs=0.003)


def test_requests_are_seeded_and_as_the_paper_has_them():
    found = requests(12_000.0, 3)
    assert found == requests(12_000.0, 3)
    assert found != requests(12_000.0, 4)
    gaps = np.diff([request.at_s for request in found])
    assert gaps.min() >= 10.0
    assert gaps.max() <= 30.0
    assert np.mean([request.up_bytes for request in found]) == pytest.approx(1000, rel=0.05)
    assert np.mean([request.down_bytes for request in found]) == pytest.approx(4000, rel=0.05)
    assert min(request.up_bytes for request in found) >= LEAST_BYTES


HERE = ROOT / "traces"


@pytest.fixture(scope="module")
def found():
    return exchanges.run(
        places.load(HERE),
        walking=["walk-away-s7"],
        driving=["drive-past-s13"],
        trials=2,
        duration_s=200.0,
    )


def test_all_policies_under_all_settings_at_both_places(found):
    assert found["simulated"]
    for place in found["places"].values():
        assert place["synthetic"]
        assert list(place["policies"]) == list(SETTINGS)
        for by in place["policies"].values():
            assert list(by) == [*exchanges.SIMPLE, *STYLES]
            assert len({each["requests"] for each in by.values()}) == 1


def test_costs_are_what_is_waited_and_paid(found):
    for place in found["places"].values():
        for setting in SETTINGS.values():
            for each in place["policies"][setting.name].values():
                requests = each["requests"] / found["trials"]
                paid = setting.s_per_j * each["energy_j"]
                paid += setting.s_per_byte * each["cellular_kb"] * 1e3
                # (The mean wait is over trials whose numbers of requests may differ by one.)
                assert each["cost_s"] == pytest.approx(
                    each["wait_ms"] * requests / 1e3 + paid, rel=0.05, abs=0.2
                )


def test_redundancy_never_waits_longer_than_one_network(found):
    for place in found["places"].values():
        by = place["policies"]["no"]
        assert by["brute-force"]["wait_ms"] <= by["wifi-preferred"]["wait_ms"] + 1.0
        assert by["cellular-only"]["hedged_share"] == by["adaptive"]["hedged_share"] == 0.0


def test_offloading_to_a_loaded_server_is_hedged():
    known = places.load(HERE)
    figures = offload_policy.run(
        known,
        walking=["walk-away-s7"],
        driving=["drive-past-s13"],
        load="static-s5",
        base_s=0.0015,
        per_s=0.006,
        spread=0.1,
        local_passes=120,
        server_passes=15,
        trials=1,
        duration_s=70.0,
        load_duration_s=200.0,
    )
    by = figures["scenarios"]["load"]["policies"]["no"]
    assert by["brute-force"]["hedged_share"] > 0.5
    best = min(by[name]["wait_s"] for name in offload_policy.SIMPLE)
    assert by["brute-force"]["wait_s"] <= best + 0.05
    assert by["local-only"]["remote_share"] == 0.0
    assert figures["scenarios"]["load"]["others_mean"] > 2.0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"trials": 0}, "at least one"),
        ({"device": "nokia-3310"}, "no device 'nokia-3310'; there are"),
        ({"cellular": "6g"}, "has no radio '6g'; it has"),
        ({"walking": ["nowhere"]}, "no place 'nowhere'"),
        ({"driving": []}, "at least one place"),
    ],
)
def test_what_cannot_be_carried_out_is_refused(wrong, message):
    wanted = {"walking": ["walk-away-s7"], "driving": ["drive-past-s13"], "trials": 1} | wrong
    with pytest.raises(CedosError, match=message):
        exchanges.run(places.load(HERE), duration_s=30.0, **wanted)


@pytest.mark.parametrize(
    ("others", "at_s", "work_s", "done_s"),
    [
        ([], 3.0, 0.5, 3.5),
        ([(0.0, 1.5)], 0.5, 0.25, 1.0),
        ([(0.0, 1.5)], 0.5, 1.5, 3.0),
        ([(1.0, 10.0)], 0.0, 1.5, 2.0),
        ([(0.0, 1.0), (0.5, 0.2)], 5.0, 1.0, 6.0),
    ],
    ids=["alone", "equally", "the other ends first", "a later one", "gone"],
)
def test_a_processor_is_shared(others, at_s, work_s, done_s):
    assert SharedProcessor(others).finished_s(at_s, work_s) == pytest.approx(done_s)
