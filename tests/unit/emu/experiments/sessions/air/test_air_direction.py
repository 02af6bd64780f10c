"""The scripted link: what it carries is its opportunities, what it delays its delays."""

from hypothesis import given, settings
from hypothesis import strategies as st

from emu.experiments.sessions.air import Direction
from emu.places.traces import Trace

DELAY_S = 0.010


def link(
    times: list[int], period_ms: int, queue: int = 1000, delay_s: float = DELAY_S
) -> Direction:
    return Direction(times, period_ms, queue, [(0.0, delay_s)])


def test_a_full_packet_takes_one_opportunity_and_the_delay() -> None:
    one = link([5, 10], 10)
    one.arrive(b"first", 1500, 0.0)
    assert one.next_ms() == 5.0
    assert one.leave(14.9) == []
    assert one.next_ms() == 15.0
    assert one.leave(15.0) == [b"first"]
    assert one.next_ms() is None


def test_small_packets_share_an_opportunity_and_large_ones_span_two() -> None:
    one = link([5, 10], 10)
    for name, size in ((b"a", 500), (b"b", 500), (b"c", 1000)):
        one.arrive(name, size, 0.0)
    assert one.leave(15.0) == [b"a", b"b"]
    assert one.leave(20.0) == [b"c"]


def test_opportunities_that_nobody_used_are_lost() -> None:
    one = link([1, 2, 3, 4, 100], 100)
    one.arrive(b"late", 1500, 50.0)
    assert one.leave(109.0) == []
    assert one.leave(110.0) == [b"late"]


def test_a_full_queue_drops() -> None:
    one = link([1000], 1000, queue=2)
    for name in (b"a", b"b", b"c"):
        one.arrive(name, 1500, 0.0)
    assert one.dropped == 1
    assert one.leave(5000.0) == [b"a", b"b"]


def test_the_order_stays_where_the_delay_falls() -> None:
    one = Direction([100, 1100, 2000], 2000, 10, [(0.0, 2.0), (1.0, 0.1)])
    one.arrive(b"slow", 1500, 0.0)
    one.arrive(b"quick", 1500, 0.0)
    assert one.leave(2099.0) == []
    assert one.leave(2100.0) == [b"slow", b"quick"]


@settings(max_examples=30, deadline=None)
@given(rate=st.floats(0.2e6, 40e6), delay_ms=st.integers(0, 300))
def test_a_loaded_link_carries_its_rate(rate: float, delay_ms: int) -> None:
    trace = Trace.constant(rate, 6.0)
    one = Direction(trace.times_ms.tolist(), trace.period_ms, 10**6, [(0.0, delay_ms / 1e3)])
    for number in range(len(trace)):
        one.arrive(number.to_bytes(4, "big"), 1500, 0.0)
    got = one.leave(3000.0 + delay_ms)
    assert abs(len(got) - trace.rate_bps(0, 3.0) * 3 / 12_000) <= 2
    assert got == sorted(got)
