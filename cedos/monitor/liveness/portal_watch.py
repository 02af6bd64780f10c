"""When to check for a captive portal on which network, and what follows from what was found.

A network is checked when it appears, when it moves to another access point, after the host's sleep, when
connections over it are not answered, every 30 s while it is captive, and every 3 s while it is captive
and carries something: a user is logging in. An outage is silent like a portal that drops all: so a
verdict by silence alone ends with the first answer, and is checked again soon, after twice as long each.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cedos.model import Address, FlowKey, Indicator, Network
from cedos.monitor.events import FlowSample
from cedos.monitor.liveness.portal_verdict import PortalFinding, PortalVerdict
from cedos.monitor.liveness.unanswered import RESCUED_AFTER_S, Unanswered

CAPTIVE_EVERY_S = 30.0
LOGGING_IN_EVERY_S = 3.0
SILENT_AGAIN_S = 5.0
# An unanswered connection is checked at most so often, as its server may be down; several, more so.
_REST_S, _HURRIED_REST_S = 30.0, 5.0
# While nothing was learnt of a new network it is checked again after these, and then no more: it may
# not have been ready.
_AGAIN_S = (2.0, 5.0, 15.0)
# So long another network's right answer vouches for the test page.
_VOUCHED_S = 60.0
# So long after a verdict by silence, pings that wait show an outage. (Later, one may just be lost.)
_PINGS_TELL_S = 3.0
_SHORTEST_REST_S = 0.2
USUAL_TIMEOUT_S = 2.5
_SHORT_TIMEOUT_S = 0.8
_LONGEST_S = 10.0
# Without anything new for so long, a network that was captive is tried again.
_BELIEVED_S = 60.0
# What pings and our own check bring in is less; a log-in page is more.
_CARRIES_BYTES = 4000
# Routers that have answered names: of one that has not, silence says nothing.
_MOST_ROUTERS = 64

Check = Callable[[Network, float], Awaitable[PortalFinding]]
"""Looks at a network within so many seconds (`check.check`)."""


@dataclass(slots=True)
class _NetworkPortal:
    network: Network
    due_s: float
    tries: int = 0
    captive_at_s: float | None = None
    why: str = ""
    page: str = ""
    received_bytes: int = 0
    finding: PortalFinding | None = None
    at_s: float = float("-inf")
    pings_waited: bool = False
    silence_believed_s: float = 0.0
    task: asyncio.Task[None] | None = field(default=None)

    @property
    def by_silence(self) -> bool:
        return (
            self.captive_at_s is not None and self.finding is not None and self.finding.by_silence
        )


class PortalWatch:
    """Looks for portals, and reports the indicator `captive`: 1 where one is in the way, 0 where not.

    It is active if a server beyond the router answered.
    `check` asks for the test page; `manager` is NetworkManager's verdict, None where it has none;
    `gateway_answers`: the router answers a ping; `pings_wait`: a ping to a host behind it waits for
    its answer; `rtt_s`: the usual round trip (a slow network is given more time).
    """

    def __init__(
        self,
        report: Callable[[str, Indicator], None],
        *,
        check: Check | None = None,
        manager: Callable[[Network], Awaitable[bool | None]] | None = None,
        gateway_answers: Callable[[Network], Awaitable[bool]] | None = None,
        pings_wait: Callable[[Network], bool] = lambda network: False,
        rtt_s: Callable[[str], float | None] = lambda name: None,
    ) -> None:
        self._report = report
        self._check = check
        self._manager = manager
        self._gateway_answers = gateway_answers
        self._pings_wait = pings_wait
        self._rtt_s = rtt_s
        self._watched: dict[str, _NetworkPortal] = {}
        self._resolving: dict[tuple[str, tuple[Address, ...]], None] = {}
        self._unanswered = Unanswered()
        self._wake = asyncio.Event()

    @property
    def problems(self) -> list[str]:
        problems = []
        for name, one in self._watched.items():
            if one.captive_at_s is not None:
                page = f". Open {one.page} to log in" if one.page else ""
                problems.append(f"{name} lets nothing through: {one.why}{page}")
        return problems

    def networks_changed(self, networks: Iterable[Network]) -> None:
        up = {network.name: network for network in networks if network.up}
        for name in self._watched.keys() - up.keys():
            _stop(self._watched.pop(name))
        for name, network in up.items():
            known = self._watched.get(name)
            if known is None or _moved(known.network, network):
                if known is not None:
                    _stop(known)
                self._watched[name] = _NetworkPortal(network, time.monotonic())
            else:
                known.network = network
        self._wake.set()

    def recheck(self, name: str | None = None) -> None:
        """Check a network (None: all) now: it is another place, or the host has slept."""
        now_s = time.monotonic()
        for each, one in self._watched.items():
            if name in (None, each):
                one.due_s, one.tries = max(now_s, one.at_s + _SHORTEST_REST_S), 0
        self._wake.set()

    def unanswered(self, name: str, after_s: float = 0.0) -> None:
        """Check a network on which a connection had no answer, but not too often."""
        one = self._watched.get(name)
        if one is not None and one.captive_at_s is None:
            then_s = time.monotonic() + after_s
            rest_s = (
                _HURRIED_REST_S if self._unanswered.unanswered_servers(name, then_s) else _REST_S
            )
            if self._check is None:  # a check without questions costs nothing
                rest_s = 0.0
            one.due_s = min(one.due_s, max(then_s, one.at_s + rest_s))
            self._wake.set()

    @property
    def carrying(self) -> frozenset[str]:
        """Return networks on which a server answered within the last second (`Unanswered`)."""
        return self._unanswered.carrying

    def observe_flows(self, samples: Sequence[FlowSample]) -> None:
        """Take a sample of the living flows: who waits for an answer in vain."""
        networks = [one.network for one in self._watched.values()]
        now_s = time.monotonic()
        for name in self._unanswered.observe(samples, networks, now_s):
            self.unanswered(name)
        for name in self._unanswered.carrying:
            one = self._watched[name]
            one.silence_believed_s = 0.0
            # No server had answered, and one has: that was a pause, and no portal.
            if one.by_silence:
                self._set_free(one, now_s)

    def pinged(self, name: str) -> None:
        one = self._watched.get(name)
        # Where pings waited, too, when no server answered, that was an outage, and is over. (Some
        # portals let pings through all the time.)
        if one is not None and one.by_silence and one.pings_waited:
            self._set_free(one, time.monotonic())

    def rescued(self, key: FlowKey) -> None:
        """Take a flow whose first packet found no answer, and was led over another network."""
        for name, one in self._watched.items():
            if any(address.ip == key.local for address in one.network.addresses):
                now_s = time.monotonic()
                if self._unanswered.rescued(name, key.remote, now_s):
                    # A check for the first one's sake would be a moment too early to count this one.
                    one.due_s = max(one.due_s, now_s + RESCUED_AFTER_S)
                self.unanswered(name, RESCUED_AFTER_S)

    def carried(self, name: str, received_bytes: int) -> None:
        """Note once a second how many bytes the network has received since it came up."""
        one = self._watched.get(name)
        if one is None:
            return
        gained, one.received_bytes = received_bytes - one.received_bytes, received_bytes
        # After a moment without answers it may have been too early to judge.
        if one.by_silence and time.monotonic() - one.at_s <= _PINGS_TELL_S:
            one.pings_waited |= self._pings_wait(one.network)
        if one.captive_at_s is not None and gained >= _CARRIES_BYTES:
            one.due_s = min(one.due_s, max(time.monotonic(), one.at_s + LOGGING_IN_EVERY_S))
            self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                now_s = time.monotonic()
                for one in self._watched.values():
                    if one.due_s <= now_s and (one.task is None or one.task.done()):
                        one.due_s = float("inf")
                        one.task = asyncio.create_task(self._check_network(one), name="portal")
                next_s = min((one.due_s for one in self._watched.values()), default=float("inf"))
                wait_s = None if next_s == float("inf") else max(next_s - time.monotonic(), 0.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        finally:
            for one in self._watched.values():
                _stop(one)

    async def _check_network(self, one: _NetworkPortal) -> None:
        try:
            finding = await self._find(one)
        except Exception as error:  # whatever it is, it must not end the watch
            finding = PortalFinding(PortalVerdict.UNCLEAR, f"{type(error).__name__}: {error}")
        self._apply(one, finding)
        self._wake.set()

    async def _find(self, one: _NetworkPortal) -> PortalFinding:
        network = one.network
        rtt_s = self._rtt_s(network.name)
        timeout_s = min(max(USUAL_TIMEOUT_S, 6.0 * (rtt_s or 0.0)), _LONGEST_S)
        waiting = self._unanswered.unanswered_servers(network.name, time.monotonic())
        if waiting:  # others have waited before us
            timeout_s = _SHORT_TIMEOUT_S
        finding = PortalFinding(PortalVerdict.UNCLEAR, "nothing can be told")
        one.pings_waited = self._pings_wait(network)
        if self._check is not None:
            finding = self._compared(one, await self._check(network, timeout_s))
        if (
            finding.verdict in (PortalVerdict.UNCLEAR, PortalVerdict.SILENT)
            and self._manager is not None
        ):
            captive = await self._manager(network)
            if captive is not None:
                verdict = PortalVerdict.CAPTIVE if captive else PortalVerdict.FREE
                finding = PortalFinding(verdict, "NetworkManager's check says so")
        open_ = finding.verdict in (PortalVerdict.UNCLEAR, PortalVerdict.SILENT)
        ask = self._gateway_answers if open_ and waiting else None
        one.pings_waited |= self._pings_wait(network)
        if ask is not None and await ask(network):
            why = f"its router answers, but none of {waiting} servers that were asked"
            return PortalFinding(PortalVerdict.CAPTIVE, why, by_silence=True)
        return finding

    def _compared(self, one: _NetworkPortal, finding: PortalFinding) -> PortalFinding:
        """Return the finding in the light of what the other networks found."""
        others = [each for each in self._watched.values() if each is not one and each.finding]
        if finding.verdict is PortalVerdict.CAPTIVE and finding.likeness:
            for other in others:
                if other.finding is not None and other.finding.likeness == finding.likeness:
                    self._set_free(other, time.monotonic())
                    return PortalFinding(
                        PortalVerdict.UNCLEAR,
                        "the test page answers otherwise than it should on several networks",
                        likeness=finding.likeness,
                    )
        now_s = time.monotonic()
        vouched = any(
            other.finding is not None
            and other.finding.verdict is PortalVerdict.FREE
            and now_s - other.at_s <= _VOUCHED_S
            for other in others
        )
        # One that answers no ping either is known to be dead without our help.
        answers_pings = self._rtt_s(one.network.name) is not None
        router = (one.network.interface, one.network.gateways)
        if finding.verdict in (PortalVerdict.FREE, PortalVerdict.CAPTIVE):
            self._resolving[router] = None
            if len(self._resolving) > _MOST_ROUTERS:
                del self._resolving[next(iter(self._resolving))]
        elif finding.guessed and router not in self._resolving:
            return PortalFinding(PortalVerdict.UNCLEAR, "its router may be no resolver")
        if finding.verdict is PortalVerdict.SILENT and vouched and answers_pings:
            why = f"{finding.why}, which it does on another network"
            return PortalFinding(PortalVerdict.CAPTIVE, why, by_silence=True)
        return finding

    def _apply(self, one: _NetworkPortal, finding: PortalFinding) -> None:
        now_s = time.monotonic()
        was_silence, one.finding, one.at_s = one.by_silence, finding, now_s
        if finding.verdict is PortalVerdict.CAPTIVE:
            one.captive_at_s, one.why, one.page = now_s, finding.why, finding.page
            told = not finding.by_silence
            self._report(one.network.name, Indicator(1.0, now_s, active=told))
            again_s = CAPTIVE_EVERY_S
            if finding.by_silence:
                # The unanswered servers of this check do not count in the next one.
                self._unanswered.forget(one.network.name)
                longer_s = max(2.0 * one.silence_believed_s, SILENT_AGAIN_S)
                again_s = one.silence_believed_s = min(longer_s, CAPTIVE_EVERY_S)
            one.due_s = min(one.due_s, now_s + again_s)
        elif finding.verdict is PortalVerdict.FREE:
            self._set_free(one, now_s)
        elif was_silence and finding.verdict is PortalVerdict.UNCLEAR:
            self._set_free(one, now_s, proven=False)
        elif one.captive_at_s is not None:
            if now_s - one.captive_at_s >= _BELIEVED_S:
                one.captive_at_s = None
            else:
                one.due_s = min(one.due_s, now_s + CAPTIVE_EVERY_S)
        elif one.tries < len(_AGAIN_S):
            one.due_s = min(one.due_s, now_s + _AGAIN_S[one.tries])
            one.tries += 1

    def _set_free(self, one: _NetworkPortal, now_s: float, *, proven: bool = True) -> None:
        one.captive_at_s, one.tries = None, 0
        if proven:
            one.silence_believed_s = 0.0
        self._report(one.network.name, Indicator(0.0, now_s, active=proven))


def _moved(before: Network, after: Network) -> bool:
    return (before.index, before.addresses, before.gateways) != (
        after.index,
        after.addresses,
        after.gateways,
    )


def _stop(one: _NetworkPortal) -> None:
    if one.task is not None:
        one.task.cancel()


def usual_rtt_s(known: Mapping[str, Mapping[str, Indicator]], name: str) -> float | None:
    """Return a network's usual round trip, s; None if it answered no recent ping."""
    rtt, loss = known.get(name, {}).get("rtt_s"), known.get(name, {}).get("ping_loss")
    if rtt is None or (loss is not None and loss.value >= 1.0):
        return None
    return rtt.value
