"""The simulator against what can be counted by hand, and against what must never happen."""

import math
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.model import Direction, NetworkKind
from emu.places import places, synth
from emu.places.traces import Trace
from emu.runs import experiment, fidelity, runs
from emu.runs.scenario import Load, Scenario
from emu.simulator.connection import Transfer
from emu.simulator.link import Clock, Network, Parcel
from emu.simulator.link import Direction as LinkDirection
from emu.testbed.access import Access

WIFI, CELLULAR = NetworkKind.WIFI, NetworkKind.CELLULAR
PAYLOAD_BYTES = 1448


def network(clock, rate_bps=12e6, rtt_s=0.04, kind=WIFI, queue_packets=None):
    trace = Trace.constant(rate_bps, 10.0)
    return Network(clock, Access(kind, trace, trace, rtt_s, queue_packets))


def took(size_bytes, *, down=True, rate_bps=12e6, rtt_s=0.04):
    clock = Clock()
    transfer = Transfer(clock, [network(clock, rate_bps, rtt_s)], size_bytes, down=down)
    clock.run(60.0)
    assert transfer.ended_s is not None
    return transfer.ended_s


# The link.


def delivered(trace, limit, *puts):
    """Put parcels at instants; return when each packet came, and what was dropped of each parcel."""
    clock = Clock()
    link = LinkDirection(clock, trace, limit)
    came = []

    def take(parcel, packets):
        came.extend([clock.now_s] * packets)

    parcels = [Parcel(take, 0, packets) for _, packets in puts]
    for (at_s, _), parcel in zip(puts, parcels, strict=True):
        clock.at(at_s, link.put, parcel)
    clock.run(100.0)
    return came, [parcel.dropped for parcel in parcels]


def test_a_packet_waits_for_the_next_opportunity_and_a_second_one_for_the_one_after():
    trace = Trace([10, 20, 30], 1000)
    came, _ = delivered(trace, 60, (0.015, 2))
    assert came == pytest.approx([0.020, 0.030])


def test_an_opportunity_that_nobody_uses_is_lost_and_the_trace_repeats():
    came, _ = delivered(Trace([10, 10, 10], 1000), 60, (0.0, 1), (0.5, 2))
    # Of the three at 10 ms one is used; the next ones mark the period, and lie in the next period.
    assert came == pytest.approx([0.010, 1.0, 1.010])


def test_a_full_queue_drops_the_last_packets_and_small_ones_but_no_acknowledgement():
    clock = Clock()
    link = LinkDirection(clock, Trace([500], 1000), 5)
    seen = []
    data = Parcel(lambda parcel, packets: seen.append(f"{packets} packets"), 0, 8)
    link.put(data)
    link.put(Parcel(lambda parcel, packets: seen.append("SYN")))
    link.put(Parcel(lambda parcel, packets: seen.append("ACK"), cumulative=True))
    clock.run(20.0)
    assert data.dropped == 3
    assert seen == ["1 packets"] * 5 + ["ACK"]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 40)), min_size=1, max_size=30),
    st.integers(1, 80),
)
def test_no_packet_is_lost_twice_or_comes_early(puts, limit):
    puts.sort()
    trace = Trace.constant(3e6, 2.0)
    came, dropped = delivered(trace, limit, *puts)
    assert len(came) == sum(packets for _, packets in puts) - sum(dropped)
    assert came == sorted(came)
    assert all(puts[0][0] <= at_s + 1e-6 for at_s in came)
    # Never more than the trace has opportunities for.
    for number, at_s in enumerate(came):
        assert number < trace.rate_bps(0.0, at_s + 0.002) * (at_s + 0.002) / 12_000 + 2


# One connection.


@pytest.mark.parametrize("packets", [30, 70, 150])
def test_slow_start_doubles_the_window_each_round_trip(packets):
    # On a link so fast that only windows count: 10, 20, 40, 80 packets.
    rounds = math.ceil(math.log2(packets / 10 + 1))
    expected_s = (1 + rounds) * (0.4 + 0.0022)
    assert took(packets * PAYLOAD_BYTES, rate_bps=600e6, rtt_s=0.4) == pytest.approx(
        expected_s, abs=0.02
    )


@pytest.mark.parametrize("queue_packets", [20, 60, 400])
def test_a_large_download_reaches_most_of_the_rate_whatever_the_queue(queue_packets):
    packets = 7000
    clock = Clock()
    transfer = Transfer(
        clock, [network(clock, queue_packets=queue_packets)], packets * PAYLOAD_BYTES, down=True
    )
    clock.run(60.0)
    assert packets / 1000 < transfer.ended_s < 1.25 * packets / 1000


def test_two_downloads_share_a_link():
    clock = Clock()
    link = network(clock)
    both = [Transfer(clock, [link], 4_000_000, down=True) for _ in range(2)]
    clock.run(60.0)
    ends = [transfer.ended_s or math.inf for transfer in both]
    assert max(ends) == pytest.approx(2 * 4_000_000 / PAYLOAD_BYTES / 1000, rel=0.15)
    assert min(ends) > 0.5 * max(ends)


def silent(from_ms, to_ms, period_ms=60_000):
    """A packet each millisecond but between two instants."""
    times = [ms for ms in range(1, period_ms + 1) if not from_ms < ms <= to_ms]
    return Trace(times, period_ms)


def test_an_outage_is_survived_and_what_the_queue_kept_goes_on_at_once():
    clock = Clock()
    trace = silent(500, 4000)
    transfer = Transfer(
        clock, [Network(clock, Access(WIFI, trace, trace, 0.04))], 1_500_000, down=True
    )
    clock.run(60.0)
    assert 4.5 < transfer.ended_s < 6.5


# MPTCP.


def multipath(size_bytes, wifi, cellular, *, down=True):
    clock = Clock()
    networks = [
        Network(clock, Access(WIFI, wifi, wifi, 0.02)),
        Network(clock, Access(CELLULAR, cellular, cellular, 0.06)),
    ]
    transfer = Transfer(clock, networks, size_bytes, down=down)
    clock.run(120.0)
    return transfer


def test_a_large_mptcp_download_takes_both_networks():
    steady = Trace.constant(12e6, 10.0)
    transfer = multipath(10_000_000, steady, steady)
    alone_s = 10_000_000 / PAYLOAD_BYTES / 1000
    assert 0.5 * alone_s < transfer.ended_s < 0.65 * alone_s
    assert all(packets > 2500 for packets in transfer.packets.values())


@pytest.mark.parametrize("down", [True, False])
def test_what_a_dead_network_holds_comes_over_the_other_one(down):
    dies = silent(300, 60_000, 120_000)
    transfer = multipath(3_000_000, dies, Trace.constant(12e6, 10.0), down=down)
    assert transfer.ended_s < 10.0


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(50, 3000), st.integers(0, 30)), min_size=3, max_size=8),
    st.integers(1, 400_000),
    st.booleans(),
    st.booleans(),
)
def test_every_transfer_ends_once_where_its_networks_go_on(spells, size_bytes, down, both):
    # A network of spells of so many milliseconds with a packet every so many, 0: silence.
    times, at_ms = [], 0
    for length_ms, every_ms in spells:
        times += list(range(at_ms + every_ms, at_ms + length_ms, every_ms)) if every_ms else []
        at_ms += length_ms
    rough = Trace([*times, *range(at_ms, at_ms + 2000, 2)], at_ms + 2000)
    clock = Clock()
    networks = [Network(clock, Access(WIFI, rough, rough, 0.03))]
    if both:
        networks.append(network(clock, kind=CELLULAR))
    transfer = Transfer(clock, networks, size_bytes, down=down)
    clock.run(400.0)
    assert transfer.ended_s is not None
    assert sum(transfer.packets.values()) * PAYLOAD_BYTES >= size_bytes


# A run.


@pytest.fixture
def made(tmp_path):
    directory = tmp_path / "places"
    directory.mkdir()
    synth.generate("walk-away", 3, 40, directory)
    return directory


LOAD = Load(
    name="x",
    host="198.51.100.2",
    direction=Direction.DOWN,
    min_bytes=1000,
    max_bytes=900_000,
    per_minute=120.0,
)


def run_folder(made, out, *, seed=1):
    wanted = Scenario(
        load=(LOAD,),
        duration_s=8.0,
        engine="simulator",
        policies=("wifi-first", "mptcp-cellular", "cedos", "cedos-gateway"),
        seed=seed,
    )
    known = places.load(made)
    experiment.run(experiment.resolve(wanted, known), known, out, lambda share, what: None)
    return out


def test_the_same_seed_gives_the_same_run_folder_byte_for_byte(made, tmp_path):
    def contents(out, seed):
        folder = run_folder(made, tmp_path / out, seed=seed)
        return {
            file.relative_to(folder): file.read_bytes()
            for file in folder.rglob("*")
            # What the environment says of the machine is no result.
            if file.is_file() and file.name != "environment.json"
        }

    first = contents("one", 1)
    assert len(first) >= 6
    assert first == contents("two", 1)
    assert first != contents("other", 2)


def test_a_run_that_was_as_simulated_is_wholly_faithful(made, tmp_path):
    recorded = runs.read(run_folder(made, tmp_path / "run"))
    live = msgspec.structs.replace(recorded.scenario, engine="mahimahi")
    found = fidelity.figures([replace(recorded, scenario=live)], places.load(made))
    together = found["together"]
    assert together["n"] == len(recorded.flows)
    assert (together["mean_ratio"], together["near_share"]) == (1.0, 1.0)
    assert together["means_within_share"] == 1.0
    assert set(found["policies"]) == {"wifi-first", "mptcp-cellular", "cedos", "cedos-gateway"}
    assert found["speed"]["core"] > 0.0
