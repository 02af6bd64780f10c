"""The worth of money: the daemon's where there is one."""

from cedos.api.budgets import BudgetMessage
from cedos.apps.sharing.request_driver import DaemonPriced
from cedos.errors import DaemonUnreachableError
from cedos.selector.sharing import HelperOffer

M = 1e6
OFFERS = [
    HelperOffer(b"cheap", 200_000, known_bps=2 * M),
    HelperOffer(b"dear", 20_000_000, known_bps=8 * M),
]


def budget(
    resource, s_per_unit, *, spent_up = False, spent = 0.0,
    hard = False, over = False
):  # fmt: skip
    return BudgetMessage(
        name="b", resource=resource, supply=1.0, spent=spent, begins_unix_s=0.0, ends_unix_s=1.0,
        s_per_unit=s_per_unit, spent_up=spent_up, hard=hard, over=over,
    )  # fmt: skip


def chosen(*budgets):
    strategy = DaemonPriced(lambda: list(budgets))
    strategy.ask()
    return {each.helper for each in strategy(OFFERS, 8 * M).helpers}


def test_the_price_of_money_decides_between_time_and_money():
    assert b"dear" in chosen(budget("money", 1.0))
    assert chosen(budget("money", 1e6)) == {b"cheap"}
    assert chosen(budget("money", None, spent_up=True)) == {b"cheap"}


def test_other_budgets_say_nothing_of_money():
    assert chosen(budget("data", 1e6)) == chosen() == chosen(budget("money", None))


def test_a_daemon_that_ends_leaves_the_fixed_price():
    answers = iter([[budget("money", 1e6)]])

    def ask():
        for answer in answers:
            return answer
        raise DaemonUnreachableError("no daemon answers")

    strategy = DaemonPriced(ask)
    strategy.ask()
    assert {each.helper for each in strategy(OFFERS, 8 * M).helpers} == {b"cheap"}
    strategy.ask()
    assert {each.helper for each in strategy(OFFERS, 8 * M).helpers} == chosen()


def test_a_hard_budget_of_money_that_is_used_up_forbids_helpers():
    def spent(each):
        strategy = DaemonPriced(lambda: [each])
        strategy.ask()
        return strategy.spent

    assert spent(budget("money", None, spent=1.0, hard=True)) == "b"
    assert spent(budget("money", 1.0, spent=0.99, hard=True)) == ""
    assert spent(budget("money", None, spent=1.0)) == ""
    assert spent(budget("money", None, spent=1.0, hard=True, over=True)) == ""
    assert spent(budget("data", None, spent=1.0, hard=True)) == ""
