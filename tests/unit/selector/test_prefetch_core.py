"""IMP's decision: costs against benefits, batches, order, what is left for demand."""

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.model import Direction
from cedos.selector.prefetch_accuracy import ASSUMED
from cedos.selector.prefetch_outlook import Average
from cedos.selector.prefetch_path import Path, on_demand
from cedos.selector.prefetch_queue import Queue, State
from cedos.selector.prefetch_stretches import Stretches
from cedos.selector.prefetch_value import Candidate, best_batch


class Radio:
    """A watt while active, and a tail of `tail_j`; on average it is found asleep."""

    def __init__(self, active: float = 1.0, tail_j: float = 0.0) -> None:
        self.active, self.tail_j = active, tail_j

    def active_w(self, direction: Direction, rate_bps: float = 0.0) -> float:
        return self.active

    def added_tail_j(self, idle_s: float | None) -> float:
        return self.tail_j if idle_s is None else 0.0

    def expected_j(
        self,
        *,
        bytes_up: float = 0.0,
        bytes_down: float = 0.0,
        seconds: float,
        shares: Mapping[str, float],
    ) -> float:
        return self.active * seconds + self.tail_j


class Prices:
    """Fixed ones; beyond `left` metered bytes, or `left_j` joules, a further one is out of reach."""

    def __init__(
        self,
        joule_s: float = 0.0,
        byte_s: float = 0.0,
        left: float = math.inf,
        left_j: float = math.inf,
    ) -> None:
        self.joule_s, self.byte_s, self.left, self.left_j = joule_s, byte_s, left, left_j

    def energy_rate(self, amount: float = 0.0, duration_s: float = 1.0) -> float:
        return self.joule_s if amount <= self.left_j else 2.0**200

    def data_rate(self, network: str, amount: float = 0.0, duration_s: float = 1.0) -> float:
        if network != "lte":
            return 0.0
        return self.byte_s if amount <= self.left else 2.0**200


def wifi(present: bool = True, availability: float = 0.25, absence_s: float = 60.0) -> Path:
    average = Average(availability, 1 / 8e6, 0.1, absence_s)
    return Path("wifi", 8e6, 0.1, Radio(0.5), average, 0.0, present=present)


def lte(idle_s: float | None = None, tail_j: float = 10.0, rate_bps: float = 4e6) -> Path:
    average = Average(1.0, 1 / 1e6, 0.2, 0.0)
    return Path("lte", rate_bps, 0.2, Radio(2.0, tail_j), average, tail_j, idle_s=idle_s)


def item(key: object = 1, size: float = 100_000.0, accuracy: float = 0.8) -> Candidate:
    return Candidate(key, size, accuracy)


class TestFetchOnDemand:
    def test_networks_are_weighted_by_their_availability(self) -> None:
        use = on_demand(1e6, [wifi(), lte()], Prices())
        assert use.time_s == pytest.approx(0.25 * 1.1 + 0.75 * 8.2)
        assert use.sent == pytest.approx((0.25e6, 0.75e6))
        assert use.energy_j == pytest.approx(0.25 * 0.55 + 0.75 * (2 * 8.2 + 10))

    def test_the_cheapest_network_is_the_first_to_be_used(self) -> None:
        slow = Path("wifi", 1e5, 1.0, Radio(0.5), Average(0.5, 1e-4, 1.0, 9.0), 0.0)
        assert on_demand(1e6, [slow, lte()], Prices()).sent == pytest.approx((0.0, 1e6))
        dear = Prices(byte_s=1.0)
        assert on_demand(1e6, [slow, lte()], dear).sent == pytest.approx((0.5e6, 0.5e6))


class TestInTime:
    """The chance that a network fetches something before somebody asks for it."""

    def chance(self, stay_s: float, age_s: float = 1.0, present: bool = True) -> float:
        stretches = Stretches(stay_s, 60.0)
        stretches.passed(age_s, present)
        return replace(wifi(present), stretch=stretches.stretch()).in_time(2e6, 1 / 60)

    def test_a_short_contact_may_end_before_it_is_there(self) -> None:
        assert self.chance(stay_s=5.0) < self.chance(stay_s=60.0) < self.chance(stay_s=1e6)
        assert self.chance(stay_s=1e8) == pytest.approx(wifi().in_time(2e6, 1 / 60), rel=0.01)

    def test_what_has_been_away_for_long_is_not_waited_for(self) -> None:
        recent, long_gone = (self.chance(30.0, age_s, present=False) for age_s in (1.0, 600.0))
        assert long_gone < 0.8 * recent


class TestBatches:
    def test_without_budgets_everything_is_worth_it(self) -> None:
        batch = best_batch(0, [item(n) for n in range(5)], [lte()], Prices())
        assert batch is not None
        assert batch.keys == (0, 1, 2, 3, 4)

    def test_the_gain_is_the_papers(self) -> None:
        path = lte(tail_j=0.0)
        batch = best_batch(0, [item(size=1e6)], [path], Prices(0.1, 1e-6))
        assert batch is not None
        fetch_s, prefetch_s = 8.2, 2.2
        gain = 0.8 * fetch_s - (
            0.1 * (2 * prefetch_s - 0.8 * 2 * fetch_s) + 1e-6 * (1e6 - 0.8 * 1e6)
        )
        assert batch.gain_s == pytest.approx(gain)

    def test_several_together_pay_for_waking_the_radio(self) -> None:
        # A later fetch is taken to find the radio awake, so that only batching can pay for the tail.
        average = Average(1.0, 1 / 4e6, 0.2, 0.0)
        path = Path("lte", 4e6, 0.2, Radio(2.0, 50.0), average, 0.0, idle_s=None)
        prices = Prices(joule_s=0.1)
        assert best_batch(0, [item(size=1e6)], [path], prices) is None
        many = best_batch(0, [item(n, 1e6) for n in range(10)], [path], prices)
        assert many is not None
        assert len(many.keys) == 10
        awake = Path("lte", 4e6, 0.2, Radio(2.0, 50.0), average, 0.0, idle_s=1.0)
        assert best_batch(0, [item(size=1e6)], [awake], prices) is not None

    def test_one_that_is_too_dear_does_not_stand_in_the_way(self) -> None:
        prices = Prices(byte_s=3e-6, left=1e6)
        items = [item("huge", 5e6), item("small", 1e4), item("fits", 2e4)]
        batch = best_batch(0, items, [lte(idle_s=0.0)], prices)
        assert batch is not None
        assert batch.keys == ("small", "fits")

    def test_a_metered_network_waits_for_a_free_one_that_comes_soon(self) -> None:
        prices = Prices(byte_s=2e-6)
        soon = [wifi(present=False, availability=0.5, absence_s=5.0), lte(idle_s=0.0)]
        late = [wifi(present=False, availability=0.5, absence_s=5000.0), lte(idle_s=0.0)]
        one = [Candidate(1, 1e5, 0.9, hazard_per_s=0.002)]
        assert best_batch(1, one, soon, prices) is None
        assert best_batch(1, one, late, prices) is not None

    def test_what_would_cost_more_later_must_fit_into_the_budget_too(self) -> None:
        """Leaving it is dearer on average, and may cost nothing: nobody asks, or Wi-Fi comes."""
        paths = [wifi(present=False, absence_s=1e6), lte(rate_bps=8e6)]
        # 2 s of 2 W and a tail of 10 J now; 16 s of 2 W and a tail later.
        large = [Candidate("large", 2e6, 0.8, hazard_per_s=0.01)]
        assert best_batch(1, large, paths, Prices(left_j=30.0)) is not None
        assert best_batch(1, large, paths, Prices(left_j=5.0)) is None

    def test_what_runs_is_ended_when_the_budget_is(self) -> None:
        queue = Queue()
        queue.hint("a", 0.0, 2e6)
        queue.started("a", "lte")
        paths = [wifi(present=False, absence_s=1e6), lte(idle_s=0.0, rate_bps=8e6)]
        assert queue.plan(1.0, paths, Prices(left_j=30.0)).stops == ()
        assert queue.plan(1.0, paths, Prices(left_j=1.0)).stops == ("a",)

    def test_a_spent_budget_stops_what_runs_over_that_network_and_starts_nothing(self) -> None:
        queue, spent = Queue(), Prices(byte_s=2.0**200)
        for key in "ab":
            queue.hint(key, 0.0, 1e6)
        queue.started("a", "lte")
        alone = [lte(idle_s=0.0)]
        assert queue.plan(1.0, alone, Prices()).stops == ()
        plan = queue.plan(1.0, alone, spent)
        assert (plan.stops, plan.starts) == (("a",), ())
        queue.stopped("a")
        assert queue.plan(2.0, alone, spent).starts == ()
        assert queue.plan(3.0, [wifi(), lte(idle_s=0.0)], spent).starts == (("a", "wifi"),)

    def test_what_is_not_counted_yet_is_not_spent_twice(self) -> None:
        """A fast network carries an item before anybody has read a counter."""
        queue, prices = Queue(reserve_sds=0.0), Prices(left=1.5e6)
        for key in "ab":
            queue.hint(key, 0.0, 1e6)
        fast = [lte(idle_s=0.0, rate_bps=100e6)]
        assert queue.plan(0.0, fast, prices).starts == (("a", "lte"),)
        queue.started("a", "lte")
        queue.finished("a", 1e6)
        assert queue.plan(0.1, fast, prices).starts == ()
        # Counted by now; there were 2.5 MB in the beginning.
        assert queue.plan(5.0, fast, prices).starts == (("b", "lte"),)

    def test_unlikely_items_are_left(self) -> None:
        prices = Prices(joule_s=0.5)
        assert best_batch(0, [item(accuracy=0.01)], [lte(idle_s=0.0)], prices) is None

    @pytest.mark.parametrize("rate", [0.0, math.nan, -5.0, math.inf])
    def test_without_a_rate_nothing_is_fetched(self, rate: float) -> None:
        assert best_batch(0, [item()], [lte(rate_bps=rate)], Prices()) is None

    def test_an_accuracy_that_is_no_number_is_no_reason(self) -> None:
        assert best_batch(0, [item(accuracy=math.nan)], [lte()], Prices()) is None

    @given(
        st.lists(st.tuples(st.floats(1, 1e8), st.floats(0, 1)), min_size=1, max_size=12),
        st.floats(0, 5),
        st.floats(0, 1e-4),
        st.one_of(st.none(), st.floats(0, 100)),
    )
    @settings(max_examples=80)
    def test_no_batch_gains_nothing_and_its_budget_is_kept(
        self,
        items: list[tuple[float, float]],
        joule_s: float,
        byte_s: float,
        idle_s: float | None,
    ) -> None:
        prices = Prices(joule_s, byte_s, left=1e6)
        candidates = [item(n, size, accuracy) for n, (size, accuracy) in enumerate(items)]
        batch = best_batch(1, candidates, [wifi(present=False), lte(idle_s)], prices)
        if batch is not None:
            assert batch.gain_s > 0.0
            assert batch.size_bytes <= 1e6
            assert list(batch.keys) == sorted(batch.keys)  # type: ignore[type-var]


class TestQueue:
    def test_classes_of_higher_accuracy_come_first_then_earlier_hints(self) -> None:
        queue = Queue()
        for _ in range(20):
            queue.accuracy.resolved("good", consumed=True)
            queue.accuracy.resolved("bad", consumed=False)
        for key, cls in enumerate(["bad", "good", "bad", "good"]):
            queue.hint(key, 0.0, 1e5, cls)
        assert [one.key for one in queue.candidates(0.0)] == [1, 3, 0, 2]

    def test_hints_are_counted_prefetched_or_not(self) -> None:
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

    def test_a_fate_counts_once(self) -> None:
        queue = Queue()
        queue.hint(1, 0.0)
        queue.demand(1, 1.0)
        queue.demand(1, 2.0)
        queue.cancel(1, 3.0)
        assert queue.accuracy.application.resolved == 1.0

    def test_hints_that_nobody_wants_count_as_misses_in_the_end(self) -> None:
        queue = Queue(forget_s=100.0)
        queue.hint(1, 0.0)
        queue.candidates(101.0)
        queue.candidates(102.0)
        assert queue.accuracy.application.consumed == 0.0
        assert queue.accuracy.application.resolved == 1.0
        queue.demand(1, 103.0)
        assert queue.accuracy.application.resolved == 1.0

    def test_a_key_is_hinted_once(self) -> None:
        queue = Queue()
        queue.hint("a", 0.0)
        with pytest.raises(ValueError, match="hinted already"):
            queue.hint("a", 1.0)

    def test_an_unknown_size_is_the_average_of_those_that_were_fetched(self) -> None:
        queue = Queue()
        queue.hint("a", 0.0, math.nan)
        assert queue.left_bytes("a") == 100_000
        for key in range(50):
            queue.hint(key, 0.0)
            queue.started(key, "wifi")
            queue.finished(key, 2e6)
        assert queue.left_bytes("a") == pytest.approx(2e6, rel=0.1)

    def test_a_lost_network_leaves_what_was_received_and_another_goes_on(self) -> None:
        queue = Queue()
        queue.hint("a", 0.0, 1e6)
        plan = queue.plan(0.0, [wifi(), lte()], Prices(byte_s=1e-7))
        assert plan.starts == (("a", "wifi"),)
        queue.started("a", "wifi")
        queue.progressed("a", 4e5)
        paths = [wifi(present=False, absence_s=1e6), lte()]
        assert queue.plan(5.0, paths, Prices()).stops == ("a",)
        queue.stopped("a")
        assert queue.left_bytes("a") == 6e5
        assert queue.plan(5.0, paths, Prices()).starts == (("a", "lte"),)
        # Where no network is worth it, it waits; when Wi-Fi is back, it goes on.
        assert queue.plan(5.0, paths, Prices(byte_s=1.0)).starts == ()
        assert queue.plan(9.0, [wifi(), lte()], Prices(byte_s=1.0)).starts == (("a", "wifi"),)

    def test_it_moves_to_a_network_that_is_clearly_better(self) -> None:
        queue = Queue()
        queue.hint("a", 0.0, 1e6)
        queue.started("a", "lte")
        dear = Prices(byte_s=4e-6)
        away = wifi(present=False, absence_s=1e6)
        assert queue.plan(1.0, [away, lte(0.0)], dear).stops == ()
        assert queue.plan(1.0, [wifi(), lte(0.0)], dear).stops == ("a",)

    def test_what_somebody_waits_for_is_not_stopped(self) -> None:
        queue = Queue()
        queue.hint("a", 0.0, 1e6)
        queue.started("a", "lte")
        assert queue.demand("a", 1.0) is State.RUNNING
        assert queue.plan(1.0, [wifi(), lte(0.0)], Prices(byte_s=1.0)).stops == ()
        queue.finished("a", 1e6)
        assert queue.items["a"].state is State.CONSUMED

    def test_without_budgets_both_networks_are_used(self) -> None:
        queue = Queue()
        for key in range(6):
            queue.hint(key, 0.0, 1e6)
        plan = queue.plan(0.0, [wifi(), lte()], Prices())
        assert sorted(network for _, network in plan.starts) == ["lte", "wifi"]
        assert len({key for key, _ in plan.starts}) == 2

    def test_what_failed_is_tried_again_later_and_each_time_later(self) -> None:
        queue = Queue(retry_s=2.0)
        queue.hint("a", 0.0, 1e6)
        queue.started("a", "lte")
        queue.failed("a", 0.0)
        assert queue.candidates(1.9) == []
        assert len(queue.candidates(2.0)) == 1
        queue.started("a", "lte")
        queue.failed("a", 2.0)
        assert queue.candidates(5.9) == []
        assert len(queue.candidates(6.0)) == 1
        queue.started("a", "lte")
        queue.failed("a", 6.0, for_good=True)
        assert queue.candidates(1e9) == []

    def test_the_hazard_follows_how_often_somebody_acts(self) -> None:
        queue = Queue()
        assert queue.hazards_per_s(0.0) == {}
        for key in range(10):
            queue.hint(key, 0.0)
        before = sum(queue.hazards_per_s(0.0).values())
        for key in (8, 3, 6, 1, 5):
            queue.demand(key, 2.0 * key)
        assert sum(queue.hazards_per_s(20.0).values()) > before > 0.0

    def test_who_reads_in_order_comes_to_the_next_one_first(self) -> None:
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

    def test_what_demand_will_need_is_left(self) -> None:
        queue = Queue()
        for _ in range(100):
            queue.accuracy.resolved("", consumed=True)
        for key in range(10):
            queue.hint(key, 0.0, 1e5)
        paths = [lte(idle_s=0.0)]
        # All ten are sure to be asked for: fetching them now takes nothing that is not taken anyway.
        assert len(queue.plan(0.0, paths, Prices(byte_s=1e-9, left=1.2e6)).batches[0].keys) == 10
        # Half a chance each, and room for a third of them: some must be kept for those who ask.
        unsure = Queue(reserve_sds=2.0)
        for key in range(10):
            unsure.hint(key, 0.0, 1e5)
        plan = unsure.plan(0.0, paths, Prices(byte_s=1e-9, left=6e5))
        assert plan.batches == ()
        assert len(unsure.plan(0.0, paths, Prices(byte_s=1e-9, left=1.05e6)).batches[0].keys) > 1

    @given(st.lists(st.tuples(st.sampled_from("hdcspfxr"), st.integers(0, 4)), max_size=50))
    @settings(max_examples=80)
    def test_any_order_of_events_is_survived(self, events: list[tuple[str, int]]) -> None:
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
                queue.progressed(key, 1e4 * now)
            elif what == "f":
                queue.finished(key, 1e5)
            elif what == "x":
                queue.failed(key, now)
            elif what == "s" and queue.items[key].state is State.WAITING:
                queue.started(key, "lte")
            elif what == "r":
                queue.forget(key)
            plan = queue.plan(now, [wifi(now % 2 == 0), lte()], Prices(0.01, 1e-7))
            for start, _ in plan.starts:
                assert queue.items[start].state is State.WAITING
            for stop in plan.stops:
                assert queue.items[stop].state is State.RUNNING
