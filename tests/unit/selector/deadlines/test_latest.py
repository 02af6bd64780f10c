"""When transfers must begin at the latest."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.deadlines.deadline_flow import DeadlineFlow, expected_bytes
from cedos.selector.deadlines.latest import latest_begins, next_begin_s


def test_one_begins_so_late_that_it_just_ends_in_time() -> None:
    assert latest_begins([DeadlineFlow("a", 1e6, 100.0)], 8e6) == {"a": 99.0}


def test_what_comes_before_leaves_the_next_one_its_time() -> None:
    flows = [DeadlineFlow("b", 10e6, 20.0), DeadlineFlow("a", 5e6, 18.0)]
    assert latest_begins(flows, 8e6) == {"b": 10.0, "a": 5.0}
    assert next_begin_s(flows, 8e6) == 5.0


def test_an_early_deadline_is_not_put_off_by_a_later_one() -> None:
    flows = [DeadlineFlow("a", 5e6, 18.0), DeadlineFlow("b", 1e6, 100.0)]
    assert latest_begins(flows, 8e6) == {"a": 13.0, "b": 99.0}


def test_it_wants_to_be_ready_before() -> None:
    assert next_begin_s([DeadlineFlow("a", 1e6, 100.0)], 8e6, spare_s=4.0) == 95.0


def test_its_own_limit_counts() -> None:
    assert next_begin_s([DeadlineFlow("a", 1e6, 100.0, most_bps=1e6)], 8e6) == 92.0


def test_without_any_rate_it_is_too_late_and_without_bytes_it_is_never() -> None:
    assert next_begin_s([DeadlineFlow("a", 1.0, 100.0)], 0.0) == -inf
    assert next_begin_s([DeadlineFlow("a", 0.0, 100.0)], 8e6) == inf
    assert next_begin_s([], 8e6) == inf


def test_the_unknown_goes_on_for_as_long_as_it_has() -> None:
    assert expected_bytes(0) == 10e6
    assert expected_bytes(50e6) == 50e6


@given(
    st.lists(st.tuples(st.floats(0, 1e9), st.floats(0, 1e5)).map(lambda pair: pair), max_size=30),
    st.floats(1e3, 1e9),
)
def test_whoever_begins_then_is_in_time(flows: list[tuple[float, float]], rate_bps: float) -> None:
    """Serving by deadline from the first must-begin on meets every deadline, and nothing later does."""
    known = [DeadlineFlow(number, *flow) for number, flow in enumerate(flows)]
    at_s = next_begin_s(known, rate_bps)
    if at_s == inf:
        return
    slack = []
    for flow in sorted(known, key=lambda each: each.deadline_at_s):
        at_s += 8.0 * flow.left_bytes / rate_bps
        if flow.left_bytes:
            slack.append(flow.deadline_at_s - at_s)
    scale = max(abs(at_s), 1e5)
    assert min(slack) >= -1e-6 * scale
    assert min(slack) <= 1e-6 * scale
