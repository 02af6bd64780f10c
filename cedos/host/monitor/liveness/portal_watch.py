"""The times at which each network is asked for the test page, and what the answers tell its state.

A network is asked when it appears, when it moves to another access point, after the host's sleep, when
connections over it are not answered, soon while it is dead though its pings are answered, every 30 s
while it is captive, and every 3 s while it is captive and carries something: a user is logging in. Where
this network filters the page, it is not asked for again, and where that may be, for twenty minutes.
`liveness` judges.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cedos.controller.events import FlowSample, Witness
from cedos.host.monitor.liveness.portal_verdict import PortalFinding, PortalVerdict
from cedos.host.monitor.liveness.tls_check import TlsAnswer
from cedos.host.monitor.liveness.unanswered import RESCUED_AFTER_S, Unanswered
from cedos.model import Address, FlowKey, Indicator, Network, NetworkLife, NetworkVerdict

CAPTIVE_EVERY_S = 30.0
LOGGING_IN_EVERY_S = 3.0
# The least time between two checks because of an unanswered connection, whose server may be down,
# and because of several.
_REST_S, _HURRIED_REST_S = 30.0, 5.0
# The times after which a network without a verdict is asked again. It may not have been ready.
_AGAIN_S = (2.0, 5.0, 15.0)
# The time after which a dead network is asked again, doubled each time up to the second value.
_DEAD_AGAIN_S, _DEAD_EVERY_S = 5.0, 30.0
# The longest time between two checks of a possible portal or filter. It begins with 30 s and
# doubles.
_DOUBTED_S = 600.0
# The lifetime of an answer over another network that shows whether a host answers at all.
_VOUCHED_S = 600.0
_SHORTEST_REST_S = 0.2
_MOMENT_S = 0.01
USUAL_TIMEOUT_S = 2.5
_SHORT_TIMEOUT_S = 0.8
# The time for a TLS handshake. It allows for one repetition of the first packet, after a second.
_TLS_TIMEOUT_S = 1.2
_LONGEST_S = 10.0
# Pings and the daemon's own check receive less than this; a log-in page is larger.
_CARRIES_BYTES = 4000
# The most routers remembered as having answered names. The silence of other routers tells nothing.
_MOST_ROUTERS = 64

# Check a network within so many seconds (`portal_check.PortalCheck`).
Check = Callable[[Network, float], Awaitable[PortalFinding]]

# Make a TLS handshake with a well-known host over a network (`tls_check.shake_hands`). None: no
# such host is known.
ShakeHands = Callable[[Network, float], Awaitable[TlsAnswer | None]]


@dataclass(slots=True)
class _NetworkPortal:
    network: Network
    due_s: float
    tries: int = 0
    received_bytes: int = 0
    finding: PortalFinding | None = None
    at_s: float = float("-inf")
    dead_again_s: float = _DEAD_AGAIN_S
    doubted_s: float = CAPTIVE_EVERY_S
    in_vain_s: float = float("inf")
    task: asyncio.Task[None] | None = field(default=None)


class NetworkLiveness(Protocol):
    """The state of a network (`cedos.controller.networks.liveness.Liveness`), and what it is told."""

    def on_heard(self, witness: Witness, at_s: float) -> None: ...
    def on_bytes(self, at_s: float) -> None: ...
    def missed(self, witness: Witness, at_s: float, asked_s: float | None = None) -> None: ...
    def intercepted(self, witness: Witness, at_s: float, why: str, page: str = "") -> None: ...
    def useless(self, witness: Witness) -> None: ...
    def verdict(self, now_s: float) -> NetworkVerdict: ...
    def misses(self, witness: Witness) -> bool: ...


class PortalWatch:
    """Looks for portals, and tells each network's state (`liveness`) what was found.

    Args:
        liveness: the state of a network, by name.
        changed: called when a check has ended.
        check: asks for the test page.
        manager: NetworkManager's verdict on its own test page, None where it has none.
        shake_hands: a second opinion.
        rtt_s: the usual round trip (a slow network is given more time).
    """

    def __init__(
        self,
        liveness: Callable[[str], NetworkLiveness],
        changed: Callable[[], None] = lambda: None,
        *,
        check: Check | None = None,
        manager: Callable[[Network], Awaitable[bool | None]] | None = None,
        shake_hands: ShakeHands | None = None,
        rtt_s: Callable[[str], float | None] = lambda name: None,
    ) -> None:
        self._liveness = liveness
        self._changed = changed
        self._check = check
        self._manager = manager
        self._shake_hands = shake_hands
        self._rtt_s = rtt_s
        self._watched: dict[str, _NetworkPortal] = {}
        self._resolving: dict[tuple[str, tuple[Address, ...]], None] = {}
        self._answers: dict[str, tuple[float, TlsAnswer]] = {}
        self._unanswered = Unanswered()
        self._wake = asyncio.Event()

    @property
    def problems(self) -> list[str]:
        now_s = time.monotonic()
        return [
            problem
            for name, one in self._watched.items()
            if (problem := self._problem(one, self._verdict(name, now_s)))
        ]

    def _problem(self, one: _NetworkPortal, verdict: NetworkVerdict) -> str:
        name, finding = one.network.name, one.finding
        opens = f" Open {verdict.page} to log in: it opens over {name}." if verdict.page else ""
        if verdict.life is NetworkLife.CAPTIVE:
            return f"{name} wants a log-in: {verdict.why}.{opens} Until then it is not used"
        if finding is None:
            return ""
        if finding.verdict is PortalVerdict.CAPTIVE:
            used = f" Nothing else tells of it, so {name} is used" if not verdict.condemned else ""
            return f"{name} may want a log-in: {finding.why}.{opens}{used}"
        if finding.verdict is PortalVerdict.FILTERED:
            return (
                f"the portal check is filtered on {name}: {finding.why}. It is not repeated there,"
                " and a log-in page is noticed late"
            )
        if finding.verdict is PortalVerdict.SILENT and finding.witness is Witness.NAME:
            lives = any(
                each.finding is not None and each.finding.verdict is PortalVerdict.FREE
                for each in self._watched.values()
            )
            other = ", another network's does" if lives else ""
            used = " Not used" if verdict.life is NetworkLife.DEAD else ""
            return f"{name}: its DNS does not answer{other}.{used}".removesuffix(".")
        return ""

    def on_the_way(self) -> Iterator[tuple[str, Sequence[Address]]]:
        """Yield a network that may want a log-in, and the addresses of a host on the way to its page."""
        for name, one in self._watched.items():
            if one.finding is not None and one.finding.verdict is PortalVerdict.CAPTIVE:
                for addresses in one.finding.hosts.values():
                    yield name, addresses

    def networks_changed(self, networks: Iterable[Network]) -> None:
        up = {network.name: network for network in networks if network.up}
        for name in self._watched.keys() - up.keys():
            _stop(self._watched.pop(name))
            self._answers.pop(name, None)
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
                one.dead_again_s = _DEAD_AGAIN_S
        self._wake.set()

    @property
    def carrying(self) -> frozenset[str]:
        """Return networks on which a server answered within the last second (`Unanswered`)."""
        return self._unanswered.carrying

    def observe_flows(self, samples: Sequence[FlowSample]) -> None:
        """Take a look at the living flows: who waits for an answer in vain, and what is carried."""
        networks = [one.network for one in self._watched.values()]
        now_s = time.monotonic()
        self._unanswered.observe(samples, networks, now_s)
        for name, one in self._watched.items():
            self._note_in_vain(one, now_s)
            if name in self._unanswered.carrying:
                self._liveness(name).on_heard(Witness.TRANSFER, now_s)
                on_the_way = {each for _, found in self.on_the_way() for each in found}
                if self._unanswered.proven.get(name, set()) - on_the_way:
                    self._liveness(name).on_bytes(now_s)

    def _note_in_vain(self, one: _NetworkPortal, now_s: float) -> bool:
        """Tell the network's state of connections in vain; return whether there are any that count."""
        name = one.network.name
        vain = self._unanswered.in_vain(name, now_s)
        if vain is None or not vain.counts:
            if vain is not None:
                self._check_soon(one, now_s, _REST_S)
            return False
        self._liveness(name).missed(Witness.CONNECTION, vain.at_s, vain.asked_s)
        if vain.elsewhere > 1:
            self._liveness(name).missed(Witness.ELSEWHERE, vain.at_s, vain.asked_s)
        self._check_soon(one, now_s, _HURRIED_REST_S)
        return True

    def _check_soon(self, one: _NetworkPortal, at_s: float, rest_s: float) -> None:
        filtered = one.finding is not None and one.finding.verdict is PortalVerdict.FILTERED
        if self._verdict(one.network.name, at_s).condemned or filtered:
            return
        one.due_s = min(one.due_s, max(at_s, one.at_s + rest_s))
        self._wake.set()

    def on_rescue(self, key: FlowKey) -> None:
        """Take a flow whose first packet found no answer, and was led over another network."""
        now_s = time.monotonic()
        for name, one in self._watched.items():
            if any(address.ip == key.local for address in one.network.addresses):
                self._unanswered.on_rescue(name, key.remote, now_s)
                one.in_vain_s = min(one.in_vain_s, now_s + RESCUED_AFTER_S + _MOMENT_S)
                self._wake.set()

    def answered_elsewhere(self, key: FlowKey) -> None:
        """Take that the server of a rescued flow has answered over the other network."""
        for name, one in self._watched.items():
            if any(address.ip == key.local for address in one.network.addresses):
                self._unanswered.answered_elsewhere(name, key.remote)

    def on_bytes(self, name: str, received_bytes: int) -> None:
        """Note once a second how many bytes the network has received since it came up."""
        one = self._watched.get(name)
        if one is None:
            return
        gained, one.received_bytes = received_bytes - one.received_bytes, received_bytes
        now_s = time.monotonic()
        if gained >= _CARRIES_BYTES and self._verdict(name, now_s).life is NetworkLife.CAPTIVE:
            one.due_s = min(one.due_s, max(now_s, one.at_s + LOGGING_IN_EVERY_S))
            self._wake.set()

    async def run(self) -> None:
        try:
            while True:
                self._wake.clear()
                now_s = time.monotonic()
                for one in self._watched.values():
                    # Short connections are over before the next look at the living ones.
                    if one.in_vain_s <= now_s:
                        one.in_vain_s = float("inf")
                        self._note_in_vain(one, now_s)
                        self._changed()
                    if one.due_s <= now_s and (one.task is None or one.task.done()):
                        one.due_s = float("inf")
                        one.task = asyncio.create_task(self._check_network(one), name="portal")
                each_s = (min(one.due_s, one.in_vain_s) for one in self._watched.values())
                next_s = min(each_s, default=float("inf"))
                wait_s = None if next_s == float("inf") else max(next_s - time.monotonic(), 0.0)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
        finally:
            for one in self._watched.values():
                _stop(one)

    async def _check_network(self, one: _NetworkPortal) -> None:
        began_s = one.at_s = time.monotonic()
        in_vain = self._note_in_vain(one, began_s)
        try:
            finding = one.finding = await self._find(one, hurried=in_vain)
            self._tell(one, finding, began_s)
            doubtful = finding.verdict in (PortalVerdict.CAPTIVE, PortalVerdict.SILENT) or in_vain
            if doubtful and finding.verdict is not PortalVerdict.FREE:
                await self._second_opinion(one)
        except Exception as error:  # whatever it is, it must not end the watch
            why = f"{type(error).__name__}: {error}"
            one.finding = PortalFinding(PortalVerdict.UNCLEAR, why)
        one.at_s = time.monotonic()
        self._plan_next(one)
        self._changed()
        self._wake.set()

    async def _find(self, one: _NetworkPortal, *, hurried: bool) -> PortalFinding:
        network = one.network
        # Others have waited before us: then a short time is enough.
        timeout_s = _SHORT_TIMEOUT_S if hurried else self._patience_s(network, USUAL_TIMEOUT_S)
        finding = PortalFinding(PortalVerdict.UNCLEAR, "nothing can be told")
        if self._check is not None:
            finding = self._compared(one, await self._check(network, timeout_s))
        if finding.verdict in (PortalVerdict.UNCLEAR, PortalVerdict.SILENT) and self._manager:
            captive = await self._manager(network)
            if captive is not None:
                verdict = PortalVerdict.CAPTIVE if captive else PortalVerdict.FREE
                finding = PortalFinding(verdict, "NetworkManager's check says so")
        return finding

    def _patience_s(self, network: Network, usual_s: float) -> float:
        return min(max(usual_s, 6.0 * (self._rtt_s(network.name) or 0.0)), _LONGEST_S)

    def _compared(self, one: _NetworkPortal, finding: PortalFinding) -> PortalFinding:
        """Return the finding in the light of what the other networks found."""
        if finding.verdict is PortalVerdict.CAPTIVE and finding.likeness:
            for other in self._watched.values():
                same = other.finding and other.finding.likeness == finding.likeness
                if other is one or not same:
                    continue
                unclear = PortalFinding(
                    PortalVerdict.UNCLEAR,
                    "the test page answers otherwise than it should on several networks",
                    likeness=finding.likeness,
                )
                other.finding = unclear
                self._liveness(other.network.name).useless(Witness.PAGE)
                return unclear
        router = (one.network.interface, one.network.gateways)
        if finding.verdict in (PortalVerdict.FREE, PortalVerdict.CAPTIVE):
            self._resolving[router] = None
            if len(self._resolving) > _MOST_ROUTERS:
                del self._resolving[next(iter(self._resolving))]
        elif finding.guessed and router not in self._resolving:
            return PortalFinding(PortalVerdict.UNCLEAR, "its router may be no resolver")
        return finding

    def _tell(self, one: _NetworkPortal, finding: PortalFinding, began_s: float) -> None:
        liveness, now_s = self._liveness(one.network.name), time.monotonic()
        if finding.verdict is PortalVerdict.FREE:
            liveness.on_heard(Witness.PAGE, now_s)
        elif finding.verdict is PortalVerdict.CAPTIVE:
            liveness.intercepted(finding.witness, now_s, finding.why, finding.page)
        elif finding.verdict is PortalVerdict.SILENT:
            liveness.missed(finding.witness, now_s, began_s)
        else:
            liveness.useless(Witness.PAGE)

    async def _second_opinion(self, one: _NetworkPortal) -> None:
        """Ask a well-known host, and over the other networks whether it answers at all."""
        if self._shake_hands is None:
            return
        name, began_s = one.network.name, time.monotonic()
        others = [
            each.network
            for other, each in self._watched.items()
            if other != name and not self._verdict(other, began_s).condemned
        ]
        here, *elsewhere = await asyncio.gather(
            self._answer(one.network, began_s), *(self._known_answer(n, began_s) for n in others)
        )
        if here is None:
            return
        liveness, now_s = self._liveness(name), time.monotonic()
        if here is TlsAnswer.PROVEN:
            liveness.on_heard(Witness.CONNECTION, now_s)
            if one.finding is not None and one.finding.verdict is PortalVerdict.CAPTIVE:
                why = "something else answers for the test page, and connections pass"
                one.finding = PortalFinding(PortalVerdict.FILTERED, why)
            return
        # Without another network it is taken for a host that answers.
        there = {each for each in elsewhere if each is not None} or {TlsAnswer.PROVEN}
        if here is TlsAnswer.ANSWERED and there & {TlsAnswer.PROVEN, TlsAnswer.REFUSED}:
            liveness.intercepted(
                Witness.CONNECTION, now_s, "connections are answered by something else"
            )
        elif (here is TlsAnswer.REFUSED and there & {TlsAnswer.PROVEN, TlsAnswer.ANSWERED}) or (
            here is TlsAnswer.SILENT and there - {TlsAnswer.SILENT}
        ):
            liveness.missed(Witness.CONNECTION, now_s, began_s)

    async def _answer(self, network: Network, now_s: float) -> TlsAnswer | None:
        assert self._shake_hands is not None
        found = await self._shake_hands(network, self._patience_s(network, _TLS_TIMEOUT_S))
        if found is not None:
            self._answers[network.name] = now_s, found
        return found

    async def _known_answer(self, network: Network, now_s: float) -> TlsAnswer | None:
        at_s, known = self._answers.get(network.name, (float("-inf"), None))
        if known is not None and now_s - at_s <= _VOUCHED_S:
            return known
        return await self._answer(network, now_s)

    def _plan_next(self, one: _NetworkPortal) -> None:
        now_s, name = time.monotonic(), one.network.name
        verdict, finding = self._verdict(name, now_s), one.finding
        filtered = finding is not None and finding.verdict is PortalVerdict.FILTERED
        if verdict.life is NetworkLife.CAPTIVE:
            one.due_s = min(one.due_s, now_s + CAPTIVE_EVERY_S)
        elif finding is not None and finding.verdict is PortalVerdict.CAPTIVE:
            # Something else answers for the page, and that is all: perhaps a filter.
            if one.doubted_s <= _DOUBTED_S:
                one.due_s = min(one.due_s, now_s + one.doubted_s)
                one.doubted_s *= 2.0
        elif filtered or (finding is not None and finding.verdict is PortalVerdict.FREE):
            one.tries, one.dead_again_s, one.doubted_s = 0, _DEAD_AGAIN_S, CAPTIVE_EVERY_S
        elif verdict.life is NetworkLife.DEAD and not self._liveness(name).misses(Witness.PING):
            one.due_s = min(one.due_s, now_s + one.dead_again_s)
            one.dead_again_s = min(2.0 * one.dead_again_s, _DEAD_EVERY_S)
        elif one.tries < len(_AGAIN_S):
            one.due_s = min(one.due_s, now_s + _AGAIN_S[one.tries])
            one.tries += 1

    def _verdict(self, name: str, now_s: float) -> NetworkVerdict:
        return self._liveness(name).verdict(now_s)


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
