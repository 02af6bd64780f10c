"""Hard budgets: spent, barred and lifted, whatever happens in between."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.controller import LTE, WLAN, Script

from cedos.budget_kinds import Resource
from cedos.controller import events as on
from cedos.controller.commands import BarNetworks, CountUse, Tell, WatchNetworks
from cedos.controller.controller import Controller
from cedos.model import Budget, Every
from cedos.selector.budgets.keeper import Period

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH, hard=True)
USED_UP = 'because the hard budget "data" is used up (1 GB of 1 GB)'


class Spending(Script):
    """Budgets are spent, and the kernel bars what it is asked to, or refuses."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.budgets = [DATA]
        self.spent = {"data": 0.0}
        self.begins_s = 0.0
        self.refuses = ""
        # What the kernel was asked to bar; `watched`: the networks that are pinged.
        self.bars = []
        self.watched = set()
        self.told = []  # what people were told

    @property
    def hard(self):
        return self.controller.hard

    @property
    def barred(self):
        """Return the networks that are barred now."""
        return list(self.bars[-1]) if self.bars else []

    def use(self, size=0.0, after_s=1.0):
        """The metered network carries something; returns in how long it is counted again."""
        self.spent["data"] += size
        self.now_s += after_s
        self.happen(*self.counted())
        at_s = self.hard.next_timer_s()
        return None if at_s is None else round(at_s - self.now_s, 6)

    def counted(self):
        """The budgets of now are told where they are others than before, and what is used of each."""
        period = Period(self.begins_s, self.begins_s + 1e6)
        before, now = self.controller.budgets.keepers, {each.name: each for each in self.budgets}
        removed = [on.BudgetRemoved(name) for name in before.keys() - now]
        told = [
            on.BudgetSet(self.now_s, each, period)
            for name, each in now.items()
            if name not in before or before[name].budget != each
        ]
        uses = tuple(
            on.BudgetUse(each.name, self.spent.get(each.name, 0.0), period, "2026-12-01 00:00")
            for each in self.budgets
        )
        return [*removed, *told, on.BudgetsCounted(self.now_s, uses)]

    def happen(self, *events):
        waiting = list(events)
        while waiting:
            for command in self.tell(waiting.pop(0)):
                waiting += self.carry_out(command)

    def carry_out(self, command):
        match command:
            case BarNetworks() if self.refuses:
                return [on.CommandFailed(command, why=self.refuses)]
            case BarNetworks(networks):
                self.bars.append(networks)
                return [on.CommandDone(command)]
            case WatchNetworks(networks):
                self.watched = {each.name for each in networks if each.up}
            case Tell(what, _):
                self.told.append(what)
        return []


@pytest.fixture
def script():
    return Spending()


def test_it_warns_twice_then_bars_and_says_so(script):
    script.use(899e6)
    assert (script.hard.problems, script.told) == ([], [])
    for size in (1e6, 1e6, 90e6, 1e6):
        script.use(size, 100.0)
    assert script.told == ["a hard budget is nearly used up", "a hard budget is almost used up"]
    assert "almost used up: 8 MB of 1 GB left" in script.hard.problems[0]
    assert script.bars == []
    script.use(8e6, 100.0)
    assert (script.barred, script.watched) == (["lte0"], {"wlan0"})
    assert USED_UP in script.controller.decider.barred["lte0"]
    (problem,) = script.hard.problems
    assert "programs are blocked on lte0 until 2026-12-01 00:00" in problem
    assert script.hard.barred_by("data") == ("lte0",)
    script.use()
    assert len(script.bars) == 1, "once is enough"


def test_what_is_coming_is_reckoned_with_and_what_is_left_then_opens_nothing(script):
    for _ in range(199):  # 40 Mbit/s
        script.use(5e6)
    assert script.bars == []
    script.use(4.5e6, 0.9)
    assert script.barred == ["lte0"]
    assert script.spent["data"] == 999.5e6
    script.use(0, 100.0)
    assert len(script.bars) == 1
    script.budgets = [replace(DATA, supply=1.001e9)]
    script.use()
    assert script.barred == []


@given(st.floats(1e5, 2e7), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20), st.floats(0, 1))
def test_a_hard_budget_is_never_exceeded(most_per_s, loads, begun):
    """By more than what a network of up to 160 Mbit/s carries between two counts near the end."""
    script = Spending()
    script.use(begun * 0.99e9, 10_000.0)
    for load in loads * 40:
        if script.barred:
            break
        next_s = script.hard.next_timer_s()
        after_s = 1.0 if next_s is None else next_s - script.now_s
        script.use(load * most_per_s * after_s, after_s)
    if script.barred:
        assert script.spent["data"] <= 1e9 * 1.005


def test_a_new_period_more_supply_and_removal_lift_it(script):
    for lift in ("period", "supply", "removed"):
        script.budgets, script.spent["data"] = [DATA], 0.0
        script.use(1e9)
        assert script.barred == ["lte0"], lift
        match lift:
            case "period":
                script.begins_s += 1e6
                script.spent["data"] = 0.0
            case "supply":
                script.budgets = [replace(DATA, supply=9e9)]
            case "removed":
                script.budgets = []
        script.use()
        assert (script.barred, script.watched) == ([], {"wlan0", "lte0"}), lift
        assert script.controller.decider.barred == {}, lift


def test_nothing_is_kept_of_budgets_that_are_gone(script):
    for number in range(3):
        script.budgets = [replace(DATA, name=f"trip-{number}")]
        script.use(1e9)
    script.budgets = []
    script.use()
    assert not script.hard._courses


def test_a_network_that_vanishes_is_barred_when_it_comes_back_and_another_metered_one_too(script):
    script.use(1e9)
    for networks in ((WLAN,), (WLAN, replace(LTE, index=9))):
        script.happen(on.NetworksChanged(networks))
        script.use()
    assert script.bars == [("lte0",)]
    usb = replace(LTE, name="usb0", interface="usb0", index=10)
    script.happen(on.NetworksChanged((WLAN, usb)))
    assert script.barred == ["lte0", "usb0"], "at once"
    assert USED_UP in script.controller.decider.barred["usb0"]


def test_what_the_kernel_refuses_is_said_and_tried_again(script):
    assert script.hard.unkept("data") == ""
    script.refuses = "iptables is not installed"
    script.use(1e9)
    assert "hard budgets cannot be enforced: iptables is not installed" in script.hard.problems
    assert "programs should be blocked on lte0 until 2026-12-01" in script.hard.problems[0]
    assert script.hard.barred_by("data") == ()
    assert script.hard.unkept("data") == "iptables is not installed"
    assert script.hard.unkept("another") == ""
    why = script.controller.decider.barred["lte0"]  # nothing is led there all the same
    assert USED_UP in why
    assert why.endswith("Programs cannot be blocked there: iptables is not installed")
    script.refuses = ""
    script.use()
    assert script.bars == []
    script.use(0, 10.0)
    assert script.barred == ["lte0"]
    assert not any("cannot" in problem for problem in script.hard.problems)
    assert script.controller.decider.barred["lte0"].startswith("Programs are blocked on lte0 until")
    assert script.hard.unkept("data") == ""


def test_the_nearer_the_end_the_sooner_it_is_counted(script):
    script.budgets = []
    assert script.use() is None
    script.budgets = [DATA]
    assert script.use(1_000) is None, "each second, as ever"
    near_s = script.use(980e6)
    assert 0.05 <= near_s < 0.1
    given = script.tell(on.TimerFired(), at_s=script.now_s + near_s)
    assert CountUse() in given
    assert script.hard.next_timer_s() is None, "until that is done"
    assert script.use(0, 5.0) == 0.2, "nothing moves"
    assert script.use(20e6) is None, "spent"


def test_a_network_that_cannot_be_opened_again_is_told_of_though_no_budget_is_left(script):
    script.use(1e9)
    script.refuses, script.budgets = "iptables does not end", []
    script.use()
    expected = "networks that were blocked cannot be unblocked: iptables does not end"
    assert script.hard.problems == [expected]
    script.refuses = ""
    script.use(0, 10.0)
    assert (script.barred, script.hard.problems) == ([], [])


def test_bars_do_not_outlive_their_controller():
    script = Spending()
    script.use(1e9)
    again = Controller(script.controller.config)
    again.handle(on.NetworksChanged((WLAN, LTE)), 1.0)
    again.handle(on.BudgetSet(1.0, DATA, Period(0.0, 1e6)), 1.0)
    again.handle(script.counted()[-1], 2.0)
    assert BarNetworks(("lte0",)) in again.commands(), "another one bars again"
