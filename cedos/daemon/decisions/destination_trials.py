"""Carries out trials: the next connection with a destination goes over a network to show what it does.

What is worth it says `cedos.selector.probing.trial`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address

from cedos.daemon.decisions.decider import Decider
from cedos.daemon.decisions.steer_interface import Place
from cedos.model import Context, Decision, Network, Strategy, StrategyKind
from cedos.selector.decision.reason import sentences
from cedos.selector.probing.trial import OF_LATE_S, Recurring, Trials, in_doubt
from cedos.steer.routing.plan import leads_out

_COUNTED = 100
"""The last connections with a destination that count."""

_TRIED_S = 5.0
"""A trial that no connection takes ends after so long."""

_KEPT_S = 5.0
"""A connection that lives for longer may be kept for what comes, of which nothing is known."""


@dataclass(slots=True)
class Visits:
    """When connections with an address began, and what would be decided of the next one now."""

    address: str
    decision: Decision | None = None
    begun_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_COUNTED))

    def since(self, at_s: float) -> int:
        """Return how many began since an instant that is later each time."""
        while self.begun_at_s and self.begun_at_s[0] < at_s:
            self.begun_at_s.popleft()
        return len(self.begun_at_s)


@dataclass(slots=True)
class _RunningTrial:
    """The next connection with a place goes over a network, until an instant; `taken`: one went."""

    place: Place
    network: str
    decision: Decision
    until_s: float
    taken: bool = False


class DestinationTrials:
    """The trials of destinations, one at a time.

    Args:
        connected: whether a connection with an address and port lives that began before an instant.
        ask: pings a network now.
        wake: has all decided on again soon.
    """

    def __init__(
        self,
        decider: Decider,
        connected: Callable[[str, int | None, float], bool],
        ask: Callable[[Network], None],
        wake: Callable[[], None],
    ) -> None:
        self._decider = decider
        self._connected = connected
        self._ask = ask
        self._wake = wake
        self._trials = Trials()
        self._running: _RunningTrial | None = None

    def networks_changed(self, networks: Sequence[Network]) -> None:
        self._trials.networks_changed(networks)

    def network_of(self, place: Place) -> str | None:
        """Return where connections with a place go for a trial; None: where they go anyway."""
        running = self._running
        return running.network if running is not None and running.place == place else None

    def visited(self, place: Place, network: str | None, now_s: float) -> Decision | None:
        """Return the trial's decision if this new connection is the trial; None otherwise."""
        running = self._running
        if running is None or (running.place, running.network) != (place, network):
            return None
        if not running.taken:  # (those that begin before the rule has ended go there, too)
            running.taken = True
            size_bytes = running.decision.transfer.size.median_bytes
            self._trials.made(running.network, size_bytes, now_s)
            numbered = replace(running.decision, number=self._decider.number)
            running.decision = self._decider.record(numbered)
            self._wake()
        return running.decision

    def reconsider(self, places: Mapping[Place, Visits], context: Context) -> None:
        """End the trial that is over, and begins one where it is worth it."""
        running, now_s = self._running, context.at_s
        if running is not None and not running.taken:
            if now_s < running.until_s and not in_doubt(context, running.network):
                return
            self._trials.missed(running.network, now_s)
        self._running = None
        recurring = [
            Recurring(place, visits.decision, begun, partial(self._barred, visits, place[1], now_s))
            for place, visits in places.items()
            if visits.decision is not None and (begun := visits.since(now_s - OF_LATE_S))
        ]
        decider = self._decider
        found = self._trials.due(recurring, context, decider.usable, decider.objective)
        if found is None:
            return
        name, tried = found.network.name, found.of
        if not found.answered:
            self._ask(found.network)
            return
        decision = replace(
            tried.decision,
            choice=Strategy(StrategyKind.SINGLE, (name,)),
            reason=sentences(found.why, tried.decision.reason),
        )
        self._running = _RunningTrial(tried.destination, name, decision, now_s + _TRIED_S)

    def _barred(self, visits: Visits, port: int | None, now_s: float, network: Network) -> bool:
        """Return whether connections cannot go there, are kept, or are too new to tell."""
        before_s = now_s - _KEPT_S
        return (
            not leads_out(network, ip_address(visits.address).version)
            or visits.begun_at_s[0] > before_s
            or self._connected(visits.address, port, before_s)
        )
