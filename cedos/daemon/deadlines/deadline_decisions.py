"""The decision about a transfer with a deadline as a record: deferring is one of its strategies."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from cedos.api.transfers import TurnMessage, sentence
from cedos.daemon.decisions.decider import Decider
from cedos.model import (
    Bulk,
    Context,
    Decision,
    Label,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
    Urgency,
)
from cedos.selector.deadlines.network_state import NetworkState
from cedos.selector.deadlines.plan import DeadlineFlow, expected_bytes
from cedos.selector.deadlines.prospect import Watts, alternatives
from cedos.selector.deadlines.transfer_table import TableTransfer


class DeadlineDecisions:
    """Numbers and records them, beside the daemon's other decisions (`cedos explain`)."""

    def __init__(self, decider: Decider, context: Callable[[], Context]) -> None:
        self._decider, self._context = decider, context

    def __call__(
        self,
        transfer: TableTransfer,
        turn: TurnMessage,
        flow: DeadlineFlow,
        flows: Sequence[DeadlineFlow],
        states: Sequence[NetworkState],
        now: float,
    ) -> None:
        """Publish a decision when a transfer's networks change."""
        decider = self._decider
        radios = decider.choices.power.radios
        watts = {
            each.name: Watts(
                radios[each.kind].active_w(transfer.direction), radios[each.kind].tail_j
            )
            for each in decider.networks
        }
        objective = decider.objective
        s_per_j = getattr(objective, "s_per_j", 0.0) + objective.prices.energy_rate()
        left = transfer.size_bytes
        size = round(flow.left_bytes) if left is not None else round(expected_bytes(0))
        kind = (
            StrategyKind.DEFER
            if not turn.networks
            else StrategyKind.SINGLE
            if len(turn.networks) == 1
            else StrategyKind.MPTCP
        )
        wall = time.time()
        decider.record(
            Decision(
                number=decider.number,
                made_unix_s=wall,
                transfer=Transfer(
                    SizeEstimate(size, size, size, "hint" if flow.exact else "default"),
                    transfer.direction,
                    Label(Urgency.BACKGROUND, Bulk.LARGE),
                    max(transfer.deadline_unix_s - wall, 0.0),
                    server_name=transfer.server,
                ),
                context=self._context(),
                evaluations=alternatives(flow, flows, states, watts, s_per_j, now),
                choice=Strategy(kind, turn.networks),
                objective=objective.name,
                reason=f"{transfer.name}: "
                + sentence(turn, transfer.deadline_unix_s, datetime.fromtimestamp(wall)),
            )
        )
