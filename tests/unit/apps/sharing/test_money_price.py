"""Hard budgets of money: the daemon's, where there is one."""

from cedos.api.budgets import BudgetMessage
from cedos.apps.sharing.request_driver import MoneyBudgets


def budget(
    resource, s_per_unit, *, spent_up = False, spent = 0.0,
    hard = False, over = False
):  # fmt: skip
    return BudgetMessage(
        name="b", resource=resource, supply=1.0, spent=spent, begins_unix_s=0.0, ends_unix_s=1.0,
        s_per_unit=s_per_unit, spent_up=spent_up, hard=hard, over=over,
    )  # fmt: skip


def test_a_hard_budget_of_money_that_is_used_up_forbids_helpers():
    def spent(each):
        strategy = MoneyBudgets(lambda: [each])
        strategy.ask()
        return strategy.spent

    assert spent(budget("money", None, spent=1.0, hard=True)) == "b"
    assert spent(budget("money", 1.0, spent=0.99, hard=True)) == ""
    assert spent(budget("money", None, spent=1.0)) == ""
    assert spent(budget("money", None, spent=1.0, hard=True, over=True)) == ""
    assert spent(budget("data", None, spent=1.0, hard=True)) == ""
