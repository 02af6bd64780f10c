"""Budgets as they go over the control socket, to and fro."""

from collections.abc import Callable

from cedos.api.budgets import BudgetMessage, UnitsMessage
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.selector.budgets.controller import PROHIBITIVE


def messages(
    budgets: HostBudgets,
    barred_by: Callable[[str], tuple[str, ...]] = lambda _: (),
    unkept: Callable[[str], str] = lambda _: "",
) -> list[BudgetMessage]:
    """Return all budgets and how they stand, with their prices, and by name what networks each one bars.

    `unkept`: why one that is spent bars none, by its name; "": it does, or need not.
    """
    found = []
    for standing in budgets.standings():
        budget, suspended = standing.budget, budgets.suspended(standing.budget)
        expected = standing.forecast
        spent_up = not standing.over and standing.rate >= PROHIBITIVE and not suspended
        priced = not (spent_up or standing.over or suspended)
        message = BudgetMessage.of(
            budget,
            spent=standing.spent,
            begins_unix_s=standing.period.begins_s,
            ends_unix_s=standing.period.ends_s,
            forecast=expected.likely if expected else None,
            forecast_low=expected.low if expected else None,
            forecast_high=expected.high if expected else None,
            s_per_unit=standing.rate if priced else None,
            spent_up=spent_up,
            bought_s=standing.bought_s,
            over=standing.over,
            suspended=suspended,
            source=budgets.source(budget.name),
            controller=budgets.keepers[budget.name].controller.name,
            barred=barred_by(budget.name),
            unkept=unkept(budget.name),
            units=UnitsMessage.of(budget),
        )
        found.append(message)
    return found
