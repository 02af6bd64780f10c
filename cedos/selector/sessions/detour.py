"""Whether a new connection takes the detour by the gateway: what it costs and what it buys, in seconds.

It costs a round trip to the gateway before the first byte, and the bytes that a session adds. It buys
what a plain TCP connection cannot have: several networks at once, and a network's death survived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cedos.model import Decision, Evaluation, Network, NetworkKind, StrategyKind
from cedos.selector.decision import reason

_MORE: Final = 0.025
"""So much longer a download by the gateway takes over the same network (`bench gateway`)."""

_DEATHS_PER_S: Final[Mapping[NetworkKind, float]] = {
    NetworkKind.ETHERNET: 1 / 86_400,
    NetworkKind.WIFI: 1 / 3_600,
    NetworkKind.CELLULAR: 1 / 3_600,
}
"""Assumed, not measured: a cable is pulled once a day, a radio lost once an hour."""

_LOST_S: Final = 26.0
"""What a plain TCP connection waited whose Wi-Fi had died, with another network up (README)."""

_ALONE_LOST_S: Final = 5.0
"""With no other network up there is nothing to go on over until one comes: assumed."""

_LIVES_S: Final = 60.0
_LONG_LIVES_S: Final = 8 * 3_600.0
_LONG_PORTS: Final = frozenset({22, 143, 993, 1194, 3389, 5222, 5900, 6667, 6697})
"""Of shells, desktops, mail that is pushed and talk: they live for hours."""


@dataclass(frozen=True, slots=True)
class Detour:
    """The way by the gateway: its round trip, and the port that is connected to."""

    rtt_s: float
    port: int


@dataclass(frozen=True, slots=True)
class DetourVerdict:
    """`direct`, or by the gateway; and why, in words."""

    direct: bool
    reason: str


def weigh(decision: Decision, networks: Sequence[Network], detour: Detour) -> DetourVerdict:
    """Judges by the times of a decision, which knows all strategies that a session could carry out."""
    singles = [each for each in decision.evaluations if each.strategy.kind is StrategyKind.SINGLE]
    if not singles:
        return DetourVerdict(False, "through the gateway: no network is known to be usable")
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
    """The waiting that it spares, times how likely it comes to that while the connection lives."""
    kinds = {network.name: network.kind for network in networks}
    kind = kinds.get(alone.strategy.networks[0], NetworkKind.WIFI)
    lives_s = _LONG_LIVES_S if port in _LONG_PORTS else max(_LIVES_S, alone.time_s)
    lost_s = _LOST_S if len(singles) > 1 else _ALONE_LOST_S
    return min(_DEATHS_PER_S[kind] * lives_s, 1.0) * lost_s
