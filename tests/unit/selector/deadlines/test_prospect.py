"""Predicted ends of flows are found fast: the answer to each report of a program needs one."""

import math
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from cedos.selector.deadlines.prospect import ends_s

QUANTILES = (0.05, 0.5, 0.95)
LONGEST_S = 30 * 86_400.0


class Steady:
    """A supply of a rate that varies by a factor, after a time without."""

    def __init__(self, rate_bps, spread, away_s):
        self.rate_bps, self.spread, self.away_s = rate_bps, spread, away_s
        self.asked = 0

    def bits(self, within_s, q, wait_s=0.0):
        self.asked += 1
        there_s = max(within_s - max(wait_s, self.away_s), 0.0)
        return there_s * self.rate_bps * math.exp((q - 0.5) * self.spread)


def network(supply):
    return SimpleNamespace(supply=supply)


supplies = st.builds(Steady, st.floats(1, 1e9), st.floats(0, 3), st.sampled_from([0.0, 7.0, 1e4]))


@given(
    st.floats(0, 1e13), st.lists(supplies, max_size=2), supplies, st.sampled_from([0.0, 60.0, 1e6])
)
def test_an_end_is_when_the_networks_have_carried_all(bits, free, paid, begin_s):
    def carried(at_s, q):
        found = sum(each.bits(at_s, q) for each in free)
        return found + (paid.bits(at_s, q, begin_s) if at_s > begin_s else 0.0)

    ends = ends_s(bits, [network(each) for each in free], [network(paid)], begin_s, QUANTILES)
    for end_s, quantile in zip(ends, QUANTILES, strict=True):
        q = 1.0 - quantile
        if math.isinf(end_s):
            assert carried(LONGEST_S, q) < bits
        else:
            assert carried(end_s, q) >= bits
            before_s = end_s * 0.999 - 0.001
            assert before_s <= 0.0 or carried(before_s, q) < bits


def test_it_is_found_in_few_steps():
    """It took 99 for each answer to a report, and hundreds for a decision that is recorded."""
    supply = Steady(2e7, 1.0, 0.0)
    for bits in (1e4, 1e7, 1e10, 1e13):
        supply.asked = 0
        ends_s(bits, [network(supply)], [], math.inf, QUANTILES)
        assert supply.asked <= 50
