"""Sets of positions against Python's own sets."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.session.protocol.intervals import CumulativeSet, IntervalSet

SPANS = st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1]))
STEPS = st.lists(st.tuples(st.booleans(), SPANS), max_size=40)


@given(STEPS, SPANS)
@settings(max_examples=300, deadline=None)
def test_intervals_are_a_set(
    steps: list[tuple[bool, tuple[int, int]]], asked: tuple[int, int]
) -> None:
    intervals, model = IntervalSet(), set[int]()
    for add, (start, end) in steps:
        (intervals.add if add else intervals.remove)(start, end)
        model = model | set(range(start, end)) if add else model - set(range(start, end))
        pairs = list(intervals)
        assert {each for pair in pairs for each in range(*pair)} == model
        assert all(left[1] < right[0] for left, right in pairwise(pairs))
        assert all(start < end for start, end in pairs)
    start, end = asked
    assert intervals.covers(start, end) == (set(range(start, end)) <= model)
    holes = intervals.missing(start, end)
    assert {each for pair in holes for each in range(*pair)} == set(range(start, end)) - model
    assert len(intervals) == len(list(intervals))


@given(st.integers(0, 20), st.lists(SPANS, max_size=30), SPANS)
@settings(max_examples=300, deadline=None)
def test_progress_is_a_set_that_is_full_below_its_floor(
    floor: int, spans: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    progress, model = CumulativeSet(floor), set(range(floor))
    for start, end in spans:
        progress.add(start, end)
        model |= set(range(start, end))
        assert progress.floor == next(each for each in range(200) if each not in model)
        assert progress.top == max(model, default=-1) + 1
    start, end = asked
    assert progress.covers(start, end) == (set(range(start, end)) <= model)
    holes = progress.missing(start, end)
    assert {each for pair in holes for each in range(*pair)} == set(range(start, end)) - model
