"""The times at which each network is asked for the test page, and what the answers tell its state.

A network is asked when it appears, when it moves to another access point, after the host's sleep, when
connections over it are not answered, soon while it is dead though its pings are answered, every 30 s
while it is captive, and every 3 s while it is captive and carries something: a user is logging in. Where
this network filters the page, it is not asked for again, and where that may be, for twenty minutes.

A check is one or two commands. `CheckPage` asks for the page. If its answer is doubtful, `ShakeHands`
asks a well-known host over this network, and over the others to learn whether that host answers at all.
`liveness` judges.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from cedos.controller.commands import CheckPage, ShakeHands
from cedos.controller.events import (
    SYN_SENT,
    HandshakeEnded,
    PageChecked,
    PortalFinding,
    PortalVerdict,
    TlsAnswer,
    Witness,
)
from cedos.controller.networks.context import ContextKeeper
from cedos.controller.networks.liveness import Liveness
from cedos.controller.networks.unanswered import RESCUED_AFTER_S, Unanswered
from cedos.controller.outbox import Outbox
from cedos.limits import TokenBucket
from cedos.model import (
    Address,
    FlowKey,
    FlowSample,
    Network,
    NetworkLife,
    NetworkVerdict,
    owners,
)

CAPTIVE_EVERY_S: Final = 30.0
LOGGING_IN_EVERY_S: Final = 3.0
# The least time between two checks because of an unanswered connection, whose server may be down,
# and because of several.
_REST_S, _HURRIED_REST_S = 30.0, 5.0
# The checks of a network at once, before there is one each `LOGGING_IN_EVERY_S`, whatever its router or
# a neighbour announces.
_AT_ONCE: Final = 8
# The times after which a network without a verdict is asked again. It may not have been ready.
_AGAIN_S: Final = (2.0, 5.0, 15.0)
# The time after which a dead network is asked again, doubled each time up to the second value.
_DEAD_AGAIN_S, _DEAD_EVERY_S = 5.0, 30.0
# The longest time between two checks of a possible portal or filter. It begins with 30 s and
# doubles.
_DOUBTED_S: Final = 600.0
# The lifetime of an answer over another network that shows whether a host answers at all.
_VOUCHED_S: Final = 600.0
_SHORTEST_REST_S: Final = 0.2
_MOMENT_S: Final = 0.01
USUAL_TIMEOUT_S: Final = 2.5
_SHORT_TIMEOUT_S: Final = 0.8
# The time for a TLS handshake. It allows for one repetition of the first packet, after a second.
_TLS_TIMEOUT_S: Final = 1.2
_LONGEST_S: Final = 10.0
# Pings and the daemon's own check receive less than this; a log-in page is larger.
_CARRIES_BYTES: Final = 4000
# The most routers remembered as having answered names. The silence of other routers tells nothing.
_MOST_ROUTERS: Final = 64


@dataclass(slots=True)
class _Check:
    """A check in progress; `pending`: the networks whose handshake has not ended."""

    number: int
    began_s: float
    in_vain: bool
    pending: set[str] = field(default_factory=set)
    here: TlsAnswer | None = None
    elsewhere: set[TlsAnswer] = field(default_factory=set)


@dataclass(slots=True)
class _NetworkPortal:
    network: Network
    due_s: float
    tries: int = 0
    received_bytes: int = 0
    finding: PortalFinding | None = None
    at_s: float = -math.inf
    dead_again_s: float = _DEAD_AGAIN_S
    doubted_s: float = CAPTIVE_EVERY_S
    in_vain_s: float = math.inf
    check: _Check | None = None

    @property
    def captive(self) -> bool:
        """Return whether the test page was answered by a portal, or by a filter."""
        return self.finding is not None and self.finding.verdict is PortalVerdict.CAPTIVE

    @property
    def filtered(self) -> bool:
        return self.finding is not None and self.finding.verdict is PortalVerdict.FILTERED


class Portals:
    """The search for portals. It tells each network's `Liveness` what was found."""

    def __init__(self, outbox: Outbox, keeper: ContextKeeper) -> None:
        self._outbox = outbox
        self._keeper = keeper
        self._number = 0
        self._watched: dict[str, _NetworkPortal] = {}
        self._checks: dict[str, TokenBucket] = {}
        self._resolving: dict[tuple[str, tuple[Address, ...]], None] = {}
        self._answers: dict[str, tuple[float, TlsAnswer]] = {}
        self._unanswered = Unanswered()

    # -- what others read ---------------------------------------------------------------------

    def problems(self, now_s: float) -> list[str]:
        """Return what people should know of each network."""
        found = (
            self._problem(one, self._verdict(name, now_s)) for name, one in self._watched.items()
        )
        return [problem for problem in found if problem]

    def _problem(self, one: _NetworkPortal, verdict: NetworkVerdict) -> str:
        name, finding = one.network.name, one.finding
        opens = f" Open {verdict.page} to log in: it opens over {name}." if verdict.page else ""
        if verdict.life is NetworkLife.CAPTIVE:
            return f"{name} wants a log-in: {verdict.why}.{opens} Until then it is not used"
        if finding is None:
            return ""
        if one.captive:
            used = f" Nothing else tells of it, so {name} is used" if not verdict.condemned else ""
            return f"{name} may want a log-in: {finding.why}.{opens}{used}"
        if one.filtered:
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
            if one.finding is not None and one.captive:
                for addresses in one.finding.hosts.values():
                    yield name, addresses

    def next_timer_s(self) -> float | None:
        """Return when `on_timer` is to be called; None: never."""
        each_s = (
            min(one.in_vain_s, one.due_s if one.check is None else math.inf)
            for one in self._watched.values()
        )
        next_s = min(each_s, default=math.inf)
        return next_s if next_s < math.inf else None

    # -- what happens -------------------------------------------------------------------------

    def on_timer(self, now_s: float) -> bool:
        """Begin the checks that are due; return whether a network's state was told anything."""
        told = False
        for one in self._watched.values():
            # Short connections end before the next look at the living ones.
            if one.in_vain_s <= now_s:
                one.in_vain_s = math.inf
                self._note_in_vain(one, now_s)
                told = True
            if one.due_s <= now_s and one.check is None:
                one.due_s = math.inf
                checks = self._checks[one.network.name]
                if checks.take(now_s):
                    self._begin(one, now_s)
                else:
                    one.due_s = now_s + checks.wait_s + _MOMENT_S
        return told

    def networks_changed(self, networks: Iterable[Network], now_s: float) -> None:
        """Take the usable networks; one that is new, or moved, is checked."""
        there = {network.name: network for network in networks}
        self._checks = {
            name: self._checks.get(name) or TokenBucket(1 / LOGGING_IN_EVERY_S, _AT_ONCE, now_s)
            for name in there
        }
        up = {name: network for name, network in there.items() if network.up}
        for name in self._watched.keys() - up.keys():
            del self._watched[name]
            self._answers.pop(name, None)
        for name, network in up.items():
            known = self._watched.get(name)
            if known is None or _has_moved(known.network, network):
                self._watched[name] = _NetworkPortal(network, now_s)
            else:
                known.network = network

    def recheck(self, now_s: float, name: str | None = None) -> None:
        """Check a network (None: all) now: it is another place, or the host has slept."""
        for each, one in self._watched.items():
            if name in (None, each):
                one.due_s, one.tries = max(now_s, one.at_s + _SHORTEST_REST_S), 0
                one.dead_again_s = _DEAD_AGAIN_S

    def observe_flows(
        self, here: Sequence[FlowSample], elsewhere: Iterable[FlowSample], now_s: float
    ) -> bool:
        """Look at the living flows: which wait in vain, and which networks carry.

        Args:
            here: flows of their own address's network.
            elsewhere: rescued flows, which another network carries.

        Returns:
            Whether connections in vain count against a network.
        """
        for sample in elsewhere:
            if sample.state != SYN_SENT:  # it was answered, so its server lives
                self.answered_elsewhere(sample.key)
        self._unanswered.observe(here, [one.network for one in self._watched.values()], now_s)
        missed = False
        for name, one in self._watched.items():
            missed |= self._note_in_vain(one, now_s)
            if (carried_at_s := self._unanswered.carrying.get(name)) is not None:
                self._liveness(name).on_heard(Witness.TRANSFER, carried_at_s)
                # A transfer from a host on the way to the log-in page refutes no portal.
                on_the_way = {each for _, found in self.on_the_way() for each in found}
                if self._unanswered.proven.get(name, set()) - on_the_way:
                    self._liveness(name).on_bytes(carried_at_s)
        return missed

    def on_rescue(self, key: FlowKey, now_s: float) -> None:
        """Take a flow whose first packet found no answer, and was led over another network."""
        if (one := self._owner(key)) is not None:
            self._unanswered.on_rescue(one.network.name, key.remote, now_s)
            one.in_vain_s = min(one.in_vain_s, now_s + RESCUED_AFTER_S + _MOMENT_S)

    def answered_elsewhere(self, key: FlowKey) -> None:
        """Take that the server of a rescued flow has answered over the other network."""
        if (one := self._owner(key)) is not None:
            self._unanswered.answered_elsewhere(one.network.name, key.remote)

    def _owner(self, key: FlowKey) -> _NetworkPortal | None:
        """Return the network that a flow's local address belongs to; None: none that is up."""
        found = owners(one.network for one in self._watched.values()).get(key.local)
        return None if found is None else self._watched[found[0].name]

    def on_bytes(self, name: str, received_bytes: int, now_s: float) -> None:
        """Note once a second how many bytes the network has received since it came up."""
        one = self._watched.get(name)
        if one is None:
            return
        gained, one.received_bytes = received_bytes - one.received_bytes, received_bytes
        if gained >= _CARRIES_BYTES and self._verdict(name, now_s).life is NetworkLife.CAPTIVE:
            one.due_s = min(one.due_s, max(now_s, one.at_s + LOGGING_IN_EVERY_S))

    def on_page(self, event: PageChecked, now_s: float) -> bool:
        """Take the answer to `CheckPage`; return whether it was still awaited."""
        one = self._watched.get(event.network)
        if one is None or one.check is None or one.check.number != event.number:
            return False  # the network moved meanwhile
        if one.check.pending:
            return False  # the page was answered already
        check, finding = one.check, self._compare(one, event.finding)
        one.finding = finding
        self._tell(one, finding, check.began_s, now_s)
        doubtful = finding.verdict in (PortalVerdict.CAPTIVE, PortalVerdict.SILENT) or check.in_vain
        if doubtful and finding.verdict is not PortalVerdict.FREE:
            self._ask_second(one, check, now_s)
        else:
            self._finish(one, now_s)
        return True

    def on_handshake(self, event: HandshakeEnded, now_s: float) -> bool:
        """Take the answer to `ShakeHands`; return whether a check ended with it."""
        for one in self._watched.values():
            check = one.check
            if check is None or check.number != event.number or event.network not in check.pending:
                continue
            check.pending.remove(event.network)
            if event.answer is not None:
                self._answers[event.network] = check.began_s, event.answer
                if event.network == one.network.name:
                    check.here = event.answer
                else:
                    check.elsewhere.add(event.answer)
            if not check.pending:
                self._compare_handshakes(one, check, now_s)
                self._finish(one, now_s)
                return True
        return False

    # -- one check ----------------------------------------------------------------------------

    def _begin(self, one: _NetworkPortal, now_s: float) -> None:
        self._number += 1
        one.at_s = now_s
        one.check = _Check(self._number, now_s, self._note_in_vain(one, now_s))
        # Programs have waited already: then a short time is enough.
        patience_s = self._patience_s(one.network.name, USUAL_TIMEOUT_S, now_s)
        timeout_s = _SHORT_TIMEOUT_S if one.check.in_vain else patience_s
        self._outbox.give(CheckPage(one.network.name, self._number, timeout_s))

    def _finish(self, one: _NetworkPortal, now_s: float) -> None:
        one.at_s, one.check = now_s, None
        self._plan_next(one, now_s)

    def _patience_s(self, name: str, usual_s: float, now_s: float) -> float:
        """Return the time for an answer: a slow network has more."""
        known = self._keeper.snapshot(now_s).networks.get(name, {})
        rtt, loss = known.get("rtt_s"), known.get("ping_loss")
        lost = loss is not None and loss.value >= 1.0
        rtt_s = 0.0 if rtt is None or lost else rtt.value
        return min(max(usual_s, 6.0 * rtt_s), _LONGEST_S)

    def _note_in_vain(self, one: _NetworkPortal, now_s: float) -> bool:
        """Tell the network's state of connections in vain; return whether there are any that count."""
        name = one.network.name
        vain = self._unanswered.in_vain(name, now_s)
        if vain is None or not vain.counts:
            if vain is not None:
                self._check_soon(one, now_s, _REST_S)
            return False
        self._liveness(name).on_missed(Witness.CONNECTION, vain.at_s, vain.asked_s)
        if vain.elsewhere > 1:
            self._liveness(name).on_missed(Witness.ELSEWHERE, vain.at_s, vain.asked_s)
        self._check_soon(one, now_s, _HURRIED_REST_S)
        return True

    def _check_soon(self, one: _NetworkPortal, now_s: float, rest_s: float) -> None:
        if not (one.filtered or self._verdict(one.network.name, now_s).condemned):
            one.due_s = min(one.due_s, max(now_s, one.at_s + rest_s))

    def _compare(self, one: _NetworkPortal, finding: PortalFinding) -> PortalFinding:
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

    def _tell(
        self, one: _NetworkPortal, finding: PortalFinding, began_s: float, now_s: float
    ) -> None:
        liveness = self._liveness(one.network.name)
        if finding.verdict is PortalVerdict.FREE:
            liveness.on_heard(Witness.PAGE, now_s)
        elif finding.verdict is PortalVerdict.CAPTIVE:
            liveness.on_intercepted(finding.witness, now_s, finding.why, finding.page)
        elif finding.verdict is PortalVerdict.SILENT:
            liveness.on_missed(finding.witness, now_s, began_s)
        else:
            liveness.useless(Witness.PAGE)

    def _ask_second(self, one: _NetworkPortal, check: _Check, now_s: float) -> None:
        """Ask a well-known host, and over the other networks whether it answers at all."""
        check.pending = {one.network.name}
        for name in self._watched:
            if name == one.network.name or self._verdict(name, now_s).condemned:
                continue
            at_s, known = self._answers.get(name, (-math.inf, None))
            if known is not None and now_s - at_s <= _VOUCHED_S:
                check.elsewhere.add(known)
            else:
                check.pending.add(name)
        for name in sorted(check.pending):
            patience_s = self._patience_s(name, _TLS_TIMEOUT_S, now_s)
            self._outbox.give(ShakeHands(name, check.number, patience_s))

    def _compare_handshakes(self, one: _NetworkPortal, check: _Check, now_s: float) -> None:
        liveness, here = self._liveness(one.network.name), check.here
        if here is TlsAnswer.PROVEN:
            liveness.on_heard(Witness.CONNECTION, now_s)
            if one.captive:
                why = "something else answers for the test page, and connections pass"
                one.finding = PortalFinding(PortalVerdict.FILTERED, why)
            return
        # Without another network the host is assumed to answer.
        there = check.elsewhere or {TlsAnswer.PROVEN}
        if here is TlsAnswer.ANSWERED and there & {TlsAnswer.PROVEN, TlsAnswer.REFUSED}:
            liveness.on_intercepted(
                Witness.CONNECTION, now_s, "connections are answered by something else"
            )
        elif (here is TlsAnswer.REFUSED and there & {TlsAnswer.PROVEN, TlsAnswer.ANSWERED}) or (
            here is TlsAnswer.SILENT and there - {TlsAnswer.SILENT}
        ):
            liveness.on_missed(Witness.CONNECTION, now_s, check.began_s)

    def _plan_next(self, one: _NetworkPortal, now_s: float) -> None:
        name = one.network.name
        verdict, finding = self._verdict(name, now_s), one.finding
        if verdict.life is NetworkLife.CAPTIVE:
            one.due_s = min(one.due_s, now_s + CAPTIVE_EVERY_S)
        elif one.captive:
            # Something else answers for the page, and that is all: perhaps a filter.
            if one.doubted_s <= _DOUBTED_S:
                one.due_s = min(one.due_s, now_s + one.doubted_s)
                one.doubted_s *= 2.0
        elif one.filtered or (finding is not None and finding.verdict is PortalVerdict.FREE):
            one.tries, one.dead_again_s, one.doubted_s = 0, _DEAD_AGAIN_S, CAPTIVE_EVERY_S
        elif verdict.life is NetworkLife.DEAD and not self._liveness(name).misses(Witness.PING):
            one.due_s = min(one.due_s, now_s + one.dead_again_s)
            one.dead_again_s = min(2.0 * one.dead_again_s, _DEAD_EVERY_S)
        elif one.tries < len(_AGAIN_S):
            one.due_s = min(one.due_s, now_s + _AGAIN_S[one.tries])
            one.tries += 1

    def _liveness(self, name: str) -> Liveness:
        return self._keeper.liveness(name)

    def _verdict(self, name: str, now_s: float) -> NetworkVerdict:
        return self._keeper.verdict(name, now_s)


def _has_moved(before: Network, after: Network) -> bool:
    return (before.index, before.addresses, before.gateways) != (
        after.index,
        after.addresses,
        after.gateways,
    )
