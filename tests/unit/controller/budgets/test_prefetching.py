"""Prefetched items: budgets are paced for them, they are accounted for, and forgotten."""

from collections import Counter

import pytest
from kit.controller import Script

from cedos.budget_kinds import Resource
from cedos.controller.budgets.prefetching import MOST_WAYS
from cedos.controller.events import BudgetsCounted, BudgetSet, BudgetUse, PrefetchingChanged
from cedos.controller.hint import PrefetchReport, StartedMessage, TakingMessage
from cedos.model import Budget
from cedos.selector.budgets.keeper import Period
from cedos.selector.budgets.pacer import Pacer

UNIX_S = 1.8e9
DAY = Period(UNIX_S, UNIX_S + 86_400.0)
DATA = Budget("data", Resource.DATA, 1e8, "2026-11-22T09:00:00")
ENERGY = Budget("energy", Resource.ENERGY, 1e4, "2026-11-22T09:00:00")
LEFT = TakingMessage(3.0, 6.0, [0.0, 500_000.0])
OVER_WLAN = TakingMessage(0.0, 1.0, [1e6, 0.0])
OVER_LTE = TakingMessage(0.0, 8.0, [0.0, 1e6])


class Reported(Script):
    """A host with budgets of a day, of which an hour is over, and programs that report."""

    def __init__(self):
        super().__init__()
        self.carried = 0
        self.tell(*(BudgetSet(UNIX_S, each, DAY) for each in (DATA, ENERGY)))
        self.later(0.0)
        self.later(3600.0)

    @property
    def unix_s(self):
        return UNIX_S + self.now_s - 8.0

    @property
    def prefetching(self):
        return self.controller.prefetching

    def later(self, seconds):
        """Time passes, and the use is counted."""
        self.now_s += seconds
        used = (BudgetUse("data", self.carried, DAY, ""), BudgetUse("energy", 0.0, DAY, ""))
        self.tell(BudgetsCounted(self.unix_s, used))

    def report(self, **fields):
        known = {"program": "mail", "pid": 7, "networks": ["wlan0", "lte0"]}
        self.tell(PrefetchingChanged(PrefetchReport(**{**known, **fields})))

    def keeper(self, name="data"):
        return self.controller.budgets.keepers[name]

    def rate(self):
        return self.keeper().quote(self.unix_s).rate

    def bought(self):
        standings = self.controller.budgets.standings(self.unix_s)
        return {each.budget.name: each.bought_s for each in standings}


@pytest.fixture
def script():
    return Reported()


def test_the_price_rises_with_what_programs_have_open_and_falls_when_they_end(script):
    before = script.rate()
    script.report(waiting=[[LEFT, OVER_LTE]] * 100)
    script.later(1.0)
    assert script.rate() > 10 * before
    script.report(pid=8, waiting=[[LEFT, OVER_LTE]] * 100)
    script.later(1.0)
    both = script.rate()
    script.later(4.0)
    script.report(pid=8, waiting=[[LEFT, OVER_LTE]] * 100)
    script.later(4.0)  # the first one has not been heard of for 8 s
    assert before < script.rate() <= both
    assert list(script.prefetching.programs(script.now_s)) == [(8, "mail")]
    script.later(10.0)
    assert script.rate() == pytest.approx(before, rel=0.1)
    assert script.prefetching.programs(script.now_s) == {}


def test_what_was_prefetched_is_no_habit_of_the_host(script):
    for _ in range(60):  # ten minutes in which 30 MB come for what was open
        script.report(used_bytes=[0.0, 500_000.0])
        script.carried += 530_000
        script.later(10.0)
    assert script.keeper().spent == 60 * 530_000
    told = script.keeper().controller
    # A day of such minutes would be 4.5 GB; what goes on is what was never told of, which is nothing.
    assert told.set_aside(script.unix_s) < 1e6


def test_what_it_bought_is_accounted_for(script):
    script.report(started=[StartedMessage([LEFT, OVER_LTE], 1)])
    bought = script.bought()
    assert bought["data"] == pytest.approx(3.0, abs=0.2)
    assert bought["energy"] == pytest.approx(3.0, abs=0.2)
    script.report(
        started=[StartedMessage([LEFT, OVER_WLAN], 1)]
    )  # no metered byte was spent for that
    assert script.bought()["data"] == bought["data"]


def test_names_that_a_program_makes_up_are_not_kept(script):
    """64 new ones in each report filled the memory, 2 MB a second."""
    for number in range(50):
        script.report(networks=[f"made-up-{number}", "lte0"], used_bytes=[1e15, 1e3])
    assert script.prefetching._received == {"lte0": 50e3}
    script.later(4000.0)  # 50 kB is nothing after an hour
    script.later(1.0)
    assert script.prefetching._received == {}


def test_many_programs_with_many_ways_do_not_hold_the_daemon(script, monkeypatch):
    """100 programs of one user with 400 items each held it for minutes, once a report."""
    asked = Counter[float]()
    waiting = Pacer.waiting

    def counted(pacer, choices):
        asked[pacer.quote(script.unix_s).planned] += sum(map(len, choices))
        waiting(pacer, choices)

    monkeypatch.setattr(Pacer, "waiting", counted)
    for pid in range(1, 101):
        script.report(pid=pid, waiting=[[LEFT, OVER_LTE] * 5] * 300)
    assert not asked
    script.later(1.0)
    assert 0 < asked.total() <= MOST_WAYS
    script.later(0.1)
    assert asked.total() <= MOST_WAYS, "once a second at most"
