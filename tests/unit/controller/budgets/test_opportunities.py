"""Opportunities: finished flows that tell the budgets of a choice."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.controller import KEY, MONTH, Script

from cedos.budget_kinds import Resource
from cedos.controller.budgets.opportunities import LEAST_BYTES
from cedos.controller.events import BudgetSet, FlowClosed, FlowOpened, PrefetchingChanged
from cedos.controller.hint import PrefetchReport
from cedos.model import Budget
from cedos.selector.budgets.keeper import Keeper

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00")


class Offered(Script):
    """A host with a budget, and the choices that its keeper is told of, with the one taken."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.choices = []
        offered = Keeper.on_choice

        def noted(keeper, now_s, options, taken):
            self.choices.append((options, taken))
            offered(keeper, now_s, options, taken)

        monkeypatch.setattr(Keeper, "on_choice", noted)
        self.tell(BudgetSet(1e3, DATA, MONTH))
        self.decide(8.5)

    def finishes(self, size=1_000_000, *, local="10.0.0.2", at_s=10.0):
        """A download ends, which has carried so much."""
        key = replace(KEY, local=ip_address(local), local_port=int(1000 * at_s) % 50_000)
        self.tell(FlowOpened(key, at_s - 0.04, 100.0), at_s=at_s - 0.04)
        self.tell(FlowClosed(key, 102.0, size, 80, at_s=at_s), at_s=at_s)


@pytest.fixture
def script(monkeypatch):
    return Offered(monkeypatch)


def test_a_choice_is_told_with_what_each_way_would_have_taken(script):
    script.finishes()
    ((options, taken),) = script.choices
    assert [round(each.cost_s, 2) for each in options] == [8.04, 0.56]
    assert [each.amount for each in options] == [0.0, 1e6]
    assert taken is options[0]


def test_what_tells_nothing_is_left_out(script):
    script.finishes(LEAST_BYTES - 1)
    script.finishes(local="10.8.0.2", at_s=11.0)  # of a VPN
    used = PrefetchReport(program="mail", pid=7, networks=["wlan0"], used_bytes=[1e6])
    script.tell(PrefetchingChanged(used))
    script.finishes(at_s=12.0)
    assert script.choices == []


def test_on_a_busy_host_one_stands_for_those_just_before_it(script):
    for at_s in (10.0, 10.05, 10.2):
        script.finishes(at_s=at_s)
    first, further = (options for options, _ in script.choices)
    assert [each.amount for each in further] == [0.0, 2e6]
    assert further[0].cost_s == pytest.approx(2 * first[0].cost_s)
