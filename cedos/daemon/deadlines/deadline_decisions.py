"""The decision about a transfer with a deadline as a record: deferring is one of its strategies."""

import time
from collections.abc import Sequence
from datetime import datetime

from cedos.api.transfers import TurnMessage, sentence
from cedos.controller.events import DecisionMade
from cedos.daemon.driver import ControllerDriver
from cedos.model import (
    Bulk,
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

    def __init__(self, driver: ControllerDriver) -> None:
        self._driver = driver

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
        decider = self._driver.controller.decider
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
        self._driver.post(
            DecisionMade(
                Transfer(
                    SizeEstimate(size, size, size, "hint" if flow.exact else "default"),
                    transfer.direction,
                    Label(Urgency.BACKGROUND, Bulk.LARGE),
                    max(transfer.deadline_unix_s - wall, 0.0),
                    server_name=transfer.server,
                ),
                Strategy(kind, turn.networks),
                f"{transfer.name}: "
                + sentence(turn, transfer.deadline_unix_s, datetime.fromtimestamp(wall)),
                alternatives(flow, flows, states, watts, s_per_j, now),
            )
        )
