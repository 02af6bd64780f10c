"""Budgets as they go over the control socket."""

from collections.abc import Callable

from cedos.api.budgets import BudgetMessage
from cedos.api.programs import PriceMessage
from cedos.controller.budgets.keepers import BudgetKeepers
from cedos.controller.controller import Controller
from cedos.selector.budgets.controller import PROHIBITIVE, steps


def messages(
    controller: Controller, source: Callable[[str], str], unix_s: float
) -> list[BudgetMessage]:
    """Return all budgets and how they stand, with their prices, and what networks each one bars.

    `source`: where a budget was set, by its name.
    """
    budgets, hard, found = controller.budgets, controller.hard, []
    for standing in budgets.standings(unix_s):
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
            source=source(budget.name),
            controller=budgets.keepers[budget.name].controller.name,
            barred=hard.barred_by(budget.name),
            unkept=hard.unkept(budget.name),
        )
        found.append(message)
    return found


def price_messages(budgets: BudgetKeepers, unix_s: float) -> list[PriceMessage]:
    """Return the prices of all budgets that have one."""
    found = []
    for keeper, quote in budgets.quoted(unix_s):
        budget = keeper.budget
        spent_up = quote.rate >= PROHIBITIVE
        left = budget.supply - keeper.spent
        found.append(
            PriceMessage(
                resource=budget.resource.value,
                networks=budget.networks,
                s_per_unit=None if spent_up else quote.rate,
                steps=() if spent_up else tuple(steps(quote, left)),
            )
        )
    return found
