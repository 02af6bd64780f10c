"""Budgets as the daemon tells of them, and what people are shown."""

from collections.abc import Callable
from typing import Any

import pytest

from cedos.api.budgets import BudgetMessage
from cedos.commands import budget, explain


@pytest.fixture
def budget_message() -> Callable[..., BudgetMessage]:
    """Return a maker of a data budget of 4 GB, of which nothing is spent; `changed` sets other fields."""

    def make(**changed: Any) -> BudgetMessage:
        usual = {
            "name": "data",
            "resource": "data",
            "supply": 4e9,
            "spent": 0.0,
            "begins_unix_s": 0.0,
            "ends_unix_s": 9e8,
        }
        return BudgetMessage(**usual | changed)

    return make


@pytest.fixture
def budget_shown(budget_message: Callable[..., BudgetMessage]) -> Callable[..., str]:
    """Return what `cedos budget` and `cedos explain` show of such a budget at the epoch."""

    def show(**changed: Any) -> str:
        one = budget_message(**changed)
        return "\n".join([*budget.lines([one], 0.0), *explain.prices([one], 0.0)])

    return show
