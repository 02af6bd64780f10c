"""The outlook of prefetching: accuracy in the shadow, average conditions, stays and absences."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.prefetch.outlook import Average, Outlook, Stretches
from cedos.selector.prefetch.value import ASSUMED, ShadowAccuracy


class TestAccuracy:
    def test_without_a_single_sample_it_is_assumed(self):
        assert ShadowAccuracy().of("anything") == ASSUMED

    def test_a_class_without_a_sample_is_like_the_application(self):
        accuracy = ShadowAccuracy()
        for _ in range(50):
            accuracy.on_resolved("a", consumed=True)
        assert accuracy.of("new") > 0.9

    def test_classes_are_told_apart(self):
        accuracy = ShadowAccuracy()
        for _ in range(100):
            accuracy.on_resolved("read", consumed=True)
            accuracy.on_resolved("skipped", consumed=False)
        assert accuracy.of("read") > 0.95
        assert accuracy.of("skipped") < 0.05

    def test_habits_shift(self):
        accuracy = ShadowAccuracy(memory=20)
        for consumed in [True] * 100 + [False] * 60:
            accuracy.on_resolved("", consumed)
        assert accuracy.of("") < 0.2

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
    def test_it_is_always_a_probability(self, fates):
        accuracy = ShadowAccuracy(memory=5)
        for cls, consumed in fates:
            accuracy.on_resolved(cls, consumed)
        for cls in "abcd":
            assert 0.0 < accuracy.of(cls) < 1.0


class TestOutlook:
    def test_unknown_networks_have_no_average(self):
        outlook = Outlook({})
        assert outlook.of("wifi") is None
        outlook.observe("wifi", 10.0, present=False)
        assert outlook.of("wifi") is None

    def test_averages_are_of_what_was_seen(self):
        outlook = Outlook({}, memory_s=1e9)
        for _ in range(5):
            outlook.observe("wifi", 30.0, True, 8e6, 0.1)
            outlook.observe("wifi", 90.0, False)
        average = outlook.of("wifi")
        assert average.availability == pytest.approx(0.25, rel=1e-3)
        assert average.absence_s == pytest.approx(90.0, rel=1e-3)
        assert average.fetch_s(1e6) == pytest.approx(1.1, rel=1e-3)

    def test_times_are_averaged_and_not_rates(self):
        outlook = Outlook({}, memory_s=1e9)
        outlook.observe("lte", 1.0, True, 1e6, 0.0)
        outlook.observe("lte", 1.0, True, 9e6, 0.0)
        average = outlook.of("lte")
        # The mean of 8 s and 8/9 s, and not what 5 Mbit/s would take.
        assert average.fetch_s(1e6) == pytest.approx(4.444, rel=1e-3)

    def test_a_prior_gives_way_to_what_is_seen(self):
        outlook = Outlook({"wifi": Average(0.5, 1e-6, 0.2, 60.0)}, prior_s=100.0)
        assert outlook.of("wifi") == Average(0.5, 1e-6, 0.2, 60.0)
        for _ in range(100):
            outlook.observe("wifi", 60.0, True, 1e7, 0.01)
        average = outlook.of("wifi")
        assert average.availability > 0.98
        assert average.s_per_bit < 1.2e-7

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
    def test_nonsense_is_not_taken_in(self, bad):
        outlook = Outlook({"wifi": Average(0.5, 1e-6, 0.2, 60.0)})
        outlook.observe("wifi", bad, True, 1e6, 0.1)
        outlook.observe("wifi", 600.0, True, bad, bad)
        average = outlook.of("wifi")
        assert (average.s_per_bit, average.latency_s) == (1e-6, 0.2)
        assert average.availability == pytest.approx(0.75, rel=1e-3)


class TestStretches:
    """Tests of how long networks stay and stay away, by the shared dwell predictor."""

    def test_what_has_been_away_for_long_stays_away_for_longer(self):
        wifi = Stretches(stay_s=30.0, absence_s=60.0)
        wifi.record(5.0, present=True)
        wifi.record(1.0, present=False)
        soon = wifi.stretch().away_s
        assert soon == pytest.approx(60.0, rel=0.2)
        wifi.record(300.0, present=False)
        assert wifi.stretch().away_s > 1.5 * soon
        wifi.record(1.0, present=True)
        assert wifi.stretch().away_s == 0.0
        assert wifi.stretch().age_s == 1.0

    def test_short_contacts_are_learned(self):
        wifi = Stretches(stay_s=300.0, absence_s=60.0)
        before = wifi.stretch().stay.survival(60.0)
        for _ in range(20):
            wifi.record(8.0, present=True)
            wifi.record(50.0, present=False)
        assert before > 0.5
        assert wifi.stretch().stay.survival(60.0) < 0.3

    def test_the_first_stretch_began_before_anybody_looked(self):
        """It is known only to be longer: no reason to believe in short ones."""
        seen, whole = Stretches(300.0, 60.0), Stretches(300.0, 60.0)
        whole.record(60.0, present=False)
        for stretches in (seen, whole):
            stretches.record(2.0, present=True)
            stretches.record(1.0, present=False)
        assert seen.stretch().stay.survival(60.0) > whole.stretch().stay.survival(60.0)

    @pytest.mark.parametrize("stay_s", [math.inf, 0.0, 1e300])
    def test_no_mean_is_too_long_or_short(self, stay_s):
        stretch = Stretches(stay_s, stay_s).stretch()
        assert 0.0 <= stretch.stay.survival(10.0) <= 1.0
        assert math.isfinite(stretch.away_s)

    def test_an_outlook_keeps_them_by_network(self):
        outlook = Outlook({"lte": Average(1.0, 1e-6, 0.05, 0.0)})
        assert outlook.stretch("lte") is None
        outlook.observe("lte", 1.0, present=True)
        stretch = outlook.stretch("lte")
        # One that was never away stays.
        assert stretch.stay.survival_after(stretch.age_s, 3600.0) > 0.99
