"""Why something is fetched ahead of time or not is said in words that fit the figures."""

from typing import Any

import pytest

from cedos.selector.prefetch.path import Path
from cedos.selector.prefetch.queue import Plan, Queue
from cedos.selector.prefetch.reason import PrefetchVerdict, verdicts
from cedos.selector.prefetch.value import best_batch


def queue_of(*sizes: float, accuracy: float = 0.8) -> Queue:
    queue = Queue()
    for number in range(40):
        queue.accuracy.resolved("c", consumed=number % 10 < 10 * accuracy)
    for key, size in enumerate(sizes):
        queue.hint(key, 0.0, size, "c")
    return queue


def explained(
    queue: Queue, paths: list[Path], prices: Any, most: int = 20
) -> list[PrefetchVerdict]:
    """Plans, begins what is to be begun, and says why."""
    plan = queue.plan(1.0, paths, prices)
    for key, network in plan.starts:
        queue.started(key, network)
    return verdicts(queue, 1.0, paths, prices, plan, most)


def test_what_is_worth_it_says_so_with_its_figures(make: Any) -> None:
    found = explained(queue_of(1e5, 1e5, 1e5, 1e5), [make.wifi()], make.prices())
    assert [one.why for one in found] == [
        "is being fetched over wifi: it saves more than it costs",
        "will be fetched next",
        "will be fetched after 2 others",
        "will be fetched after 3 others",
    ]
    first = found[0]
    assert first.weighed is not None
    assert first.likely == pytest.approx(0.8, abs=0.03)
    # By demand it would take 0.1 s and 0.1 s for the bytes, asked for in 8 of 10 cases.
    assert first.weighed.saves_s == pytest.approx(0.16, abs=0.02)
    assert first.weighed.gain_s == pytest.approx(first.weighed.saves_s)


def test_dear_bytes_are_told(make: Any) -> None:
    (one,) = explained(queue_of(1e6), [make.lte()], make.prices(0.0, 1e-3))
    assert one.why == "waits: over lte it costs more than it saves"
    assert one.metered
    assert one.weighed is not None
    assert one.weighed.gain_s < 0.0


def test_a_budget_that_is_spent_is_told(make: Any) -> None:
    (one,) = explained(queue_of(1e6), [make.lte()], make.prices(0.0, 2.0**200))
    assert one.why == "waits: the budget of lte is spent"


def test_what_is_more_than_what_is_left_is_told(make: Any) -> None:
    (one,) = explained(queue_of(1e6), [make.lte()], make.prices(0.0, 1e-9, left=1e5))
    assert one.why == "waits: it is more than the budget has left"


def test_a_radio_that_must_be_woken_is_told(make: Any) -> None:
    prices = make.prices(0.2)
    (one,) = explained(queue_of(1e5), [make.lte(tail_j=200.0)], prices)
    queue = queue_of(1e5)
    assert best_batch(0, queue.candidates(1.0), [make.lte(tail_j=200.0)], prices) is None
    assert "not worth waking lte's radio" in one.why


def test_waiting_for_a_better_network_is_told(make: Any) -> None:
    paths = [make.wifi(present=False, availability=0.9, absence_s=1.0), make.lte()]
    (one,) = explained(queue_of(1e6), paths, make.prices(0.0, 6e-7))
    assert one.why == "waits for a better network, which should be there in time"


def test_without_a_network_it_waits(make: Any) -> None:
    (one,) = explained(queue_of(1e6), [make.wifi(present=False)], make.prices())
    assert one.why == "waits: no network is there"
    assert one.weighed is None


def test_failures_are_told_and_no_more_than_asked_for_are_shown(make: Any) -> None:
    queue = queue_of(1e5, 1e5, 1e5)
    queue.failed(0, 0.5)
    queue.failed(2, 0.5, for_good=True)
    why = {one.item.key: one.why for one in explained(queue, [make.wifi()], make.prices())}
    assert why[0] == "failed 1 times; tried again in 2 s"
    assert why[2] == "failed 1 times; left to demand"
    assert len(verdicts(queue, 1.0, [make.wifi()], make.prices(), Plan(), 2)) == 2
