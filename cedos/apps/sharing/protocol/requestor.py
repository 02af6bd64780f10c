"""The requestor's machine: it finds helpers, confirms the chosen ones, and watches them. Pure.

It invites every T seconds until the rate wanted is offered, and T doubles each time. It begins again with
the first T when the sum of its helpers' rates falls below that rate. Each helper has a state:

| state | event | next state, and what is done |
|---|---|---|
| none | Join to a recent Invite, at a price that is accepted | OFFERED |
| OFFERED | chosen | ADDRESSING; TakeAddress |
| OFFERED | the offer is old | none |
| ADDRESSING | the driver has an address | CONFIRMING; Confirm |
| ADDRESSING | the driver has none, or takes too long | none; RemovePath |
| CONFIRMING | Hello-ACK to the Confirm | ACTIVE; AddPath |
| ACTIVE | the driver can make no path | none; Leave, RemovePath |
| CONFIRMING | timer | the Confirm again; after the last one none; RemovePath |
| ACTIVE | nothing heard for a while | SILENT; Hello |
| SILENT | Hello-ACK, or data carried | ACTIVE; ResumePath |
| SILENT | timer | Hello again, and SuspendPath; after the last one none; RemovePath |
| ACTIVE, SILENT | data waits, and too little of it arrives | none; Leave, RemovePath |
| ACTIVE, SILENT | receipts name more than it carried | none; Leave, RemovePath |
| ACTIVE, SILENT | no answer of the gateway, and another helper; once | none; Leave, RemovePath |
| ACTIVE, SILENT | Leave of the helper, which forwards for a while yet | LEAVING; SuspendPath |
| LEAVING | nothing more comes, or the while is over | none; Leave, RemovePath |
| any | any other Leave, its certificate ends, the requestor stops | none; RemovePath |

A helper that failed or refused, or for the second time left within 10 s or before it had carried a byte,
is not chosen again for 5 s, and for twice as long each further time: the link or the gateway may have
failed. Nor are others of the same client of the gateway, which has one place. A helper that drops data
yet answers each Hello is left by the three rows before Leave, which do not ask the helper.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from cedos.apps.sharing.protocol.accounting import RECORD_BYTES
from cedos.apps.sharing.protocol.certificates import (
    AvoidedClients,
    Certificate,
    HostIdentity,
    Trust,
    UntrustedError,
)
from cedos.apps.sharing.protocol.commands import (
    AddPath,
    LinkAddress,
    OfferRefused,
    RemovePath,
    RequestorCommand,
    ResumePath,
    SendDatagram,
    SuspendPath,
    TakeAddress,
)
from cedos.apps.sharing.protocol.messages import (
    NONCE_BYTES,
    WITH_NOTICE,
    ConfirmMessage,
    HelloAckMessage,
    HelloMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    ShareDatagram,
    ShareMessage,
    pack,
    unpack,
)
from cedos.apps.sharing.protocol.receipts import GIGABYTE, Contract, by_volume, contract_of
from cedos.apps.sharing.protocol.signing import AddressBuckets, Freshness, SendTimes
from cedos.limits import TokenBucket
from cedos.selector.sharing import HelperOffer, HelperStrategy, by_price
from cedos.session.protocol.crypto import Random

_MOST_OFFERS: Final = 64
_MOST_RATES: Final = 256
# The gateway does not answer for so long, then another helper is looked for.
_ANSWER_S: Final = 9.0
# The budget must last for so long at a helper's price and the rate wanted.
_AFFORD_S: Final = 10.0
_RECENT_INVITES: Final = 2
_FAULTS: Final = {
    LeaveReason.CARRIES_NOTHING, LeaveReason.REFUSED, LeaveReason.SILENT, LeaveReason.UNTRUSTED,
}  # fmt: skip
_CARRIED_SHARE: Final = 0.1
# Receipts may exceed the own count, which lacks what came after the last look at a connection.
_AHEAD_SHARE: Final = 0.1
_REPORTS_APART_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class RequestorWish:
    """The person's wish.

    Attributes:
        rate_bps: rho of the paper, bit/s from helpers.
        most_price: millionths of `currency` for 10^9 bytes; dearer helpers are not taken.
        budget: millionths of `currency` for all helpers together; None: no limit.
        own_network: the host has a network of its own. Without one the first helper is taken at once, so
            that the gateway can be asked about the others.
    """

    rate_bps: int
    currency: str = "EUR"
    most_price: int | None = None
    budget: int | None = None
    own_network: bool = False
    strategy: HelperStrategy = by_price


# Durations in seconds, and numbers of attempts (docs/sharing-protocol.md).
FIRST_INVITE_S: Final = 1.0  # T of the paper at the beginning
MOST_INVITE_S: Final = 8.0
GATHER_S: Final = 1.0  # Joins are collected for so long before helpers are chosen
OFFER_S: Final = 10.0  # a Join is good for so long
ADDRESS_S: Final = 5.0
SILENT_S: Final = 0.2  # nothing is heard of a helper while data waits, then it gets a Hello
IDLE_S: Final = 2.0  # the same while no data waits
HELLO_S: Final = 0.1  # to the first repetition of a Hello or Confirm; doubles
HELLOS: Final = 3
CONFIRMS: Final = 5
JUDGE_S: Final = 1.3  # data waits for so long, then enough of it must have arrived
AVOID_S: Final = 5.0  # a helper that failed is not chosen for so long; doubles, to `MOST_AVOID_S`
MOST_AVOID_S: Final = 320.0
STAY_S: Final = 10.0  # a helper that leaves sooner, for the second time, is avoided, too
LEAVE_S: Final = 1.8  # a helper that leaves with notice is used for so long, for what is on its way
EMPTY_S: Final = 0.5  # nothing comes for so long, then nothing is on its way any more


class HelperState(Enum):
    OFFERED = "offered"
    ADDRESSING = "addressing"
    CONFIRMING = "confirming"
    ACTIVE = "active"
    SILENT = "silent"
    LEAVING = "leaving"


_CARRYING: Final = {HelperState.ACTIVE, HelperState.SILENT, HelperState.LEAVING}


@dataclass(frozen=True, slots=True)
class HelperView:
    """A helper as the person sees it."""

    helper: bytes
    name: str
    state: HelperState
    price: int
    currency: str
    rate_bps: float
    carried_bytes: int
    amount: int
    left_bytes: int


@dataclass(slots=True)
class _Helper:
    offer: HelperOffer
    certificate: Certificate
    link: LinkAddress
    join: ShareDatagram
    terms: JoinMessage
    due_s: float
    told_left_bytes: int
    state: HelperState = HelperState.OFFERED
    contract: Contract | None = None
    source: bytes = b""
    confirm: bytes = b""
    asked: tuple[bytes, ...] = ()  # nonces of Confirms or Hellos that were not answered
    suspended: bool = False
    active_s: float = math.inf
    doubted: bool = False  # the gateway has not answered since long
    heard_s: float = 0.0
    carried_bytes: int = 0
    receipted_bytes: int = 0
    carried_when_told_bytes: int = 0
    waiting_bytes: int = 0
    leaves: LeaveReason = LeaveReason.DONE
    # (now_s, carried, waiting) while data waits, of the last `judge_s`
    reports: deque[tuple[float, int, int]] = field(default_factory=deque)

    @property
    def amount(self) -> int:
        counted_bytes = max(self.carried_bytes, self.receipted_bytes)
        return by_volume(self.contract, 0, counted_bytes) if self.contract else 0

    @property
    def left_bytes(self) -> int:
        """Return the last limit told, less the bytes carried since: a busy helper is not asked."""
        since_bytes = self.carried_bytes - self.carried_when_told_bytes
        return max(self.told_left_bytes - since_bytes, 0)

    def has_stayed(self, now_s: float) -> bool:
        return self.carried_bytes > 0 and now_s >= self.active_s + STAY_S


class RequestorMachine:
    def __init__(
        self,
        identity: HostIdentity,
        trust: Trust,
        wish: RequestorWish,
        *,
        random: Random,
        now_s: float,
    ) -> None:
        self._identity, self._trust, self._wish, self._random = identity, trust, wish, random
        self._me = identity.key.public
        self._times, self._freshness = SendTimes(), Freshness()
        self._joins = TokenBucket(50, 100, now_s)
        self._of_address = AddressBuckets()
        self._answers = TokenBucket(200, 400, now_s)
        # Anyone can forge a Leave, and an answer only who hears the question.
        self._leaves = TokenBucket(20, 40, now_s)
        self._commands: list[RequestorCommand] = []
        self._helpers: OrderedDict[bytes, _Helper] = OrderedDict()
        self._avoided = AvoidedClients(AVOID_S, MOST_AVOID_S)
        self._answered_s = -math.inf
        # A helper was left for another one since then: without an answer by that one either, the gateway
        # is away.
        self._replaced = False
        self._history: OrderedDict[bytes, float] = OrderedDict()
        self._refused: OrderedDict[bytes, OfferRefused] = OrderedDict()
        self._invites: deque[bytes] = deque(maxlen=_RECENT_INVITES)
        self._running = False
        self._interval_s = FIRST_INVITE_S
        self._invite_s = self._choose_s = math.inf
        self._invited_s = -math.inf
        self._spent_before = 0
        # Contracts that ended, for receipts that come later: what was counted of each.
        self._ended: OrderedDict[bytes, tuple[Contract, int]] = OrderedDict()

    # Events.

    def start(self, now_s: float) -> None:
        """Begin to look for helpers."""
        self._running = True
        self._discover(now_s)

    def stop(self, now_s: float) -> None:
        """Leave all helpers, and look for no other one."""
        self._running = False
        self._invite_s = self._choose_s = math.inf
        for helper in list(self._helpers):
            self._leave(helper, LeaveReason.DONE, now_s)

    def receive_datagram(self, data: bytes, source: LinkAddress, now_s: float) -> None:
        """Take a datagram of the link. What proves nothing is dropped without a word."""
        try:
            datagram = unpack(data)
            message = datagram.message
            if isinstance(message, InviteMessage | ConfirmMessage | HelloMessage):
                return
            if message.to != self._me or not self._is_expected(message, source, now_s):
                return
            certificate = datagram.verify_sender(self._trust, now_s)
        except UntrustedError:
            return
        if certificate.host == self._me:
            return
        if not self._freshness.take(certificate.host, message.sent_us, now_s):
            return
        if isinstance(message, JoinMessage):
            self._on_join(datagram, message, certificate, source, now_s)
        elif isinstance(message, HelloAckMessage):
            self._on_hello_ack(certificate.host, message, now_s)
        else:
            self._on_leave(certificate.host, message.reason, now_s)

    def on_address(self, helper: bytes, address: bytes, now_s: float) -> None:
        """Confirm a helper, now that the driver has a source address for it."""
        found = self._helpers.get(helper)
        if found is None or found.state is not HelperState.ADDRESSING:
            return
        found.source = address
        found.state = HelperState.CONFIRMING
        found.asked = ()
        self._confirm(found, now_s)

    def on_no_address(self, helper: bytes, now_s: float) -> None:
        found = self._helpers.get(helper)
        if found is not None and found.state is HelperState.ADDRESSING:
            self._drop(helper, LeaveReason.REFUSED, now_s)

    def on_no_path(self, helper: bytes, now_s: float) -> None:
        """Leave a helper whose terms lead nowhere: the driver can make no path by it."""
        if helper in self._helpers:
            self._leave(helper, LeaveReason.REFUSED, now_s)

    def on_traffic(
        self, helper: bytes, carried_bytes: int, waiting_bytes: int, now_s: float
    ) -> None:
        """Take what the session says of a path, every 0.1 to 0.2 s.

        Args:
            helper: its key.
            carried_bytes: payload that the path has carried both ways, since it was added.
            waiting_bytes: payload handed to the path that the far end has not acknowledged.
            now_s: the time.
        """
        found = self._helpers.get(helper)
        if found is None or found.state not in _CARRYING:
            return
        if carried_bytes > found.carried_bytes:
            found.carried_bytes = carried_bytes
            self._on_heard(found, now_s)
        if waiting_bytes and not found.waiting_bytes:
            # Silence counts from when there is something to be heard of.
            found.heard_s = max(found.heard_s, now_s)
        found.waiting_bytes = waiting_bytes
        if found.state is not HelperState.LEAVING and self._carries_too_little(found, now_s):
            self._leave(helper, LeaveReason.CARRIES_NOTHING, now_s)
        self._check_budget(now_s)
        self.handle_timer(now_s)

    def on_receipt(self, contract: bytes, total_bytes: int, now_s: float) -> None:
        """Take a receipt's total of a contract; where it is more than this host's own count, it counts.

        A helper whose receipts run ahead of that count is left.
        """
        for helper, found in list(self._helpers.items()):
            if found.contract is not None and found.contract.number == contract:
                found.receipted_bytes = max(found.receipted_bytes, total_bytes)
                if total_bytes > (1 + _AHEAD_SHARE) * found.carried_bytes + RECORD_BYTES:
                    self._leave(helper, LeaveReason.UNTRUSTED, now_s)
        if contract in self._ended:
            made, counted_bytes = self._ended[contract]
            if total_bytes > counted_bytes:
                self._spent_before += by_volume(made, counted_bytes, total_bytes)
                self._ended[contract] = made, total_bytes
        self._check_budget(now_s)

    def on_answer(self, now_s: float) -> None:
        """Take it that the gateway has answered a question, by whatever way."""
        self._answered_s, self._replaced = now_s, False
        for found in self._helpers.values():
            found.doubted = False

    def on_no_answer(self, now_s: float) -> None:
        """Look for other helpers if the gateway does not answer by those that are in use.

        A helper can acknowledge what it does not pass on. Without another one it stays: the gateway may
        be away. So does the one that took its place, by which the gateway does not answer either.
        """
        if self._replaced:
            return
        until_s = now_s - _ANSWER_S
        for found in self._used_helpers():
            if max(found.active_s, self._answered_s) <= until_s:
                found.doubted = True
        self._check_rate(now_s)

    def on_history(self, helper: bytes, rate_bps: float, now_s: float) -> None:
        """Take a helper's rate as the gateway's map has it, or as the session has measured it under load.

        It counts more than what the helper says of itself.
        """
        self._history[helper] = rate_bps
        self._history.move_to_end(helper)
        if len(self._history) > _MOST_RATES:
            self._history.popitem(last=False)
        if found := self._helpers.get(helper):
            found.offer = self._offer(found.certificate.host, found.terms)
            self._check_rate(now_s)

    def on_revocations(self, data: bytes, now_s: float) -> None:
        """Take the gateway's list. UntrustedError: the gateway did not sign it."""
        self._trust.revoke(data)
        self._check_certificates(now_s)

    def handle_timer(self, now_s: float) -> None:
        """Do what is due; call it at `next_timer`, or at any other time."""
        self._check_certificates(now_s)
        for helper, found in list(self._helpers.items()):
            if now_s >= self._due_s(found):
                self._on_helper_timer(helper, found, now_s)
        if now_s >= self._choose_s:
            self._choose_s = math.inf
            self._choose(now_s)
        if now_s >= self._invite_s:
            self._invite(now_s)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has something to do; None: never, as far as is known."""
        times = [self._invite_s, self._choose_s]
        for found in self._helpers.values():
            times += [self._due_s(found), found.certificate.expires_s]
        earliest = min(times)
        return None if earliest == math.inf else earliest

    def commands(self) -> list[RequestorCommand]:
        """Return the commands since the last call."""
        taken, self._commands = self._commands, []
        return taken

    def helpers(self) -> list[HelperView]:
        """Return every helper with an offer or a contract, as the person sees it."""
        return [
            HelperView(
                helper,
                each.certificate.name,
                each.state,
                each.terms.price,
                each.terms.currency,
                each.offer.rate_bps,
                each.carried_bytes,
                each.amount,
                each.left_bytes,
            )
            for helper, each in self._helpers.items()
        ]

    @property
    def spent(self) -> int:
        """Millionths of the currency owed to all helpers, by this host's own count or receipts."""
        return self._spent_before + sum(each.amount for each in self._helpers.values())

    @property
    def spent_up(self) -> bool:
        return self._wish.budget is not None and self.spent >= self._wish.budget

    # Discovery and choice.

    def _discover(self, now_s: float) -> None:
        """Invite at once, but not more often than every `FIRST_INVITE_S`."""
        self._interval_s = FIRST_INVITE_S
        again_s = self._invited_s + self._interval_s
        self._invite_s = min(self._invite_s, max(now_s, again_s))
        if now_s >= self._invite_s:
            self._invite(now_s)

    def _invite(self, now_s: float) -> None:
        missing_bps = self._missing_bps()
        if not self._running or self._offered_bps() >= self._wish.rate_bps:
            self._invite_s = math.inf
            return
        nonce = self._nonce()
        self._invites.append(nonce)
        sent_us = self._times.next_time(now_s)
        message = InviteMessage(sent_us, nonce, math.ceil(missing_bps))
        self._commands.append(SendDatagram(pack(self._identity, message), None))
        self._choose_s = min(self._choose_s, now_s + GATHER_S)
        self._invited_s = now_s
        self._invite_s = now_s + self._interval_s
        self._interval_s = min(2 * self._interval_s, MOST_INVITE_S)

    def _on_join(
        self,
        datagram: ShareDatagram,
        terms: JoinMessage,
        certificate: Certificate,
        link: LinkAddress,
        now_s: float,
    ) -> None:
        helper, wish = certificate.host, self._wish
        known = self._helpers.get(helper)
        if known is not None and known.state is not HelperState.OFFERED:
            return
        if not self._running or self._avoided.holds(certificate, now_s):
            return
        if not self._is_only_one(certificate):
            return
        if terms.currency != wish.currency or self._is_too_dear(terms.price):
            self._refuse(certificate, terms)
            return
        if not terms.limit_bytes:
            return
        if known is None and len(self._helpers) >= _MOST_OFFERS:
            return
        self._helpers[helper] = _Helper(
            self._offer(helper, terms),
            certificate,
            link,
            datagram,
            terms,
            due_s=now_s + OFFER_S,
            told_left_bytes=terms.limit_bytes,
        )
        # The first one is the way to the gateway, which knows more about the others.
        if not wish.own_network and not any(self._used_helpers()):
            self._take(self._helpers[helper], now_s)
        elif self._choose_s == math.inf:
            self._choose(now_s)

    def _is_only_one(self, certificate: Certificate) -> bool:
        """Return whether no other helper of this client is in use; an offer makes room for a new one."""
        for helper, each in list(self._helpers.items()):
            if each.certificate.session == certificate.session and helper != certificate.host:
                if each.state is not HelperState.OFFERED:
                    return False
                del self._helpers[helper]
        return True

    def _is_too_dear(self, price: int) -> bool:
        """Return whether a price is above the person's, or so high that the budget is gone in seconds."""
        wish = self._wish
        if wish.most_price is not None and price > wish.most_price:
            return True
        soon = price * wish.rate_bps / 8 * _AFFORD_S / GIGABYTE
        return wish.budget is not None and soon > max(wish.budget - self.spent, 0)

    def _refuse(self, certificate: Certificate, terms: JoinMessage) -> None:
        offer = OfferRefused(certificate.name, terms.price, terms.currency)
        if self._refused.get(certificate.host) != offer:
            self._refused[certificate.host] = offer
            self._commands.append(offer)
            if len(self._refused) > _MOST_OFFERS:
                self._refused.popitem(last=False)

    def _choose(self, now_s: float) -> None:
        """Take helpers for the rate that is missing; those in use stay."""
        missing_bps = self._missing_bps()
        if not self._running or missing_bps <= 0.0:
            return
        offers = [
            each.offer for each in self._helpers.values() if each.state is HelperState.OFFERED
        ]
        for offer in self._wish.strategy(offers, missing_bps).helpers:
            self._take(self._helpers[offer.helper], now_s)

    def _take(self, helper: _Helper, now_s: float) -> None:
        helper.state = HelperState.ADDRESSING
        helper.due_s = now_s + ADDRESS_S
        self._commands.append(TakeAddress(helper.offer.helper))

    def _offer(self, helper: bytes, terms: JoinMessage) -> HelperOffer:
        told_bps = None if terms.rate_bps is None else float(terms.rate_bps)
        return HelperOffer(
            helper,
            terms.price,
            self._history.get(helper, told_bps),
            terms.network,
            math.inf if terms.battery_s is None else terms.battery_s,
        )

    def _used_helpers(self) -> Iterator[_Helper]:
        unused = {HelperState.OFFERED, HelperState.LEAVING}
        return (it for it in self._helpers.values() if it.state not in unused)

    def _missing_bps(self) -> float:
        sure = (each for each in self._used_helpers() if not each.doubted)
        return self._wish.rate_bps - sum(each.offer.rate_bps for each in sure)

    def _offered_bps(self) -> float:
        helpers = self._helpers.values()
        staying = (it for it in helpers if it.state is not HelperState.LEAVING and not it.doubted)
        return sum(each.offer.rate_bps for each in staying)

    def _check_rate(self, now_s: float) -> None:
        """Begin the discovery again where the helpers' rates no longer suffice."""
        if self._running and self._missing_bps() > 0.0:
            self._choose(now_s)
            if self._offered_bps() < self._wish.rate_bps:
                self._discover(now_s)

    # One helper.

    def _confirm(self, helper: _Helper, now_s: float) -> None:
        nonce = self._nonce()
        message = ConfirmMessage(
            self._times.next_time(now_s), nonce, helper.offer.helper, helper.terms.nonce,
            helper.join.digest, helper.source,
        )  # fmt: skip
        if not helper.confirm:
            helper.confirm = pack(self._identity, message)
            helper.contract = contract_of(helper.terms, helper.join.digest, helper.offer.helper)
            data = helper.confirm
        else:
            data = pack(self._identity, message)
        self._ask(helper, nonce, data, now_s)

    def _hello(self, helper: _Helper, now_s: float) -> None:
        nonce = self._nonce()
        message = HelloMessage(self._times.next_time(now_s), nonce, helper.offer.helper)
        self._ask(helper, nonce, pack(self._identity, message), now_s)

    def _ask(self, helper: _Helper, nonce: bytes, data: bytes, now_s: float) -> None:
        helper.due_s = now_s + HELLO_S * 2 ** len(helper.asked)
        helper.asked = (*helper.asked, nonce)
        self._commands.append(SendDatagram(data, helper.link))

    def _on_helper_timer(self, helper: bytes, found: _Helper, now_s: float) -> None:
        match found.state:
            case HelperState.OFFERED:
                del self._helpers[helper]
                # The back-off goes on where it was; nothing was lost that was in use.
                if self._running and self._missing_bps() > 0.0 and self._invite_s == math.inf:
                    self._invite_s = now_s + self._interval_s
            case HelperState.ADDRESSING:
                self._drop(helper, LeaveReason.REFUSED, now_s)
            case HelperState.CONFIRMING if len(found.asked) < CONFIRMS:
                self._confirm(found, now_s)
            case HelperState.SILENT if len(found.asked) < HELLOS:
                self._suspend(found)
                self._hello(found, now_s)
            case HelperState.CONFIRMING | HelperState.SILENT:
                self._leave(helper, LeaveReason.SILENT, now_s)
            case HelperState.ACTIVE:
                found.state, found.asked = HelperState.SILENT, ()
                self._hello(found, now_s)
            case HelperState.LEAVING:
                self._send_leave(found, LeaveReason.DONE, now_s)
                self._drop(helper, found.leaves, now_s, by_helper=True)

    def _on_hello_ack(self, helper: bytes, message: HelloAckMessage, now_s: float) -> None:
        found = self._helpers.get(helper)
        if found is None or message.answers not in found.asked:
            return
        found.told_left_bytes = message.left_bytes
        found.carried_when_told_bytes = found.carried_bytes
        if found.state is HelperState.CONFIRMING:
            assert found.contract is not None
            found.state, found.asked = HelperState.ACTIVE, ()
            found.heard_s = found.active_s = now_s
            self._leave_doubted(now_s)
            self._commands.append(
                AddPath(
                    helper,
                    found.certificate.name,
                    found.source,
                    found.terms.via,
                    found.terms.reaches,
                    found.contract,
                    found.join.raw,
                    found.confirm,
                )
            )
        else:
            self._on_heard(found, now_s)

    def _leave_doubted(self, now_s: float) -> None:
        """Leave the helpers by which the gateway does not answer: another one is there now."""
        for helper, each in list(self._helpers.items()):
            if each.doubted:
                self._replaced = True
                self._leave(helper, LeaveReason.CARRIES_NOTHING, now_s)

    def _on_leave(self, helper: bytes, reason: LeaveReason, now_s: float) -> None:
        """Drop a helper; one that gives notice first delivers what is on its way."""
        found = self._helpers.get(helper)
        if found is None or found.state not in _CARRYING or reason not in WITH_NOTICE:
            self._drop(helper, reason, now_s, by_helper=True)
        elif found.state is not HelperState.LEAVING:
            found.state, found.leaves = HelperState.LEAVING, reason
            found.heard_s, found.due_s = now_s, now_s + LEAVE_S
            self._suspend(found)
            self._check_rate(now_s)

    def _on_heard(self, helper: _Helper, now_s: float) -> None:
        helper.heard_s = now_s
        if helper.state is HelperState.SILENT:
            helper.state, helper.asked = HelperState.ACTIVE, ()
            if helper.suspended:
                helper.suspended = False
                self._commands.append(ResumePath(helper.offer.helper))

    def _suspend(self, helper: _Helper) -> None:
        if not helper.suspended:
            helper.suspended = True
            self._commands.append(SuspendPath(helper.offer.helper))

    def _due_s(self, helper: _Helper) -> float:
        if helper.state is HelperState.LEAVING:
            return min(helper.due_s, helper.heard_s + EMPTY_S)
        if helper.state is not HelperState.ACTIVE:
            return helper.due_s
        return helper.heard_s + (SILENT_S if helper.waiting_bytes else IDLE_S)

    def _carries_too_little(self, helper: _Helper, now_s: float) -> bool:
        """Compare what arrived in the last `judge_s`, all of which data waited, with what should have."""
        reports = helper.reports
        if not helper.waiting_bytes:
            reports.clear()
            return False
        if not reports or now_s - reports[-1][0] >= _REPORTS_APART_S:
            reports.append((now_s, helper.carried_bytes, helper.waiting_bytes))
        judge_s = JUDGE_S
        if now_s - reports[0][0] < judge_s:
            return False
        # Keep the youngest report that is old enough; it begins the window.
        while len(reports) > 1 and now_s - reports[1][0] >= judge_s:
            reports.popleft()
        _, carried_bytes, waiting_bytes = reports[0]
        least = min(waiting_bytes, _CARRIED_SHARE * helper.offer.rate_bps * judge_s / 8)
        return helper.carried_bytes - carried_bytes < least

    def _leave(self, helper: bytes, reason: LeaveReason, now_s: float) -> None:
        """Tell a helper that it is over, if it knows of a contract, and drop it."""
        found = self._helpers[helper]
        if found.confirm:
            self._send_leave(found, reason, now_s)
        self._drop(helper, reason, now_s)

    def _send_leave(self, helper: _Helper, reason: LeaveReason, now_s: float) -> None:
        sent_us = self._times.next_time(now_s)
        message = LeaveMessage(sent_us, self._nonce(), helper.offer.helper, reason)
        self._commands.append(SendDatagram(pack(self._identity, message), helper.link))

    def _drop(
        self, helper: bytes, reason: LeaveReason, now_s: float, *, by_helper: bool = False
    ) -> None:
        found = self._helpers.pop(helper, None)
        if found is None:
            return
        self._spent_before += found.amount
        if found.contract is not None:
            counted_bytes = max(found.carried_bytes, found.receipted_bytes)
            self._ended[found.contract.number] = found.contract, counted_bytes
            if len(self._ended) > _MOST_RATES:
                self._ended.popitem(last=False)
        if found.state is not HelperState.OFFERED:
            self._commands.append(RemovePath(helper, reason, by_helper))
        if reason in _FAULTS:
            self._avoided.add(found.certificate, now_s)
        elif by_helper and found.state is not HelperState.OFFERED and not found.has_stayed(now_s):
            # It was restarted. One that comes and goes would take all of the driver's time, which needs
            # 0.3 s for each address, and the disk, which keeps each contract.
            self._avoided.add(found.certificate, now_s, once_free=True)
        self._check_rate(now_s)

    def _check_certificates(self, now_s: float) -> None:
        for helper, found in list(self._helpers.items()):
            if helper in self._helpers and not self._trust.holds(found.certificate, now_s):
                self._leave(helper, LeaveReason.UNTRUSTED, now_s)

    def _check_budget(self, now_s: float) -> None:
        if self._running and self.spent_up:
            self.stop(now_s)

    # Datagrams.

    def _is_expected(self, message: ShareMessage, source: LinkAddress, now_s: float) -> bool:
        """Judge a message before its signature is checked, which costs more."""
        if isinstance(message, JoinMessage):
            mine = message.answers in self._invites and self._of_address.take(source, now_s)
            return mine and self._joins.take(now_s)
        if isinstance(message, HelloAckMessage):
            asked = any(message.answers in each.asked for each in self._helpers.values())
            return asked and self._answers.take(now_s)
        heard = bool(self._helpers) and self._of_address.take(source, now_s)
        return heard and self._leaves.take(now_s)

    def _nonce(self) -> bytes:
        return self._random(NONCE_BYTES)
