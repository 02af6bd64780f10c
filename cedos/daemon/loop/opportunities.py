"""Collect the choices that finished flows were on this host, with the cost of each strategy.

A flow's choice is weighed again when it has ended, as only then its size is known for certain; by the
networks as they are then. Small flows are left out: they hardly count in any budget. So are those that
carried what programs had prefetched: these choices were told of while they were open (`prefetching`).
And a program that binds its socket to an interface leaves no choice: what it uses is used without one.
"""

from collections.abc import Callable, Sequence

from cedos.controller.decisions.decider import Decider
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.model import Context, Direction, FlowRecord, SizeEstimate, Transfer

LEAST_BYTES = 30_000
# The least time between two samples. On a busy host a sample of the flows tells as much as all.
_APART_S = 0.1


class Opportunities:
    """Tells the budgets of finished flows.

    Args:
        prefetched: whether so many bytes over a network were a prefetch's; that takes them.
    """

    def __init__(
        self,
        budgets: HostBudgets,
        decider: Decider,
        prefetched: Callable[[str, int], bool] = lambda network, size: False,
    ) -> None:
        self._budgets = budgets
        self._decider = decider
        self._prefetched = prefetched
        self._last_s = float("-inf")
        self._left_out_bytes = 0

    def finished(self, record: FlowRecord, context: Callable[[], Context]) -> None:
        """Tell the budgets of a finished flow that could have gone another way."""
        if not self._budgets.keepers:
            return
        down = sum(path.bytes_down for path in record.subflows)
        up = sum(path.bytes_up for path in record.subflows)
        size = max(down, up)
        if size < LEAST_BYTES:
            return
        most = max(record.subflows, key=lambda path: path.bytes_down + path.bytes_up)
        if most.network is not None and self._prefetched(most.network, size):
            return
        known = context()
        if known.at_s - self._last_s < _APART_S:
            self._left_out_bytes += size
            return
        self._last_s = known.at_s
        way = Direction.DOWN if down >= up else Direction.UP
        transfer = Transfer(SizeEstimate(size, size, size, "progress"), way)
        evaluations = self._decider.weighed(transfer, known)
        used = [each.strategy.networks[0] for each in evaluations]
        if most.network not in used:
            return
        # Those that were left out are taken to be like this one.
        total = size + self._left_out_bytes
        self._left_out_bytes = 0
        times = total / size
        options: Sequence[tuple[str, float, float, int]] = [
            (name, each.time_s * times, each.energy_j * times, total)
            for name, each in zip(used, evaluations, strict=True)
        ]
        self._budgets.offered(options, used.index(most.network))
