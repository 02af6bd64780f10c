"""IMP's decision: costs against benefits, and what is worth fetching together."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.prefetch.outlook import Average, Path, Stretches, on_demand
from cedos.selector.prefetch.queue import Queue
from cedos.selector.prefetch.value import Candidate, best_batch


class TestFetchOnDemand:
    def test_networks_are_weighted_by_their_availability(self, make):
        use = on_demand(1e6, [make.wifi(), make.lte()], make.prices())
        assert use.time_s == pytest.approx(0.25 * 1.1 + 0.75 * 8.2)
        assert use.sent == pytest.approx((0.25e6, 0.75e6))
        assert use.energy_j == pytest.approx(0.25 * 0.55 + 0.75 * (2 * 8.2 + 10))

    def test_the_cheapest_network_is_the_first_to_be_used(self, make):
        slow = Path("wifi", 1e5, 1.0, make.radio(0.5), Average(0.5, 1e-4, 1.0, 9.0), 0.0)
        assert on_demand(1e6, [slow, make.lte()], make.prices()).sent == pytest.approx((0.0, 1e6))
        dear = make.prices(byte_s=1.0)
        assert on_demand(1e6, [slow, make.lte()], dear).sent == pytest.approx((0.5e6, 0.5e6))


class TestInTime:
    """The chance that a network fetches something before somebody asks for it."""

    @pytest.fixture(autouse=True)
    def _make(self, make):
        self.make = make

    def chance(self, stay_s, age_s=1.0, present=True):
        stretches = Stretches(stay_s, 60.0)
        stretches.record(age_s, present)
        return replace(self.make.wifi(present), stretch=stretches.stretch()).in_time(2e6, 1 / 60)

    def test_a_short_contact_may_end_before_it_is_there(self, make):
        assert self.chance(stay_s=5.0) < self.chance(stay_s=60.0) < self.chance(stay_s=1e6)
        assert self.chance(stay_s=1e8) == pytest.approx(make.wifi().in_time(2e6, 1 / 60), rel=0.01)

    def test_what_has_been_away_for_long_is_not_waited_for(self):
        recent, long_gone = (self.chance(30.0, age_s, present=False) for age_s in (1.0, 600.0))
        assert long_gone < 0.8 * recent


class TestBatches:
    def test_without_budgets_everything_is_worth_it(self, make):
        batch = best_batch(0, [make.item(n) for n in range(5)], [make.lte()], make.prices())
        assert batch.keys == (0, 1, 2, 3, 4)

    def test_the_gain_is_the_papers(self, make):
        path = make.lte(tail_j=0.0)
        batch = best_batch(0, [make.item(size=1e6)], [path], make.prices(0.1, 1e-6))
        fetch_s, prefetch_s = 8.2, 2.2
        gain = 0.8 * fetch_s - (
            0.1 * (2 * prefetch_s - 0.8 * 2 * fetch_s) + 1e-6 * (1e6 - 0.8 * 1e6)
        )
        assert batch.gain_s == pytest.approx(gain)

    def test_several_together_pay_for_waking_the_radio(self, make):
        # A later fetch is taken to find the radio awake, so that only batching can pay for the tail.
        average = Average(1.0, 1 / 4e6, 0.2, 0.0)
        path = Path("lte", 4e6, 0.2, make.radio(2.0, 50.0), average, 0.0, idle_s=None)
        prices = make.prices(joule_s=0.1)
        assert best_batch(0, [make.item(size=1e6)], [path], prices) is None
        many = best_batch(0, [make.item(n, 1e6) for n in range(10)], [path], prices)
        assert len(many.keys) == 10
        awake = Path("lte", 4e6, 0.2, make.radio(2.0, 50.0), average, 0.0, idle_s=1.0)
        assert best_batch(0, [make.item(size=1e6)], [awake], prices) is not None

    def test_one_that_is_too_dear_does_not_stand_in_the_way(self, make):
        prices = make.prices(byte_s=3e-6, left=1e6)
        items = [make.item("huge", 5e6), make.item("small", 1e4), make.item("fits", 2e4)]
        batch = best_batch(0, items, [make.lte(idle_s=0.0)], prices)
        assert batch.keys == ("small", "fits")

    def test_a_metered_network_waits_for_a_free_one_that_comes_soon(self, make):
        prices = make.prices(byte_s=2e-6)
        soon = [make.wifi(present=False, availability=0.5, absence_s=5.0), make.lte(idle_s=0.0)]
        late = [make.wifi(present=False, availability=0.5, absence_s=5000.0), make.lte(idle_s=0.0)]
        one = [Candidate(1, 1e5, 0.9, hazard_per_s=0.002)]
        assert best_batch(1, one, soon, prices) is None
        assert best_batch(1, one, late, prices) is not None

    def test_what_would_cost_more_later_must_fit_into_the_budget_too(self, make):
        """Leaving it is dearer on average, and may cost nothing: nobody asks, or Wi-Fi comes."""
        paths = [make.wifi(present=False, absence_s=1e6), make.lte(rate_bps=8e6)]
        # 2 s of 2 W and a tail of 10 J now; 16 s of 2 W and a tail later.
        large = [Candidate("large", 2e6, 0.8, hazard_per_s=0.01)]
        assert best_batch(1, large, paths, make.prices(left_j=30.0)) is not None
        assert best_batch(1, large, paths, make.prices(left_j=5.0)) is None

    def test_what_runs_is_ended_when_the_budget_is(self, make):
        queue = Queue()
        queue.hint("a", 0.0, 2e6)
        queue.on_start("a", "lte")
        paths = [make.wifi(present=False, absence_s=1e6), make.lte(idle_s=0.0, rate_bps=8e6)]
        assert queue.plan(1.0, paths, make.prices(left_j=30.0)).stops == ()
        assert queue.plan(1.0, paths, make.prices(left_j=1.0)).stops == ("a",)

    def test_a_spent_budget_stops_what_runs_over_that_network_and_starts_nothing(self, make):
        queue, spent = Queue(), make.prices(byte_s=2.0**200)
        for key in "ab":
            queue.hint(key, 0.0, 1e6)
        queue.on_start("a", "lte")
        alone = [make.lte(idle_s=0.0)]
        assert queue.plan(1.0, alone, make.prices()).stops == ()
        plan = queue.plan(1.0, alone, spent)
        assert (plan.stops, plan.starts) == (("a",), ())
        queue.on_stop("a")
        assert queue.plan(2.0, alone, spent).starts == ()
        assert queue.plan(3.0, [make.wifi(), make.lte(idle_s=0.0)], spent).starts == (
            ("a", "wifi"),
        )

    def test_what_is_not_counted_yet_is_not_spent_twice(self, make):
        """A fast network carries an item before anybody has read a counter."""
        queue, prices = Queue(reserve_sds=0.0), make.prices(left=1.5e6)
        for key in "ab":
            queue.hint(key, 0.0, 1e6)
        fast = [make.lte(idle_s=0.0, rate_bps=100e6)]
        assert queue.plan(0.0, fast, prices).starts == (("a", "lte"),)
        queue.on_start("a", "lte")
        queue.on_finished("a", 1e6)
        assert queue.plan(0.1, fast, prices).starts == ()
        # Counted by now; there were 2.5 MB in the beginning.
        assert queue.plan(5.0, fast, prices).starts == (("b", "lte"),)

    def test_unlikely_items_are_left(self, make):
        prices = make.prices(joule_s=0.5)
        assert best_batch(0, [make.item(accuracy=0.01)], [make.lte(idle_s=0.0)], prices) is None

    @pytest.mark.parametrize("rate", [0.0, math.nan, -5.0, math.inf])
    def test_without_a_rate_nothing_is_fetched(self, make, rate):
        assert best_batch(0, [make.item()], [make.lte(rate_bps=rate)], make.prices()) is None

    def test_an_accuracy_that_is_no_number_is_no_reason(self, make):
        assert best_batch(0, [make.item(accuracy=math.nan)], [make.lte()], make.prices()) is None

    @given(
        st.lists(st.tuples(st.floats(1, 1e8), st.floats(0, 1)), min_size=1, max_size=12),
        st.floats(0, 5),
        st.floats(0, 1e-4),
        st.one_of(st.none(), st.floats(0, 100)),
    )
    def test_no_batch_gains_nothing_and_its_budget_is_kept(
        self, make, items, joule_s, byte_s, idle_s
    ):
        prices = make.prices(joule_s, byte_s, left=1e6)
        candidates = [make.item(n, size, accuracy) for n, (size, accuracy) in enumerate(items)]
        batch = best_batch(1, candidates, [make.wifi(present=False), make.lte(idle_s)], prices)
        if batch is not None:
            assert batch.gain_s > 0.0
            assert batch.size_bytes <= 1e6
            assert list(batch.keys) == sorted(batch.keys)
