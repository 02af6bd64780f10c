"""How long nothing has been acknowledged, against what is usual on this path."""

import pytest

from cedos.session.protocol.path_watch import SILENT_S, PathProgress, PathVoice, PathWatch


def seen(
    delivered: int,
    at_s: float,
    *,
    rtt_s: float | None = 0.02,
    waits: bool = True,
    repeated: int = 0,
) -> PathProgress:
    return PathProgress(waits, delivered, at_s, rtt_s, 0.02, repeated)


def test_where_nothing_waits_nothing_is_silent() -> None:
    watch = PathWatch()
    for now in (0.0, 10.0, 100.0):
        assert watch.observe(seen(5, 0.0, waits=False), now) is PathVoice.SPEAKS


def test_silence_counts_from_what_waits_and_not_from_the_last_word() -> None:
    watch = PathWatch()
    assert watch.observe(seen(5, 0.0), 100.0) is PathVoice.SPEAKS
    assert watch.observe(seen(5, 0.0), 100.15) is PathVoice.PAUSES
    assert watch.observe(seen(5, 0.0), 100.01 + SILENT_S) is PathVoice.SILENT
    assert watch.silent_s == pytest.approx(SILENT_S + 0.01)
    assert watch.observe(seen(6, 100.35), 100.36) is PathVoice.SPEAKS


@pytest.mark.parametrize(("rtt_s", "limit_s"), [(0.02, SILENT_S), (0.5, 1.5), (None, SILENT_S)])
def test_a_long_path_is_given_three_of_its_round_trips(rtt_s: float | None, limit_s: float) -> None:
    watch = PathWatch()
    watch.observe(seen(5, 0.0, rtt_s=rtt_s), 0.0)
    assert watch.observe(seen(5, 0.0, rtt_s=rtt_s), limit_s - 0.01) is not PathVoice.SILENT
    assert watch.observe(seen(5, 0.0, rtt_s=rtt_s), limit_s + 0.01) is PathVoice.SILENT


def test_a_network_that_answers_in_bursts_is_not_taken_for_dead_by_its_pauses() -> None:
    watch = PathWatch()
    watch.observe(seen(0, 0.0), 0.0)
    for k in range(1, 6):
        watch.observe(seen(k, 0.25 * k), 0.25 * k)
    assert watch.limit_s == pytest.approx(0.75)
    assert watch.observe(seen(5, 1.25), 1.95) is not PathVoice.SILENT
    assert watch.observe(seen(5, 1.25), 2.05) is PathVoice.SILENT


def test_a_silence_that_the_kernel_had_to_break_is_no_measure_of_what_is_usual() -> None:
    watch = PathWatch()
    watch.observe(seen(0, 0.0), 0.0)
    for k in range(1, 20):
        watch.observe(seen(k, 0.02 * k), 0.02 * k)
    assert watch.observe(seen(19, 0.38, repeated=3), 5.0) is PathVoice.SILENT
    assert watch.observe(seen(20, 5.1, repeated=3), 5.1) is PathVoice.SPEAKS
    assert watch.limit_s == SILENT_S


def test_what_the_kernel_repeated_between_two_looks_is_seen_as_well() -> None:
    """It repeats itself, is answered and forgets it: 0.6 s became usual, and the next death took 1.8."""
    watch = PathWatch()
    watch.observe(seen(0, 0.0, repeated=7), 0.0)
    assert watch.observe(seen(0, 0.0, repeated=7), 0.35) is PathVoice.SILENT
    watch.observe(seen(1, 0.59, repeated=8), 0.60)
    assert watch.observe(seen(1, 0.59, repeated=8), 0.80) is PathVoice.PAUSES
    watch.observe(seen(2, 0.84, repeated=9), 0.85)
    assert watch.limit_s == SILENT_S


def test_one_long_pause_hardly_makes_the_next_one_usual() -> None:
    """Acknowledgements were lost for a second, nothing had to be repeated: the next death took 1.2 s."""
    watch = PathWatch()
    watch.observe(seen(0, 0.0), 0.0)
    assert watch.observe(seen(0, 0.0), 0.4) is PathVoice.SILENT
    watch.observe(seen(90, 1.0), 1.0)
    assert watch.limit_s == pytest.approx(1.5 * SILENT_S)
