"""The experiments of sessions: scripted networks, applications, plans."""

import asyncio
import socket
import threading
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.model import NetworkKind
from emu.experiments.sessions import applications, cedos_tables, dtp, intnw
from emu.experiments.sessions.air import Direction
from emu.experiments.sessions.application_link import (
    BACKGROUND_LARGE,
    FOREGROUND_SMALL,
    Asking,
    TcpLink,
    answer,
)
from emu.experiments.sessions.world import VIRTUAL, ideal, in_batches, real
from emu.places.traces import Trace
from emu.testbed.access import LTE, WLAN, Access
from emu.testbed.counters import Sample

DELAY_S = 0.010


def link(times, period_ms, queue=1000, delay_s=DELAY_S):
    return Direction(times, period_ms, queue, [(0.0, delay_s)])


def test_small_packets_share_an_opportunity_and_large_ones_span_two():
    one = link([5, 10], 10)
    for name, size in ((b"a", 500), (b"b", 500), (b"c", 1000)):
        one.arrive(name, size, 0.0)
    assert one.leave(15.0) == [b"a", b"b"]
    assert one.leave(20.0) == [b"c"]


def test_the_order_stays_where_the_delay_falls():
    one = Direction([100, 1100, 2000], 2000, 10, [(0.0, 2.0), (1.0, 0.1)])
    one.arrive(b"slow", 1500, 0.0)
    one.arrive(b"quick", 1500, 0.0)
    assert one.leave(2099.0) == []
    assert one.leave(2100.0) == [b"slow", b"quick"]


@settings(max_examples=30)
@given(rate=st.floats(0.2e6, 40e6), delay_ms=st.integers(0, 300))
def test_a_loaded_link_carries_its_rate(rate, delay_ms):
    trace = Trace.constant(rate, 6.0)
    one = Direction(trace.times_ms.tolist(), trace.period_ms, 10**6, [(0.0, delay_ms / 1e3)])
    for number in range(len(trace)):
        one.arrive(number.to_bytes(4, "big"), 1500, 0.0)
    got = one.leave(3000.0 + delay_ms)
    assert abs(len(got) - trace.rate_bps(0, 3.0) * 3 / 12_000) <= 2
    assert got == sorted(got)


def access(kind, rates_mbps, rtt_s):
    """Return an access network with one rate a second."""
    times = [
        1000 * second + round(1000 * (k + 0.5) / max(1, round(1e6 * rate / 12_000)))
        for second, rate in enumerate(rates_mbps)
        for k in range(round(1e6 * rate / 12_000))
    ]
    trace = Trace(times, 1000 * len(rates_mbps))
    return Access(kind, up=trace, down=trace, rtt_s=rtt_s)


BOTH = {
    "wifi": access(NetworkKind.WIFI, [3.0, 3.0, 0.0, 0.6], 0.02),
    "cellular": access(NetworkKind.CELLULAR, [1.2, 1.2, 1.2, 1.2], 0.4),
}


def rates(trace):
    return [round(rate / 1e6, 1) for rate in trace.bins(1.0)]


@pytest.mark.parametrize(
    ("kind", "wanted", "rtts"),
    [
        ("lowest-latency", [3.0, 3.0, 1.2, 0.6], [(0.0, 0.02), (2.0, 0.4), (3.0, 0.02)]),
        ("highest-bandwidth", [3.0, 3.0, 1.2, 1.2], [(0.0, 0.02), (2.0, 0.4)]),
        ("aggregate", [4.2, 4.2, 1.2, 1.8], [(0.0, 0.02), (2.0, 0.4), (3.0, 0.02)]),
    ],
)
def test_an_ideal_network(kind, wanted, rtts):
    found = ideal(BOTH, kind)
    assert found.name == VIRTUAL
    assert rates(found.down) == wanted
    assert rates(found.up) == wanted
    assert list(found.rtts) == rtts
    assert found.carrier is None


def test_the_client_learns_late_that_a_network_is_gone():
    found = real(BOTH["wifi"], "wlan0", 0.5)
    assert found.carrier is not None
    # The contact that ends the period goes on at its beginning.
    assert (-1.0, 2.5) in [tuple(each) for each in found.carrier]


def quiet(share, what):
    """No bar."""


@pytest.mark.parametrize("duration_s", [9.0, 15.0, 60.0, 900.0])
def test_urgent_messages_come_in_episodes(duration_s):
    at_s = applications.urgent_at_s(duration_s, 3)
    assert len(at_s) == applications.EPISODES * applications.PER_EPISODE
    assert at_s[0] >= 0
    assert at_s[-1] <= duration_s + applications.EPISODE_S


async def test_over_tcp_an_urgent_answer_waits_for_those_asked_before():
    listening = socket.create_server(("127.0.0.1", 0))
    near = socket.create_connection(listening.getsockname())
    far, _ = listening.accept()
    listening.close()
    ends = []
    client, server = TcpLink(near), TcpLink(far)
    serving = asyncio.ensure_future(answer(server))
    asking = Asking(client)
    order = []
    for name, size, label in (
        ("large", 3_000_000, BACKGROUND_LARGE),
        ("urgent", 10, FOREGROUND_SMALL),
    ):
        _, done = await asking.ask(size, label)
        done.add_done_callback(lambda _, name=name: order.append(name))
        ends.append(done)
    async with asyncio.timeout(60):
        await asyncio.gather(*ends)
    serving.cancel()
    asking.close()
    await asyncio.sleep(0)
    near.close()
    far.close()
    assert order == ["large", "urgent"]


def test_nobody_begins_before_all_are_ready():
    begun = []
    arrived = threading.Event()

    def task(name, ready):
        if name == "late":
            arrived.wait(20)
        else:
            arrived.set()
        ready()
        begun.append(name)
        return name

    tasks = {name: partial(task, name) for name in ("early", "late")}
    assert in_batches(tasks, 2, quiet) == {"early": "early", "late": "late"}
    assert sorted(begun) == ["early", "late"]


def test_a_summary_is_of_trials():
    trials = [
        {"foreground_s": [1.0, 3.0], "background_bytes": 1_000_000, "background_s": 8.0},
        {"foreground_s": [4.0], "background_bytes": 1_000_000, "background_s": 4.0},
    ]
    found = intnw.summary(trials)
    assert found["foreground_s"] == 3.0
    assert found["foreground_s_trials"] == [2.0, 4.0]
    assert found["background_mbps"] == pytest.approx(1.5)


@pytest.mark.parametrize(("size_mb", "gaps"), [(77, 0), (154, 1), (308, 1)])
def test_the_bound_waits_for_the_gaps_that_it_meets(size_mb, gaps):
    plan = dtp.plan(size_mb, 20, 3e6, 0.02)
    assert plan.bound_s() == pytest.approx((8 * size_mb / 3 + gaps * dtp.GAP_S) / 20)


def test_energy_is_that_of_life():
    """A sixtieth of the time: each second with data is a minute of the radio's power."""
    plan = dtp.plan(154, 60, 3e6, 0.02)
    received = [0, 100, 200, 200, 200, 300]
    samples = [Sample(100.0 + at, "wlan0", each, 0) for at, each in enumerate(received)]
    assert dtp.energy_j(samples, plan) == pytest.approx(3 * 60 * (0.404 - 0.034))
    cellular = dtp.undisturbed(plan, 0.15)
    # The tail of 4 and 6 s fits into the pause, and follows the end.
    tail_j = 4.0 * 0.892 + 6.0 * 0.396
    assert dtp.energy_j(samples, cellular) == pytest.approx(3 * 60 * 0.892 + 2 * tail_j)


def test_delays_are_between_the_last_and_the_first_packet():
    networks, planned = cedos_tables.script("one-at-a-time", 2, 10.0, 5e6)
    assert [network.carrier for network in networks] == [
        [(0.0, 10.0), (20.0, 30.0)],
        [(10.0, 20.0)],
    ]
    began_s = 1000.0
    seen = {WLAN: [1001.0, 1009.99, 1020.03, 1025.0], LTE: [1010.10, 1015.0, 1019.98]}
    silences = [[1009.99, 1010.15], [1019.98, 1020.08], [1028.0, 1029.0]]
    found = cedos_tables.delays(planned, seen, silences, began_s, 10.0)
    assert found["wifi-to-lte"]["packets_s"] == pytest.approx([0.11])
    assert found["wifi-to-lte"]["silences_s"] == pytest.approx([0.16])
    assert found["lte-to-wifi"]["packets_s"] == pytest.approx([0.05])
    assert found["lte-to-wifi"]["silences_s"] == pytest.approx([0.10])
