"""Trials over constructed networks, where every wait can be told beforehand."""

import numpy as np
import pytest

from cedos.model import NetworkKind
from emu.experiments.meatballs.client import Record, Usage
from emu.experiments.meatballs.exchange_policy import LEAST_BYTES, Preferring, Request, requests
from emu.experiments.meatballs.exchanges import simulate
from emu.experiments.meatballs.outcome import SETTINGS
from emu.experiments.meatballs.race import Chosen
from emu.places.traces import Trace
from emu.simulation.network import HEADER_BYTES, ReplayedNetwork
from emu.testbed.access import Access


class Idle:
    """A radio that costs nothing and remembers that time went on."""

    def __init__(self) -> None:
        self.last_s = -1.0

    def carried(self, now_s: float, bytes_up: float, bytes_down: float) -> None:
        assert now_s >= self.last_s
        assert bytes_up >= 0
        assert bytes_down >= 0
        self.last_s = now_s

    def idle_s(self, now_s: float) -> float | None:
        return None if self.last_s < 0 else now_s - self.last_s

    def energy_j(self, now_s: float) -> float:
        return 0.0


class Both(Preferring):
    """Everything over everything."""

    def choose(self, task, now_s, usable, silent):
        return Chosen(usable)


def network(kind: str, rtt_s: float, *gaps: tuple[int, int]) -> ReplayedNetwork:
    times = np.arange(1, 100_001)
    for first, past in gaps:
        times = times[(times <= first * 1000) | (times > past * 1000)]
    trace = Trace(times, 100_000)
    return ReplayedNetwork(Access(NetworkKind(kind), up=trace, down=trace, rtt_s=rtt_s))


def trial(policy: Preferring, at_s: float, *wifi_gaps: tuple[int, int]) -> tuple[Record, Usage]:
    networks = {
        "wifi": network("wifi", 0.02, *wifi_gaps),
        "cellular": network("cellular", 0.06),
    }
    usage = Usage({name: Idle() for name in networks})
    found = simulate([Request(0, at_s, 1000, 4000)], networks, policy, usage, duration_s=50.0)
    assert len(found) == 1
    return found[0], usage


def test_the_preferred_network_is_used_alone() -> None:
    record, usage = trial(Preferring("wifi", "cellular"), 10.0)
    assert (record.winner, record.redundant) == ("wifi", False)
    assert record.wait_s == pytest.approx(0.023, abs=0.002)
    assert usage.bytes_of("cellular") == 2 * HEADER_BYTES  # the connection
    assert usage.bytes_of("wifi") > 5000


def test_a_hidden_loss_is_waited_out_and_sent_again() -> None:
    record, _ = trial(Preferring("wifi", "cellular"), 10.5, (10, 20))
    assert record.winner == "cellular"
    assert record.wait_s == pytest.approx(2.5 + 0.063, abs=0.003)
    assert [way for way, _ in record.starts] == ["wifi", "cellular"]


def test_a_known_loss_costs_nothing() -> None:
    record, _ = trial(Preferring("wifi", "cellular"), 15.0, (10, 20))
    assert record.wait_s == pytest.approx(0.063, abs=0.003)


def test_both_is_as_fast_as_the_faster_one_and_costs_twice() -> None:
    record, usage = trial(Both(), 10.0)
    assert record.winner == "wifi"
    assert record.hedged
    assert record.wait_s == pytest.approx(0.023, abs=0.002)
    # Cancelled after 23 ms: the cellular server had the request at 31, heard of the end at 53.
    assert usage.bytes_of("cellular") > 5000
    record, _ = trial(Both(), 10.5, (10, 20))
    assert record.winner == "cellular"
    assert record.wait_s == pytest.approx(0.063, abs=0.003)


def test_an_answer_that_is_not_under_way_yet_is_prevented() -> None:
    # The cellular request waits for the end of an outage; by then the server was told to forget it.
    networks = {"wifi": network("wifi", 0.02), "cellular": network("cellular", 0.06, (10, 12))}
    usage = Usage({name: Idle() for name in networks})
    simulate([Request(0, 10.5, 1000, 4000)], networks, Both(), usage, duration_s=50.0)
    assert usage.bytes_of("cellular") < 1000 + 5 * HEADER_BYTES


def test_nobody_is_answered_without_a_network() -> None:
    record, _ = trial(Preferring("ethernet"), 30.0)
    assert not record.answered
    assert record.wait_s == pytest.approx(20.0)


def test_who_waits_is_answered_when_a_network_comes() -> None:
    record, _ = trial(Preferring("wifi"), 30.0, (20, 90))
    assert record.winner == "wifi"
    assert record.wait_s == pytest.approx(60.023, abs=0.003)


def test_an_answer_at_the_very_instant_of_a_loss() -> None:
    """Wi-Fi is noticed to be gone at 13 s; the cellular answer comes in the same millisecond."""

    class Late(Preferring):
        def choose(self, task, now_s, usable, silent):
            return Chosen(usable if silent else frozenset({"wifi"}), 2.438)

    record, _ = trial(Late(), 10.5, (10, 20))
    assert record.winner == "cellular"
    assert record.wait_s == pytest.approx(2.5)


def test_requests_are_seeded_and_as_the_paper_has_them() -> None:
    found = requests(12_000.0, 3)
    assert found == requests(12_000.0, 3)
    assert found != requests(12_000.0, 4)
    gaps = np.diff([request.at_s for request in found])
    assert gaps.min() >= 10.0
    assert gaps.max() <= 30.0
    assert np.mean([request.up_bytes for request in found]) == pytest.approx(1000, rel=0.05)
    assert np.mean([request.down_bytes for request in found]) == pytest.approx(4000, rel=0.05)
    assert min(request.up_bytes for request in found) >= LEAST_BYTES


def test_the_settings_are_those_of_the_table() -> None:
    assert [1 / SETTINGS[name].s_per_j for name in ("low", "mid", "high")] == [100, 10, 1]
    assert [1e-3 / SETTINGS[name].s_per_byte for name in ("low", "mid", "high")] == [100, 10, 1]
