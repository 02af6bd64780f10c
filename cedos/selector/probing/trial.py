"""Trials: send a program's transfer over a network that is believed worse, to measure it.

A network without use is not measured, is believed slow, and is not used: only transfers tell. The
recent destinations say how much a better belief would have
saved. The largest of their transfers whose loss is less than that, and not large in a bad case, is
sent over the other network (docs/decisions/trials.md).
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from math import inf, log
from statistics import NormalDist
from typing import Final, NamedTuple

from cedos.model import Context, Decision, Evaluation, Network, Strategy, StrategyKind
from cedos.selector.decision.features import DELIVERY, RATES, RECENT, UPLINK
from cedos.selector.decision.liveness import silent_s, why_dead
from cedos.selector.decision.reason import seconds
from cedos.selector.objective import MaxS, MaxSPerE, Objective
from cedos.selector.uncertainty.times import INTERVAL_SIGMAS

# The time over which recent connections are counted, to estimate how many the answer will serve.
OF_LATE_S: Final = 30.0

# A network that answered within this time may begin a trial; another one is pinged first.
_ANSWERED_S: Final = 2.0

# A network that did not answer is pinged again after this time.
_ASKED_S: Final = 10.0

# The share of an observation's worth after `OF_LATE_S`.
_LASTS: Final = 0.5

# The time without any measure of the network's rate, in either direction, before a trial. A used
# network shows its rate anyway, and a fading one soon dies (docs/decisions/trials.md).
_IDLE_S: Final = 10.0

# The time between two trials of a network: the first time, its growth with each trial, and the
# longest. It is the first time again once the network is chosen.
_AGAIN_S: Final = 10.0
_SELDOMER: Final = 1.5
_AT_MOST_S: Final = 300.0

_TOLD: Final = (*RATES, *(UPLINK[name] for name in RATES), *DELIVERY.values(), *RECENT)

# A smaller transfer shows only the round trip, and pings show that too.
_LEAST_BYTES: Final = 20_000

# A trial must save this much more than it loses.
_GAIN_S: Final = 0.1

# The largest transfer of a trial, at the upper end of the estimate of its size.
_MOST_BYTES: Final = 2_000_000
# The longest delay of a trial, at the upper end of the interval of its time.
_MOST_LATE_S: Final = 10.0

_normal: Final = NormalDist().cdf


class Recurring(NamedTuple):
    """A destination's next transfer as it is seen now, and the number of recent ones.

    `destination`: a prefix and a port (None: all ports), for the room that carries the trial out.
    `barred`: returns whether a network must not carry a trial: the destination cannot be reached over it,
    or its connections are kept (their later bytes have no bound), or are too new to tell.
    """

    destination: tuple[str, int | None]
    decision: Decision
    begun: int
    barred: Callable[[Network], bool]


class Trial(NamedTuple):
    """A trial: the destination, the network and the reason.

    `answered`: whether the network answered just now, so that it may begin; else it is pinged first.
    """

    of: Recurring
    network: Network
    why: str
    answered: bool


@dataclass(slots=True)
class _Tried:
    """The trials of one network: when the next trial and the next ping may come, and the next pause.

    `size_bytes`: of the last trial.
    """

    not_before_s: float = -inf
    ask_not_before_s: float = -inf
    pause_s: float = _AGAIN_S
    size_bytes: int = 0

    def is_chosen(self, name: str, recurring: Iterable[Recurring]) -> bool:
        """Return whether a transfer as large as the last trial goes over the network by now."""
        return any(
            each.decision.transfer.size.median_bytes >= self.size_bytes
            and name in each.decision.choice.networks
            for each in recurring
        )


class Trials:
    """The trials of one host. Every method takes instants of one clock."""

    def __init__(self) -> None:
        self._networks: defaultdict[str, _Tried] = defaultdict(_Tried)

    def on_connection(self, network: str, size_bytes: int, now_s: float) -> None:
        """Record that a connection went over the network: the next one waits longer."""
        tried = self._networks[network]
        tried.not_before_s, tried.size_bytes = now_s + tried.pause_s, size_bytes
        tried.pause_s = min(_SELDOMER * tried.pause_s, _AT_MOST_S)

    def on_miss(self, network: str, now_s: float) -> None:
        """Record that no connection began in time."""
        self._networks[network].not_before_s = now_s + _AGAIN_S

    def due(
        self,
        recurring: Iterable[Recurring],
        context: Context,
        networks: Iterable[Network],
        objective: Objective,
    ) -> Trial | None:
        """Return the trial that is worth it now; None: none is.

        `recurring` is asked only where a network has been tried, or may be.
        """
        if isinstance(objective, MaxSPerE):  # its costs are no seconds
            return None
        now_s = context.at_s
        known: Collection[Recurring] | None = None
        for network in networks:
            if not network.up or network.metered:
                continue
            tried = self._networks[network.name]
            may_begin = now_s >= tried.not_before_s and _idle(context, network.name)
            if not may_begin and tried.pause_s == _AGAIN_S:
                continue
            known = list(recurring) if known is None else known
            # The last trial had success: the next one need not wait long.
            if tried.is_chosen(network.name, known):
                tried.pause_s = _AGAIN_S
            if not may_begin:
                continue
            found = _worth(known, context, network, objective)
            if found is None or (not found.answered and now_s < tried.ask_not_before_s):
                continue
            # First it must answer a ping, and it is asked seldom.
            if not found.answered:
                tried.ask_not_before_s = now_s + _ASKED_S
            return found
        return None

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Update the set of networks; forgets those that are gone."""
        for name in self._networks.keys() - {network.name for network in networks}:
            del self._networks[name]


def _idle(context: Context, network: str) -> bool:
    """Return whether a network may be tried: no sign speaks against it, and no traffic measures it."""
    known = context.networks.get(network, {})
    told_at_s = max((known[name].measured_at_s for name in _TOLD if name in known), default=-inf)
    return context.at_s - told_at_s >= _IDLE_S and not in_doubt(context, network)


def in_doubt(context: Context, network: str) -> bool:
    """Return whether any sign raises doubt about a network: a silence, a lost ping, a verdict."""
    loss = context.networks.get(network, {}).get("ping_loss")
    lost = loss is not None and loss.value > 0.0
    return lost or silent_s(context, network) > 0.0 or why_dead(context, network) is not None


def _worth(
    recurring: Iterable[Recurring], context: Context, network: Network, objective: Objective
) -> Trial | None:
    saved_s = 0.0
    # Add up what an answer would save for all recent destinations, and collect the transfers that could
    # be the trial.
    candidates: list[tuple[float, Recurring]] = []
    for each in recurring:
        decision = each.decision
        by_strategy = {it.strategy: it for it in decision.evaluations}
        chosen = by_strategy.get(decision.choice)
        alone = by_strategy.get(Strategy(StrategyKind.SINGLE, (network.name,)))
        if chosen is None or alone is None or chosen is alone or decision.transfer.deadline_s:
            continue
        # The saving is that of one transfer; each recent one stands for `_LASTS` to come. The loss is the
        # price of the trial.
        saves_s, loses_s = in_hindsight(chosen, alone, objective)
        saved_s += _LASTS * each.begun * saves_s
        size = decision.transfer.size
        if (
            size.median_bytes >= _LEAST_BYTES
            and size.high_bytes <= _MOST_BYTES
            and alone.time_high_s - chosen.time_s <= _MOST_LATE_S
        ):
            candidates.append((loses_s, each))
    candidates.sort(key=lambda it: it[1].decision.transfer.size.median_bytes, reverse=True)
    # The largest transfer whose loss is well below the saving: it measures best.
    for lost_s, of in candidates:
        if lost_s + _GAIN_S < saved_s and not of.barred(network):
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
    return Trial(of, network, why, answered)


def in_hindsight(
    chosen: Evaluation, alone: Evaluation, objective: Objective
) -> tuple[float, float]:
    """Return the seconds that knowing the network's time would save, and that not knowing loses.

    Its time is lognormal, and the chosen strategy's cost is its expected one. So the values are
    those of an option to buy, and to sell, at the time at which both cost the same (Black and
    Scholes, no interest).
    """
    # The strike price of the option is the time at which both strategies would cost the same.
    time_s = alone.cost if isinstance(objective, MaxS) else alone.time_s
    even_s = time_s + chosen.cost - alone.cost
    if even_s <= 0.0:
        return 0.0, time_s - even_s
    # Knowing saves max(even - T, 0), a put on the time T. Not knowing loses max(T - even, 0), a call,
    # whose value follows by put-call parity.
    sigma = log(max(alone.time_high_s / alone.time_low_s, 1.0 + 1e-6)) / INTERVAL_SIGMAS
    upper = log(even_s / time_s) / sigma + 0.5 * sigma
    saves_s = even_s * _normal(upper) - time_s * _normal(upper - sigma)
    return saves_s, saves_s + time_s - even_s
