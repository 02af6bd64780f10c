"""Two decisions about sessions: whether a new connection takes one, and looks at another network.

The **detour** through a gateway costs a round trip to the gateway before the first byte, and the bytes
that a session adds. It buys what a plain TCP connection cannot have: several networks at once, and
survival of a network's death. Costs and gains are counted in seconds.

A **look** spreads a large transfer of a session over one more network for a moment, to learn that
network's rate. Only a transfer that fills a network shows its rate. Without looks, a network that was
slow once would be believed slow for ever, since no large transfer would use it. A look costs no metered
bytes (docs/decisions/looks.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from cedos.model import Decision, Evaluation, Network, NetworkKind, Strategy, StrategyKind
from cedos.selector.decision import reason
from cedos.selector.decision.features import RATES, indicator_of
from cedos.selector.decision.liveness import silent_s
from cedos.selector.decision.reason import seconds, sentences

# The share by which a download through the gateway takes longer (`bench gateway`).
_MORE: Final = 0.025

# Assumed, not measured: a cable is pulled once a day, a radio lost once an hour, and a neighbour
# leaves after ten minutes.
_DEATHS_PER_S: Final[Mapping[NetworkKind, float]] = {
    NetworkKind.ETHERNET: 1 / 86_400,
    NetworkKind.WIFI: 1 / 3_600,
    NetworkKind.CELLULAR: 1 / 3_600,
    NetworkKind.HELPER: 1 / 600,
}

# The seconds that a plain TCP connection waits after its Wi-Fi died, with another network up.
_LOST_S: Final = 26.0

# The same without another network: nothing helps until one appears. Assumed.
_ALONE_LOST_S: Final = 5.0

# The assumed lifetimes of a connection: usual ones, and those to `_LONG_PORTS`.
_LIVES_S: Final = 60.0
_LONG_LIVES_S: Final = 8 * 3_600.0
# The ports of shells, remote desktops, pushed mail and calls, whose connections live for hours.
_LONG_PORTS: Final = frozenset({22, 143, 993, 1194, 3389, 5222, 5900, 6667, 6697})


@dataclass(frozen=True, slots=True)
class Detour:
    """A way through the gateway: the round trip to it, and the port that the program connects to."""

    rtt_s: float
    port: int


@dataclass(frozen=True, slots=True)
class DetourVerdict:
    """A verdict: `direct` or through the gateway, and why, in words."""

    direct: bool
    reason: str


def weigh(decision: Decision, networks: Sequence[Network], detour: Detour) -> DetourVerdict:
    """Judge a detour by the times of a decision, which has all strategies that a session could use."""
    # Only sessions can use helpers, so these are no way for a direct connection.
    own = {network.name for network in networks}
    singles = [
        each
        for each in decision.evaluations
        if each.strategy.kind is StrategyKind.SINGLE and each.strategy.networks[0] in own
    ]
    if not singles:
        return DetourVerdict(False, "through the gateway: no network is known to be usable")
    # Direct, the connection has one network. Through the gateway it has the chosen strategy, takes
    # longer, and survives the death of a network.
    alone = min(singles, key=lambda each: each.cost)
    chosen = _of(decision) or alone
    faster_s = max(alone.time_s - chosen.time_s, 0.0)
    costs_s = detour.rtt_s + _MORE * chosen.time_s
    survives_s = _survives_s(alone, singles, networks, detour.port)
    if costs_s > faster_s + survives_s:
        others = len(singles) - 1
        no_other = "" if others else ", and no other network is there to go on over"
        return DetourVerdict(
            True,
            f"direct: the way through the gateway takes {reason.seconds(costs_s)} more and is worth"
            f" {reason.seconds(faster_s + survives_s)}{no_other}",
        )
    parts = [f"that it survives a network's death is worth {reason.seconds(survives_s)}"]
    if faster_s > 0.0:
        parts.insert(0, f"using several networks saves {reason.seconds(faster_s)}")
    return DetourVerdict(
        False,
        f"through the gateway, which takes {reason.seconds(costs_s)} more: {', and '.join(parts)}",
    )


def _of(decision: Decision) -> Evaluation | None:
    return next((each for each in decision.evaluations if each.strategy == decision.choice), None)


def _survives_s(
    alone: Evaluation, singles: Sequence[Evaluation], networks: Sequence[Network], port: int
) -> float:
    """Return the expected seconds of waiting that a session saves: the wait times its probability."""
    kinds = {network.name: network.kind for network in networks}
    kind = kinds.get(alone.strategy.networks[0], NetworkKind.WIFI)
    # The longer a connection lives, the more likely its network dies meanwhile.
    lives_s = _LONG_LIVES_S if port in _LONG_PORTS else max(_LIVES_S, alone.time_s)
    lost_s = _LOST_S if len(singles) > 1 else _ALONE_LOST_S
    return min(_DEATHS_PER_S[kind] * lives_s, 1.0) * lost_s


# The longest time of a look. Sessions ask every two seconds, so the answer after the first one still
# contains the look.
LOOK_S: Final = 2.5

# The time from one look at a network to the next.
AGAIN_S: Final = 10.0

_OLD_S: Final = 5.0
# The seconds that a look must save at the best of twenty states of the network.
_WORTH_S: Final = 1.0


class Looks:
    """The looks of one host; its transfers share them."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    def add_look(self, decision: Decision, networks: Sequence[Network]) -> Decision:
        """Return the decision with the network to look at beside the chosen ones, and the reason."""
        choice, transfer = decision.choice, decision.transfer
        times = {each.strategy: each for each in decision.evaluations}
        chosen = times.get(choice)
        if (
            chosen is None
            or transfer.deadline_s is not None
            or choice.kind is StrategyKind.REDUNDANT
        ):
            return decision
        # Look at the first network that is up, free, not chosen, and may be much better than is known.
        for network in networks:
            name = network.name
            alone = times.get(Strategy(StrategyKind.SINGLE, (name,)))
            if alone is None or network.metered or not network.up or name in choice.networks:
                continue
            age_s = _age_s(decision, name)
            if self._worth(name, decision, age_s, chosen, alone):
                # The first answer with this network begins the look; later ones do not move the instant.
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
        # A silent network shows nothing, and would hold up the transfer.
        if silent_s(context, name) > 0.0:
            return False
        # The rates of two networks add up: together they take T * L / (T + L). T is the expected time of
        # the chosen strategy, and L the least time that the other network may plausibly take.
        saves_s = chosen.time_s**2 / (chosen.time_s + alone.time_low_s)
        if saves_s < _WORTH_S:
            return False
        looked_s = context.at_s - self._at_s.get(name, -inf)
        # A look begins at an old rate, lasts for a few seconds, and is not repeated soon.
        if looked_s >= AGAIN_S:
            self._at_s.pop(name, None)
            return age_s is None or age_s >= _OLD_S
        return looked_s <= LOOK_S


def _age_s(decision: Decision, network: str) -> float | None:
    """Return the age of the network's known rate; None: no rate is known."""
    known = decision.context.networks.get(network, {})
    rate = indicator_of(known, RATES[0], decision.transfer.direction)
    return None if rate is None else decision.context.at_s - rate.measured_at_s
