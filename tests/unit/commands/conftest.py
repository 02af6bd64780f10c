"""Budgets as the daemon tells of them, and what people are shown."""

import pytest

from cedos.api.budgets import BudgetMessage
from cedos.commands import budget, explain


@pytest.fixture
def budget_message():
    """Return a maker of a data budget of 4 GB, of which nothing is spent; `changed` sets other fields."""

    def make(**changed):
        usual = {
            "name": "data", "resource": "data", "supply": 4e9, "spent": 0.0, "begins_unix_s": 0.0,
            "ends_unix_s": 9e8,
        }  # fmt: skip
        return BudgetMessage(**usual | changed)

    return make


@pytest.fixture
def budget_shown(budget_message):
    """Return what `cedos budget` and `cedos explain` show of such a budget at the epoch."""

    def show(**changed):
        one = budget_message(**changed)
        return "\n".join([*budget.lines([one], 0.0), *explain.prices([one], 0.0)])

    return show
