"""Whether what is large also uses a network that may do far more by now than was measured once. Pure.

Only what fills a network shows its rate. One that faded once is believed to be slow for as long as
nothing large uses it, and nothing large uses what is believed to be slow. A session can spread a transfer
over one network more for a moment, which costs no metered bytes, and shows it (docs/decisions/looks.md).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Final

from cedos.model import Decision, Evaluation, Network, Strategy, StrategyKind
from cedos.selector.decision.rates import RATES, indicator_of
from cedos.selector.decision.reason import seconds, sentences
from cedos.selector.decision.silences import silent_s

LOOK_S: Final = 2.5
"""Sessions ask every two seconds: from one answer to the next."""

AGAIN_S: Final = 10.0
"""From one look at a network to the next."""

_OLD_S: Final = 5.0
_WORTH_S: Final = 1.0
"""A look has to save so much where the network is as good as it is once in twenty times."""


class Looks:
    """Of one host: all its transfers look together."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def beside(self, decision: Decision, networks: Sequence[Network]) -> Decision:
        """The decision, with such a network beside the chosen ones, and why."""
        choice, transfer = decision.choice, decision.transfer
        times = {each.strategy: each for each in decision.evaluations}
        chosen = times.get(choice)
        if (
            chosen is None
            or transfer.deadline_s is not None
            or choice.kind is StrategyKind.REDUNDANT
        ):
            return decision
        for network in networks:
            name = network.name
            alone = times.get(Strategy(StrategyKind.SINGLE, (name,)))
            if alone is None or network.metered or not network.up or name in choice.networks:
                continue
            age_s = _age_s(decision, name)
            if self._worth(name, decision, age_s, chosen, alone):
                self._at_s.setdefault(name, decision.context.at_s)
                both = Strategy(StrategyKind.MPTCP, (*choice.networks, name))
                known = "unknown" if age_s is None else f"{seconds(age_s)} old"
                why = f"{name} joins for a moment to show what it does: its rate is {known}"
                return replace(decision, choice=both, reason=sentences(decision.reason, why))
        return decision

    def _worth(
        self,
        name: str,
        decision: Decision,
        age_s: float | None,
        chosen: Evaluation,
        alone: Evaluation,
    ) -> bool:
        context = decision.context
        if silent_s(context, name) > 0.0:
            return False
        # Spread over both, it goes at the sum of their rates.
        saves_s = chosen.time_s**2 / (chosen.time_s + alone.time_low_s)
        if saves_s < _WORTH_S:
            return False
        looked_s = context.at_s - self._at_s.get(name, -inf)
        if looked_s >= AGAIN_S:
            self._at_s.pop(name, None)
            return age_s is None or age_s >= _OLD_S
        return looked_s <= LOOK_S


def _age_s(decision: Decision, network: str) -> float | None:
    """Of the rate that is known; None: none is."""
    known = decision.context.networks.get(network, {})
    rate = indicator_of(known, RATES[0], decision.transfer.direction)
    return None if rate is None else decision.context.at_s - rate.measured_at_s
