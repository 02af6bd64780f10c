"""Choose the network of new connections without facts: where a small transfer is quickest.

Source: Delphi, section 4.
"""

import math

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.steer_interface import Steer, carried_out
from cedos.model import Context, Decision, Strategy, StrategyKind


class DefaultNetwork:
    """Keeps the host's default where it is best.

    Attributes:
        decision: the one in force; None before the first.
        reason: why it is in force, by what was known when it was last looked at.
    """

    def __init__(self, steer: Steer, decider: Decider) -> None:
        self.decision: Decision | None = None
        self.reason = "nothing has been decided yet"
        self._steer = steer
        self._decider = decider

    async def reconsider(self, context: Context) -> None:
        decision = self._decider.considered(self._decider.unknown(), context, self.decision)
        self.reason = decision.reason
        if self.decision is not None and decision.choice == self.decision.choice:
            return
        self._decider.record(decision)
        if decision.choice.kind is not StrategyKind.DEFER:
            await carried_out(self._steer.set_default(decision.choice.networks[0]))
        self.decision = decision

    def is_led_to(self, network: str | None) -> bool:
        """Return whether new connections go over this network anyway."""
        return self.decision is not None and self.decision.choice.networks[:1] == (network,)

    def small_s(self, strategy: Strategy) -> float:
        """Return how long a small transfer takes this way, by the decision in force; inf if unknown."""
        known = self.decision.evaluations if self.decision is not None else ()
        first = strategy.networks[:1]
        return min((e.time_s for e in known if e.strategy.networks[:1] == first), default=math.inf)
