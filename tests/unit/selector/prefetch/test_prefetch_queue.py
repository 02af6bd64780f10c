"""The queue of objects to prefetch: order, accuracy, networks that go, the rest for demand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.prefetch.queue import Queue, State
from cedos.selector.prefetch.value import ASSUMED


class TestQueue:
    def test_classes_of_higher_accuracy_come_first_then_earlier_hints(self):
        queue = Queue()
        for _ in range(20):
            queue.accuracy.on_resolved("good", consumed=True)
            queue.accuracy.on_resolved("bad", consumed=False)
        for key, cls in enumerate(["bad", "good", "bad", "good"]):
            queue.hint(key, 0.0, 1e5, cls)
        assert [one.key for one in queue.candidates(0.0)] == [1, 3, 0, 2]

    def test_hints_are_counted_prefetched_or_not(self):
        queue = Queue()
        for key in range(30):
            queue.hint(key, 0.0, 1e5, "c")
        # Open hints say nothing yet: a fresh inbox is no row of misses.
        assert queue.accuracy.of("c") == ASSUMED
        for key in range(24):
            assert queue.demand(key, 1.0) is State.WAITING
        for key in range(24, 30):
            queue.cancel(key, 1.0)
        assert queue.accuracy.of("c") == pytest.approx(0.8, abs=0.05)

    def test_a_fate_counts_once(self):
        queue = Queue()
        queue.hint(1, 0.0)
        queue.demand(1, 1.0)
        queue.demand(1, 2.0)
        queue.cancel(1, 3.0)
        assert queue.accuracy.application.resolved == 1.0

    def test_hints_that_nobody_wants_count_as_misses_in_the_end(self):
        queue = Queue()
        queue.hint(1, 0.0)
        queue.candidates(604_801.0)
        queue.candidates(604_802.0)
        assert queue.accuracy.application.consumed == 0.0
        assert queue.accuracy.application.resolved == 1.0
        queue.demand(1, 604_803.0)
        assert queue.accuracy.application.resolved == 1.0

    def test_a_key_is_hinted_once(self):
        queue = Queue()
        queue.hint("a", 0.0)
        with pytest.raises(ValueError, match="hinted already"):
            queue.hint("a", 1.0)

    def test_an_unknown_size_is_the_average_of_those_that_were_fetched(self):
        queue = Queue()
        queue.hint("a", 0.0, math.nan)
        assert queue.left_bytes("a") == 100_000
        for key in range(50):
            queue.hint(key, 0.0)
            queue.on_start(key, "wifi")
            queue.on_finished(key, 2e6)
        assert queue.left_bytes("a") == pytest.approx(2e6, rel=0.1)

    def test_a_lost_network_leaves_what_was_received_and_another_goes_on(self, make):
        queue = Queue()
        queue.hint("a", 0.0, 1e6)
        plan = queue.plan(0.0, [make.wifi(), make.lte()], make.prices(byte_s=1e-7))
        assert plan.starts == (("a", "wifi"),)
        queue.on_start("a", "wifi")
        queue.on_progress("a", 4e5)
        paths = [make.wifi(present=False, absence_s=1e6), make.lte()]
        assert queue.plan(5.0, paths, make.prices()).stops == ("a",)
        queue.on_stop("a")
        assert queue.left_bytes("a") == 6e5
        assert queue.plan(5.0, paths, make.prices()).starts == (("a", "lte"),)
        # Where no network is worth it, it waits; when Wi-Fi is back, it goes on.
        assert queue.plan(5.0, paths, make.prices(byte_s=1.0)).starts == ()
        assert queue.plan(9.0, [make.wifi(), make.lte()], make.prices(byte_s=1.0)).starts == (
            ("a", "wifi"),
        )

    def test_it_moves_to_a_network_that_is_clearly_better(self, make):
        queue = Queue()
        queue.hint("a", 0.0, 1e6)
        queue.on_start("a", "lte")
        dear = make.prices(byte_s=4e-6)
        away = make.wifi(present=False, absence_s=1e6)
        assert queue.plan(1.0, [away, make.lte(0.0)], dear).stops == ()
        assert queue.plan(1.0, [make.wifi(), make.lte(0.0)], dear).stops == ("a",)

    def test_what_somebody_waits_for_is_not_stopped(self, make):
        queue = Queue()
        queue.hint("a", 0.0, 1e6)
        queue.on_start("a", "lte")
        assert queue.demand("a", 1.0) is State.RUNNING
        assert queue.plan(1.0, [make.wifi(), make.lte(0.0)], make.prices(byte_s=1.0)).stops == ()
        queue.on_finished("a", 1e6)
        assert queue.items["a"].state is State.CONSUMED

    def test_without_budgets_both_networks_are_used(self, make):
        queue = Queue()
        for key in range(6):
            queue.hint(key, 0.0, 1e6)
        plan = queue.plan(0.0, [make.wifi(), make.lte()], make.prices())
        assert sorted(network for _, network in plan.starts) == ["lte", "wifi"]
        assert len({key for key, _ in plan.starts}) == 2

    def test_what_failed_is_tried_again_later_and_each_time_later(self):
        queue = Queue(retry_s=2.0)
        queue.hint("a", 0.0, 1e6)
        queue.on_start("a", "lte")
        queue.on_failure("a", 0.0)
        assert queue.candidates(1.9) == []
        assert len(queue.candidates(2.0)) == 1
        queue.on_start("a", "lte")
        queue.on_failure("a", 2.0)
        assert queue.candidates(5.9) == []
        assert len(queue.candidates(6.0)) == 1
        queue.on_start("a", "lte")
        queue.on_failure("a", 6.0, for_good=True)
        assert queue.candidates(1e9) == []

    def test_the_hazard_follows_how_often_somebody_acts(self):
        queue = Queue()
        assert queue.hazards_per_s(0.0) == {}
        for key in range(10):
            queue.hint(key, 0.0)
        before = sum(queue.hazards_per_s(0.0).values())
        for key in (8, 3, 6, 1, 5):
            queue.demand(key, 2.0 * key)
        assert sum(queue.hazards_per_s(20.0).values()) > before > 0.0

    def test_who_reads_in_order_comes_to_the_next_one_first(self):
        in_order, at_random = Queue(), Queue()
        for queue in (in_order, at_random):
            for key in range(20):
                queue.hint(key, 0.0)
        for key in range(8):
            in_order.demand(key, 10.0 * key)
            at_random.demand((7 * key + 5) % 20, 10.0 * key)
        hazards = in_order.hazards_per_s(80.0)
        assert list(hazards) == list(range(8, 20))
        assert hazards[8] > 5 * hazards[19]
        scattered = sorted(at_random.hazards_per_s(80.0).values())
        assert scattered[-1] < 4 * scattered[0]
        # What comes first in order is fetched first.
        assert next(iter(in_order.candidates(80.0))).key == 8

    def test_what_demand_will_need_is_left(self, make):
        queue = Queue()
        for _ in range(100):
            queue.accuracy.on_resolved("", consumed=True)
        for key in range(10):
            queue.hint(key, 0.0, 1e5)
        paths = [make.lte(idle_s=0.0)]
        # All ten are sure to be asked for: fetching them now takes nothing that is not taken anyway.
        assert (
            len(queue.plan(0.0, paths, make.prices(byte_s=1e-9, left=1.2e6)).batches[0].keys) == 10
        )
        # Half a chance each, and room for a third of them: some must be kept for those who ask.
        unsure = Queue(reserve_sds=2.0)
        for key in range(10):
            unsure.hint(key, 0.0, 1e5)
        plan = unsure.plan(0.0, paths, make.prices(byte_s=1e-9, left=6e5))
        assert plan.batches == ()
        assert (
            len(unsure.plan(0.0, paths, make.prices(byte_s=1e-9, left=1.05e6)).batches[0].keys) > 1
        )

    @given(st.lists(st.tuples(st.sampled_from("hdcspfxr"), st.integers(0, 4)), max_size=50))
    def test_any_order_of_events_is_survived(self, make, events):
        queue = Queue()
        for now, (what, key) in enumerate(events):
            if what == "h":
                if key not in queue.items:
                    queue.hint(key, now, 1e5 * key)
            elif key not in queue.items:
                continue
            elif what == "d":
                queue.demand(key, now)
            elif what == "c":
                queue.cancel(key, now)
            elif what == "p":
                queue.on_progress(key, 1e4 * now)
            elif what == "f":
                queue.on_finished(key, 1e5)
            elif what == "x":
                queue.on_failure(key, now)
            elif what == "s" and queue.items[key].state is State.WAITING:
                queue.on_start(key, "lte")
            elif what == "r":
                queue.forget(key)
            plan = queue.plan(now, [make.wifi(now % 2 == 0), make.lte()], make.prices(0.01, 1e-7))
            for start, _ in plan.starts:
                assert queue.items[start].state is State.WAITING
            for stop in plan.stops:
                assert queue.items[stop].state is State.RUNNING


@pytest.mark.parametrize("keeps_for_all", [True, False])
def test_what_is_more_than_what_is_left_stops_others_only_where_it_is_kept_for(make, keeps_for_all):
    queue = Queue(keeps_for_all=keeps_for_all)
    queue.hint("film", 0.0, 9e8)
    queue.hint("page", 0.0, 1e5)
    plan = queue.plan(0.0, [make.lte(tail_j=0.0)], make.prices(0.0, 1e-9, left=1e7))
    assert plan.starts == (() if keeps_for_all else (("page", "lte"),))


def queue_of(*sizes, accuracy=0.8):
    queue = Queue()
    for number in range(40):
        queue.accuracy.on_resolved("c", consumed=number % 10 < 10 * accuracy)
    for key, size in enumerate(sizes):
        queue.hint(key, 0.0, size, "c")
    return queue


@pytest.mark.parametrize(("step", "failures"), [(1.0, 6), (20_000.0, 1)])
def test_only_progress_that_counts_ends_a_row_of_failures(step, failures):
    """A server that broke off after one more byte each time was never left to demand."""
    queue = queue_of(1e6)
    for number in range(1, 7):
        queue.on_progress(0, step * number, 1e6)
        queue.on_failure(0, 1.0)
    assert queue.items[0].failures == failures
