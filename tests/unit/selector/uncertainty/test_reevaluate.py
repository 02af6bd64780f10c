from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.uncertainty.reevaluate import Reevaluation, tipping_point


def test_silence_is_news_after_twice_the_expected_time_and_then_every_200_ms() -> None:
    watch = Reevaluation(10.0, 0.5)
    assert not watch.due(10.9)
    assert not watch.late(10.9)
    assert watch.late(11.0)
    assert watch.due(11.0)
    assert not watch.due(11.1)
    assert watch.due(11.2)
    assert watch.next_at_s == pytest.approx(11.4)
    assert watch.due(20.0)
    assert watch.next_at_s == pytest.approx(20.2), "what was missed is not made up for"


def test_networks_that_come_and_go_are_news_at_once_and_once() -> None:
    watch = Reevaluation(10.0, 60.0)
    assert not watch.due(10.1)
    watch.changed()
    assert watch.due(10.2)
    assert not watch.due(10.3)


def test_progress_is_news_and_silence_counts_anew() -> None:
    watch = Reevaluation(10.0, 1.0)
    assert watch.due(12.5)
    watch.progressed(12.6, 2.0)
    assert watch.due(12.7)
    assert not watch.late(16.5)
    assert not watch.due(16.5)
    assert watch.due(16.7)


@pytest.mark.parametrize("expected_s", [inf, nan, -1.0])
def test_without_an_expectation_only_news_counts(expected_s: float) -> None:
    watch = Reevaluation(0.0, expected_s)
    assert not watch.due(1e9)
    watch.changed()
    assert watch.due(1e9)


@given(st.floats(0.5, 99.5), st.floats(0.001, 0.5))
def test_the_tipping_point_is_found_as_exactly_as_asked(tips_at: float, granularity: float) -> None:
    found = tipping_point(lambda x: x >= tips_at, 0.0, 100.0, granularity)
    assert found is not None
    assert tips_at <= found <= tips_at + granularity


def test_what_does_not_tip_has_no_tipping_point() -> None:
    assert tipping_point(lambda _: "stay", 0.0, 100.0, 0.1) is None


def test_it_ends_even_where_no_granularity_can_be_reached() -> None:
    assert tipping_point(lambda x: x > 0.3, 0.0, 1.0, 0.0) == pytest.approx(0.3)
