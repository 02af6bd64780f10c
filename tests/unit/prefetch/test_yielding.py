"""Prefetching keeps out of other programs' way: its window, and when it does not read."""

from cedos.prefetch.background_window import LEAST_BYTES, MOST_BYTES, BackgroundWindow
from cedos.prefetch.other_programs import OtherPrograms


def settled(
    capacity_bps: float, base_s: float, rounds: int = 300
) -> tuple[BackgroundWindow, float]:
    """A link with a queue as long as it gets; the window, and the last queue in seconds."""
    window, queue_s = BackgroundWindow(), 0.0
    for _ in range(rounds):
        rtt_s = max(base_s, 8 * window.bytes / capacity_bps)
        queue_s = rtt_s - base_s
        window.observe(rtt_s, min(window.bytes, capacity_bps / 8 * rtt_s))
    return window, queue_s


def test_it_fills_the_path_and_no_queue() -> None:
    window, queue_s = settled(10e6, 0.026)
    assert window.bytes > 0.7 * 10e6 / 8 * 0.026
    assert queue_s < 0.010


def test_it_gives_way_to_a_queue_of_others_and_never_stops() -> None:
    window, _ = settled(10e6, 0.026)
    for _ in range(100):
        window.observe(0.100, window.bytes)
    assert window.bytes == LEAST_BYTES
    assert settled(1e12, 0.1)[0].bytes == MOST_BYTES


def test_nothing_known_changes_nothing() -> None:
    window = BackgroundWindow()
    before = window.bytes
    assert window.observe(None, 1000) == before


def test_others_are_told_from_oneself() -> None:
    opens = [7]
    others = OtherPrograms(lambda: opens[0])
    assert not others.busy(1.0)
    others.own()
    opens[0] += 1
    assert not others.busy(1.1)
    opens[0] += 1
    assert others.busy(1.2)
    assert others.busy(1.5)
    assert not others.busy(1.7)


def test_who_opens_all_the_time_does_not_stop_it_for_ever() -> None:
    opens = [0]
    others = OtherPrograms(lambda: opens[0])
    busy = []
    for step in range(500):
        opens[0] += step % 10 == 0
        busy.append(others.busy(1.0 + 0.01 * step))
    assert 0.15 < busy.count(False) / len(busy) < 0.5


def test_a_host_that_does_not_count_is_never_busy() -> None:
    assert not OtherPrograms(lambda: None).busy(1.0)
