"""A stream over several networks, random loss, windows after idle times, and estimates of rates."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.model import NetworkKind
from cedos.session.protocol.schedulers.swtc import Swtc
from emu.places.traces import Trace
from emu.simulator.link import Clock, Network, Parcel
from emu.simulator.stream import Stream, Westwood
from emu.simulator.tcp import PAYLOAD_BYTES, TcpSettings
from emu.testbed.access import Access


def network(clock, rate_bps, loss=0.0, seed=1):
    down, up = Trace.constant(rate_bps, 10.0), Trace.constant(2e6, 10.0)
    access = Access(NetworkKind.CELLULAR, up, down, 0.098, 50, loss)
    return Network(clock, access, Random(seed))


def stream(clock, rates, *, swtc, window=5e5, loss=0.0):
    """Return a stream and what its client has in order, by arrival."""
    fronts = []
    networks = [network(clock, rate, loss, seed) for seed, rate in enumerate(rates)]
    scheduler = Swtc(PAYLOAD_BYTES) if swtc else None
    made = Stream(clock, networks, scheduler, window_bytes=window, on_data=fronts.append)
    return made, fronts


@pytest.mark.parametrize("swtc", [True, False])
def test_helpers_add_up(swtc):
    clock = Clock()
    made, fronts = stream(clock, [700e3, 600e3, 500e3], swtc=swtc)
    made.write(2000)
    clock.run(14.0)
    # 1.8 Mbit/s are 150 packets each second.
    assert fronts[-1] > 0.9 * 14.0 * 150


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.sampled_from([2e5, 4e5, 7e5, 1e6]), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from([8e3, 64e3, 500e3]),
    st.sampled_from([0.0, 0.05]),
)
def test_all_packets_come_in_order_and_within_the_window(rates, swtc, window, loss):
    clock = Clock()
    made, fronts = stream(clock, rates, swtc=swtc, window=window, loss=loss)
    for at in range(6):
        clock.at(0.4 * at, made.write, 20)
    clock.run(60.0)
    assert fronts[-1] == made.written == 120 == made.counts.packets
    assert fronts == sorted(set(fronts))
    assert made.counts.held_most * PAYLOAD_BYTES <= window


def test_a_helper_that_leaves_takes_nothing_with_it():
    clock = Clock()
    made, fronts = stream(clock, [700e3, 700e3], swtc=True)
    gone = network(clock, 700e3)
    path = made.join(gone)
    made.write(300)
    clock.run(0.5)
    assert path.sender.inflight
    gone.fail()
    clock.run(1.0)
    made.leave(path)
    clock.run(8.0)
    assert fronts[-1] == 300
    assert len(made.paths) == 2


def test_packets_are_lost_at_the_rate_that_is_set():
    clock = Clock()
    link, came = network(clock, 5e6, 0.1), 0

    def take(_, packets):
        nonlocal came
        came += packets

    for number in range(2000):
        clock.at(0.01 * number, link.to_client, Parcel(take, number, 1))
    clock.run(30.0)
    assert 0.07 < 1 - came / 2000 < 0.13
    assert link.lossy


@pytest.mark.parametrize(("idle_leaves", "expected"), [(0.0, 3), (1.0, 0)])
def test_a_window_begins_again_after_an_idle_time(idle_leaves, expected):
    clock = Clock()
    made = Stream(
        clock,
        [network(clock, 2e6)],
        None,
        window_bytes=5e5,
        on_data=lambda front: None,
        settings=TcpSettings(first_window=2.0, idle_leaves=idle_leaves),
    )
    for at in range(4):
        clock.at(2.0 * at, made.write, 40)
    clock.run(6.05)
    sender = made.paths[0].sender
    assert sender.restarts == expected
    assert (sender.cwnd <= 4) is bool(expected)


def test_each_idle_time_out_halves_linux_window():
    """Halve as Linux did over 60 ms, two time-outs between packets: 292, 73, 18 and 10 packets."""
    clock = Clock()
    made, _ = stream(clock, [20e6], swtc=False)
    made.write(400)
    clock.run(1.0)
    windows = []
    for again in range(6):
        # A time-out takes 0.3 s, so one passes.
        clock.run(1.0 + 0.5 * again)
        made.write(1)
        windows.append(made.paths[0].sender.cwnd)
    halved = [pytest.approx(max(10.0, windows[0] / 2**each), abs=1.0) for each in range(6)]
    assert windows[0] > 60
    assert windows == halved


def test_the_estimate_finds_a_steady_rate():
    estimate = Westwood()
    for number in range(300):
        estimate.on_acknowledged(1250, 0.01 * number)
    assert estimate.rate_bps == pytest.approx(1e6, rel=0.01)
