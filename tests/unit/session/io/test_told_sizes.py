"""What was told counts for its time, however often more is told."""

from cedos.model import Direction
from cedos.session.io.advice import MOST_TOLD_BYTES, ToldSizes

UP, DOWN = Direction.UP, Direction.DOWN


def test_what_is_told_adds_up_by_label_and_direction() -> None:
    told = ToldSizes(2.0)
    told.add(10.0, 1, 500, DOWN)
    told.add(10.1, 1, 300, DOWN)
    told.add(11.0, 0, 70, UP)
    found = told.bytes_by_rank(11.5)
    assert (found[DOWN][1], found[UP][0], sum(map(sum, found.values()))) == (800, 70, 870)


def test_each_word_counts_for_its_own_time_while_others_follow() -> None:
    told = ToldSizes(2.0)
    for tenth in range(100):
        told.add(tenth / 10, 1, 100, DOWN)
    assert 1_500 <= told.bytes_by_rank(9.9)[DOWN][1] <= 2_000
    assert told.bytes_by_rank(12.0)[DOWN][1] == 0


def test_endless_promises_come_to_a_bound() -> None:
    told = ToldSizes(2.0)
    for number in range(10_000):
        told.add(number / 10_000, 1, 10**17, UP)
    assert told.bytes_by_rank(1.0)[UP][1] == MOST_TOLD_BYTES
    assert len(told._parts) <= 8
    for second in range(1_000):  # though nobody asks
        told.add(float(second), 1, 1, UP)
    assert len(told._parts) <= 8
