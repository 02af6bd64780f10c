"""Whether a program's transfer goes over a network that is believed worse, to see what that does. Pure.

What was not used is not measured, is believed slow, and is not used. A probe server would tell; without
one only transfers do. Those with destinations that were visited of late say what a better belief would
have saved, and the largest of them that loses less than that, and not much where it goes badly, is sent
over the other network (docs/decisions/trials.md).
"""

from collections.abc import Callable, Iterable, Sequence
from math import erf, inf, log, sqrt
from typing import Final, NamedTuple

from cedos.model import Context, Decision, Evaluation, Network, Strategy, StrategyKind
from cedos.selector.decision.rates import DELIVERY, RATES, RECENT, UPLINK
from cedos.selector.decision.reason import seconds
from cedos.selector.objective import MaxS, MaxSPerE, Objective

OF_LATE_S: Final = 30.0
"""Connections of so long ago say how many the answer will serve: with age it gets old itself."""

_ANSWERED_S: Final = 2.0
"""So lately the network has to have answered somebody."""

_ASKED_S: Final = 10.0
"""One that did not is asked again after so long."""

_LASTS: Final = 0.5
"""Of so large a share of them what was seen is still true."""

_IDLE_S: Final = 10.0
"""For so long nothing told how fast the network is, in either direction. What is used shows it anyhow,
and one that fades under what it carries is soon dead (docs/decisions/trials.md)."""

_AGAIN_S: Final = 10.0
_SELDOMER: Final = 1.5
_AT_MOST_S: Final = 300.0
"""From one trial to the next: longer each time, unless the network is chosen for something meanwhile."""

_TOLD: Final = (*RATES, *(UPLINK[name] for name in RATES), *DELIVERY.values(), *RECENT)

_LEAST_BYTES: Final = 20_000
"""What is smaller shows the round trip, which pings tell as well."""

_GAIN_S: Final = 0.1
"""It has to save so much more than it loses."""

_MOST_BYTES: Final = 2_000_000
_MOST_LATE_S: Final = 10.0
"""What is tried is small, or nearly surely in time."""

_QUANTILES: Final = 3.29 * 1.3
"""Standard deviations from one end of an interval to the other (`selector.uncertainty.completion`)."""


class Recurring(NamedTuple):
    """A destination's next transfer as it is seen now, and how many began of late.

    `barred`: whether none may be tried over a network, as it cannot go there, or is kept: what else it
    carries later has no bound.
    """

    decision: Decision
    begun: int
    barred: Callable[[Network], bool]


class Trial(NamedTuple):
    """Which of the destinations is tried over which network, and why.

    `answered`: the network did, just now, so that it may begin; else it is to be pinged first.
    """

    which: int
    network: Network
    why: str
    answered: bool


class _Made(NamedTuple):
    """A network's last trial: how long before the next one, of how many bytes."""

    network: str
    pause_s: float
    size_bytes: int

    def was_right(self, each: Recurring) -> bool:
        """Whether what is as large goes over the network by now."""
        decision = each.decision
        large = decision.transfer.size.median_bytes >= self.size_bytes
        return large and self.network in decision.choice.networks


class Trials:
    """Of one host. Every method takes instants of one clock."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self._not_before_s: dict[str, float] = {}
        self._asked_at_s: dict[str, float] = {}

    def made(self, network: str, size_bytes: int, now_s: float) -> None:
        """A connection went over the network: the next one waits longer."""
        before = self._made.get(network)
        pause_s = _AGAIN_S if before is None else min(_SELDOMER * before.pause_s, _AT_MOST_S)
        self._made[network] = _Made(network, pause_s, size_bytes)
        self._not_before_s[network] = now_s + pause_s

    def missed(self, network: str, now_s: float) -> None:
        """No connection began in time."""
        self._not_before_s[network] = now_s + _AGAIN_S

    def due(
        self,
        recurring: Sequence[Recurring],
        context: Context,
        networks: Iterable[Network],
        objective: Objective,
    ) -> Trial | None:
        """The trial that is worth it now; None: none is."""
        if isinstance(objective, MaxSPerE):  # its costs are no seconds
            return None
        for network in networks:
            name = network.name
            made = self._made.get(name)
            if made is not None and any(map(made.was_right, recurring)):
                del self._made[name]
            if (
                network.up
                and not network.metered
                and context.at_s >= self._not_before_s.get(name, -inf)
                and lives(context, name)
                and _idle(context, name)
                and (found := _worth(recurring, context, network, objective)) is not None
                and (found.answered or self._may_ask(name, context.at_s))
            ):
                return found
        return None

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Takes all networks; what is gone is forgotten."""
        names = {network.name for network in networks}
        for known in (self._made, self._not_before_s, self._asked_at_s):
            for name in known.keys() - names:
                del known[name]

    def _may_ask(self, name: str, now_s: float) -> bool:
        if now_s - self._asked_at_s.get(name, -inf) < _ASKED_S:
            return False
        self._asked_at_s[name] = now_s
        return True


def _idle(context: Context, network: str) -> bool:
    known = context.networks.get(network, {})
    told_at_s = max((known[name].measured_at_s for name in _TOLD if name in known), default=-inf)
    return context.at_s - told_at_s >= _IDLE_S


def lives(context: Context, network: str) -> bool:
    """Whether nothing speaks against it."""
    known = context.networks.get(network, {})
    return not any(
        sign in known and known[sign].value > 0.0 for sign in ("silence_s", "ping_loss", "captive")
    )


def _worth(
    recurring: Sequence[Recurring], context: Context, network: Network, objective: Objective
) -> Trial | None:
    saved_s = 0.0
    candidates: list[tuple[int, float, int]] = []
    for which, each in enumerate(recurring):
        decision = each.decision
        by_strategy = {it.strategy: it for it in decision.evaluations}
        chosen = by_strategy.get(decision.choice)
        alone = by_strategy.get(Strategy(StrategyKind.SINGLE, (network.name,)))
        if chosen is None or alone is None or chosen is alone or decision.transfer.deadline_s:
            continue
        saves_s, loses_s = in_hindsight(chosen, alone, objective)
        saved_s += _LASTS * each.begun * saves_s
        size = decision.transfer.size
        if (
            size.median_bytes >= _LEAST_BYTES
            and size.high_bytes <= _MOST_BYTES
            and alone.time_high_s - chosen.time_s <= _MOST_LATE_S
        ):
            candidates.append((size.median_bytes, loses_s, which))
    for _, lost_s, which in sorted(candidates, reverse=True):
        if lost_s + _GAIN_S < saved_s and not recurring[which].barred(network):
            break
    else:
        return None
    why = (
        f"{network.name} carries this one to show how fast it is by now: that may save"
        f" {seconds(saved_s)} in the next {OF_LATE_S:.0f} s, and is expected to lose"
        f" {seconds(lost_s)}"
    )
    rtt = context.networks.get(network.name, {}).get("rtt_s")
    answered = rtt is not None and context.at_s - rtt.measured_at_s <= _ANSWERED_S
    return Trial(which, network, why, answered)


def in_hindsight(
    chosen: Evaluation, alone: Evaluation, objective: Objective
) -> tuple[float, float]:
    """What whoever knew the other network's time would save, and what one who did not loses, s.

    Its time is lognormal, and the chosen one's cost is what it is expected to be: as an option to buy,
    and to sell, at the time at which both cost the same (Black and Scholes, without interest).
    """
    time_s = alone.cost if isinstance(objective, MaxS) else alone.time_s
    even_s = time_s + chosen.cost - alone.cost
    if even_s <= 0.0:
        return 0.0, time_s - even_s
    sigma = log(max(alone.time_high_s / alone.time_low_s, 1.0 + 1e-6)) / _QUANTILES
    upper = log(even_s / time_s) / sigma + 0.5 * sigma
    saves_s = even_s * _normal(upper) - time_s * _normal(upper - sigma)
    return saves_s, saves_s + time_s - even_s


def _normal(z: float) -> float:
    return 0.5 * (1.0 + erf(z / sqrt(2.0)))
