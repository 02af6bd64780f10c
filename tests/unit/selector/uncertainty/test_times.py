from itertools import pairwise, product
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.uncertainty.times import (
    MOST,
    gathered,
    mean_of_first,
    quantile,
    remaining,
    summed,
    survival_of_first,
)

seconds = st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=12).map(sorted)


@given(st.floats(0, 10), st.lists(seconds, max_size=3))
def test_sums_are_all_sums(fixed_s, parts):
    expected = sorted(fixed_s + sum(case) for case in product(*parts))
    assert summed(fixed_s, parts) == pytest.approx(expected)


@given(st.lists(seconds.map(lambda each: each * 30), min_size=3, max_size=3))
def test_with_many_quantities_the_mean_stays_exact(parts):
    found = summed(0.0, parts)
    assert len(found) <= MOST
    assert sum(found) / len(found) == pytest.approx(sum(sum(p) / len(p) for p in parts))


@pytest.mark.parametrize("parts", [[[nan]], [[1.0, inf]], [[-inf]], [[-3.0, 1.0]]])
def test_what_is_no_time_is_none(parts):
    assert summed(0.0, parts) == []
    assert summed(nan, [[1.0]]) == []


@given(st.lists(st.floats(0.001, 1000.0), min_size=1, max_size=60).map(sorted), st.integers(1, 20))
def test_gathering_keeps_the_mean(times, count):
    found = gathered(times, count)
    assert len(found) == min(count, len(times))
    assert sum(found) / len(found) == pytest.approx(sum(times) / len(times))
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(found))


@given(seconds, seconds)
def test_the_first_of_two_is_the_mean_over_all_pairs(a, b):
    expected = sum(min(x, y) for x in a for y in b) / (len(a) * len(b))
    assert mean_of_first([a, b]) == pytest.approx(expected, rel=1e-9)
    assert mean_of_first([a]) == pytest.approx(sum(a) / len(a))


@given(seconds, seconds, seconds)
def test_the_first_of_three_is_the_mean_over_all(a, b, c):
    expected = sum(min(case) for case in product(a, b, c)) / (len(a) * len(b) * len(c))
    assert mean_of_first([a, b, c]) == pytest.approx(expected, rel=1e-9)


@given(seconds, seconds, st.floats(0.02, 0.98))
def test_quantiles_of_the_first(a, b, q):
    survival = survival_of_first([a, b])
    found = quantile(survival, q, min(a[0], b[0]), min(a[-1], b[-1]))
    pairs = sorted(min(x, y) for x in a for y in b)
    below = sum(each < found * (1 - 2e-4) for each in pairs) / len(pairs)
    upto = sum(each <= found * (1 + 2e-4) for each in pairs) / len(pairs)
    assert below <= q + 1e-9
    assert upto >= q - 1e-9


@given(seconds, st.floats(0.0, 2000.0))
def test_what_is_left_of_a_wait(times, elapsed_s):
    left = remaining(times, elapsed_s)
    beyond = [time - elapsed_s for time in times if time > elapsed_s]
    if elapsed_s == 0.0 or beyond:
        assert left == pytest.approx(beyond)
    else:
        assert left == [pytest.approx(elapsed_s)], "longer than ever: as long again"
