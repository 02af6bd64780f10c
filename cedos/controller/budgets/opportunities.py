"""The choices that finished flows were on this host, with the cost of each strategy.

A flow's choice is weighed again when it has ended, as only then its size is known for certain; by the
networks as they are then. Small flows are left out: they hardly count in any budget. So are those that
carried what programs had prefetched: these choices were told of while they were open (`prefetching`).
And a program that binds its socket to an interface leaves no choice: what it uses is used without one.
"""

from collections.abc import Callable
from typing import Final

from cedos.controller.budgets.keepers import BudgetKeepers
from cedos.controller.budgets.prefetching import Prefetching
from cedos.controller.decisions.decider import Decider
from cedos.model import Context, Direction, FlowRecord, SizeEstimate, Transfer

LEAST_BYTES: Final = 30_000
# The least time between two samples. On a busy host a sample of the flows tells as much as all.
_APART_S: Final = 0.1


class Opportunities:
    """Tells the budgets of finished flows."""

    def __init__(self, budgets: BudgetKeepers, decider: Decider, prefetching: Prefetching) -> None:
        self._budgets = budgets
        self._decider = decider
        self._prefetching = prefetching
        self._last_s = float("-inf")
        self._left_out_bytes = 0

    def on_finished(self, record: FlowRecord, look: Callable[[], Context]) -> None:
        """Tell the budgets of a finished flow that could have gone another way.

        `look`: returns what is known of the networks now.
        """
        if not self._budgets.keepers:
            return
        down = sum(path.bytes_down for path in record.subflows)
        up = sum(path.bytes_up for path in record.subflows)
        size = max(down, up)
        if size < LEAST_BYTES:
            return
        most = max(record.subflows, key=lambda path: path.bytes_down + path.bytes_up)
        if most.network is not None and self._prefetching.account(most.network, size):
            return
        context = look()
        if context.at_s - self._last_s < _APART_S:
            self._left_out_bytes += size
            return
        self._last_s = context.at_s
        way = Direction.DOWN if down >= up else Direction.UP
        transfer = Transfer(SizeEstimate(size, size, size, "progress"), way)
        evaluations = self._decider.weigh(transfer, context)
        used = [each.strategy.networks[0] for each in evaluations]
        if most.network not in used:
            return
        # Those that were left out are taken to be like this one.
        total = size + self._left_out_bytes
        self._left_out_bytes = 0
        times = total / size
        options = [
            (name, each.time_s * times, each.energy_j * times, total)
            for name, each in zip(used, evaluations, strict=True)
        ]
        self._budgets.on_choice(options, used.index(most.network), context.at_s)
