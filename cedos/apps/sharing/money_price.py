"""The worth of money for the choice of helpers: the daemon's price where a daemon runs."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from cedos.api.budgets import BudgetMessage
from cedos.errors import CedosError
from cedos.selector.sharing import HelperChoice, HelperOffer, LeastCost

_AGAIN_S: Final = 1.0
_PROHIBITIVE_S: Final = 1e9


class DaemonPriced:
    """The strategy of least cost, with money at the price of the daemon's budgets as of lately.

    Args:
        budgets: asks the daemon; CedosError: none answers. It may block.

    Attributes:
        spent: the name of a hard budget of money that is used up, so that no helper may be used; or "".
    """

    def __init__(self, budgets: Callable[[], list[BudgetMessage]]) -> None:
        self._budgets = budgets
        self._least = LeastCost()
        self.spent = ""

    def __call__(self, offers: Sequence[HelperOffer], wanted_bps: float) -> HelperChoice:
        return self._least(offers, wanted_bps)

    def ask(self) -> None:
        """Take the price of now; without a daemon or a budget of money it is the fixed one."""
        try:
            budgets = [each for each in self._budgets() if each.resource == "money"]
        except CedosError:
            budgets = []
        # Without a helper the daemon has no price for money, so the use counts, and not `spent_up`.
        spent = (it.name for it in budgets if it.hard and not it.over and it.spent >= it.supply)
        self.spent = next(spent, "")
        prices = [_PROHIBITIVE_S if each.spent_up else each.s_per_unit for each in budgets]
        known = [each for each in prices if each is not None]
        self._least = LeastCost(s_per_money=sum(known)) if known else LeastCost()

    async def follow(self) -> None:
        """Ask every second, until it is cancelled."""
        while True:
            await asyncio.to_thread(self.ask)
            await asyncio.sleep(_AGAIN_S)
