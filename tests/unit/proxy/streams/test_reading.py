"""How long what came lasts a program that reads slowly."""

from hypothesis import given
from hypothesis import strategies as st

from cedos.proxy.streams.unread import Reading


def test_a_program_that_reads_at_once_waits_for_what_comes() -> None:
    reading = Reading()
    assert reading.lasts_s(0.0, 0, 0) is None, "nothing comes"
    assert reading.lasts_s(2.0, 5_000_000, 5_000_000) == 0.0
    assert reading.lasts_s(4.0, 9_000_000, 8_800_000) == 0.0, "that is on its way to it"
    assert reading.lasts_s(5.9, 9_000_000, 9_000_000) is None


def test_a_conversation_beside_waits_for_no_large_data() -> None:
    reading = Reading()
    for second in range(20):
        assert reading.lasts_s(float(second), 10_000 * second, 10_000 * second) is None


def test_what_was_before_a_rest_is_no_pace() -> None:
    reading = Reading()
    reading.lasts_s(0.0, 8_000_000, 7_000_000)
    assert reading.lasts_s(300.0, 9_000_000, 8_000_000) == 0.0
    assert reading.lasts_s(301.0, 10_000_000, 9_000_000) == 1.0


def test_what_waits_lasts_by_the_programs_own_pace() -> None:
    reading = Reading()
    assert reading.lasts_s(0.0, 4_000_000, 0) == 0.0, "its pace is not known yet"
    assert reading.lasts_s(0.9, 8_000_000, 450_000) == 0.0
    assert reading.lasts_s(2.0, 9_000_000, 1_000_000) == 16.0
    # The last ten seconds count.
    for second in range(3, 20):
        lasts_s = reading.lasts_s(float(second), 9_000_000, 1_000_000 + 200_000 * (second - 2))
    assert lasts_s == (9_000_000 - 4_400_000) / 200_000


def test_a_program_that_pauses_needs_nothing_soon() -> None:
    reading = Reading()
    reading.lasts_s(0.0, 8_000_000, 100)
    assert reading.lasts_s(5.0, 8_000_000, 100) == 60.0, "a film that was paused"


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(0, 1 << 40), st.integers(0, 1 << 40))))
def test_whatever_it_sees_it_is_sane(looks: list[tuple[float, int, int]]) -> None:
    reading = Reading()
    received = read = 0
    for at_s, came, went in sorted(looks):
        received += came
        read = min(received, read + went)
        lasts_s = reading.lasts_s(at_s, received, read)
        assert lasts_s is None or 0.0 <= lasts_s <= 60.0
