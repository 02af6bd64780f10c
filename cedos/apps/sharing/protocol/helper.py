"""The helper's machine: it answers Invites, forwards for those who confirm, and stops. Pure.

Each requestor has a state:

| state | event | next state, and what is done |
|---|---|---|
| none | Invite; there are data, battery, an uplink and a free place | JOINED; Join |
| JOINED | Confirm of this Join | STARTING; StartForwarding |
| JOINED | the Join is old | none |
| STARTING | the driver forwards | FORWARDING; Hello-ACK to the Confirm |
| STARTING | the driver cannot, or takes too long | none; Leave, StopForwarding |
| FORWARDING | the same Confirm again, or Hello | Hello-ACK |
| FORWARDING | Invite, as the requestor may have restarted | the Join waits beside it for its Confirm |
| STARTING, FORWARDING | Leave of the requestor | none; StopForwarding |
| FORWARDING | the person stops it, or the battery is low | LEAVING; Leave |
| LEAVING | Leave of the requestor, or the time for what is on its way is over | none; StopForwarding |
| LEAVING | Hello or Confirm, as the Leave was lost | Leave |
| FORWARDING | silence, or the end of limit, uplink or pay | none; Leave, StopForwarding |
| none | Hello or Confirm without a Join | Leave, so that the requestor knows |

One client of the gateway has one place, with whatever certificate it came last. One whose receipts did
not come for the second time is not helped for a minute, and for twice as long each further time.

Work for strangers is bounded: a verification costs 0.25 ms, of which Invites get 20 a second, each
address of the link one. 5 a second are answered.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cedos.apps.sharing.protocol.certificates import (
    AvoidedClients,
    Certificate,
    HostIdentity,
    Trust,
    UntrustedError,
)
from cedos.apps.sharing.protocol.commands import (
    HelperCommand,
    LinkAddress,
    SendDatagram,
    StartForwarding,
    StopForwarding,
)
from cedos.apps.sharing.protocol.messages import (
    NONCE_BYTES,
    WITH_NOTICE,
    ConfirmMessage,
    Endpoint,
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
from cedos.apps.sharing.protocol.receipts import Contract, by_volume, contract_of
from cedos.apps.sharing.protocol.signing import AddressBuckets, Freshness, SendTimes
from cedos.limits import TokenBucket
from cedos.selector.sharing import NetworkType
from cedos.session.protocol.crypto import Random

_MOST_JOINED: Final = 64
_UNPAID_S, _MOST_UNPAID_S = 30.0, 320.0
_MOST_JOINED_OF_ONE: Final = 2  # a Confirm may cross the next Invite
INVITES_VERIFIED_PER_S: Final = 20
INVITES_ANSWERED_PER_S: Final = 5


@dataclass(frozen=True, slots=True)
class HelperTerms:
    """The person's terms.

    Attributes:
        price: millionths of `currency` for 10^9 bytes.
        limit_bytes: for all requestors together, both ways.
        battery_floor: share of a full battery (0 to 1) below which it helps no more.
        most_requestors: it forwards for so many at once.
    """

    price: int
    limit_bytes: int
    currency: str = "EUR"
    battery_floor: float = 0.2
    most_requestors: int = 8


@dataclass(frozen=True, slots=True)
class Uplink:
    """The facts of the helper's own network that a Join tells.

    Attributes:
        via: its address on the shared link, packed.
        reaches: the gateway's address as this host itself knows it; it forwards there alone.
        rate_bps: of the path to the gateway, None: not known.
        battery: share of a full one; None: on mains power.
        battery_s: seconds until it is empty.
    """

    network: NetworkType
    via: bytes
    reaches: Endpoint
    rate_bps: int | None = None
    battery: float | None = None
    battery_s: int | None = None


# Durations in seconds, and numbers of attempts (docs/sharing-protocol.md).
JOIN_S: Final = 12.0  # a Join is kept for so long
START_S: Final = 5.0  # the driver has so long to forward
SILENT_S: Final = 10.0  # a requestor of which nothing is heard for so long is gone
LEAVE_S: Final = 2.0  # what is on its way is forwarded for so long after a Leave with notice


class ServingState(Enum):
    STARTING = "starting"
    FORWARDING = "forwarding"
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class RequestorView:
    """A requestor as the helper's person sees it."""

    requestor: bytes
    name: str
    state: ServingState
    carried_bytes: int
    earned: int
    currency: str


@dataclass(slots=True)
class _Joined:
    requestor: bytes
    join: ShareDatagram
    until_s: float


@dataclass(slots=True)
class _Served:
    certificate: Certificate
    link: LinkAddress
    join: ShareDatagram
    confirm: bytes
    contract: Contract
    source: bytes
    confirm_nonce: bytes
    heard_s: float
    messages: TokenBucket  # bounds what it says, so that others are heard beside it
    state: ServingState = ServingState.STARTING
    carried_bytes: int = 0
    leaves: LeaveReason = LeaveReason.DONE


class HelperMachine:
    def __init__(
        self,
        identity: HostIdentity,
        trust: Trust,
        terms: HelperTerms,
        *,
        random: Random,
        now_s: float,
    ) -> None:
        self._identity, self._trust, self._terms, self._random = identity, trust, terms, random
        self._me = identity.key.public
        self._uplink: Uplink | None = None
        self._times, self._freshness = SendTimes(), Freshness()
        self._invites = TokenBucket(INVITES_VERIFIED_PER_S, 2 * INVITES_VERIFIED_PER_S, now_s)
        self._answers = TokenBucket(INVITES_ANSWERED_PER_S, INVITES_ANSWERED_PER_S, now_s)
        self._confirms = TokenBucket(100, 200, now_s)
        self._of_address = AddressBuckets()  # of these
        self._strangers = TokenBucket(20, 40, now_s)
        self._commands: list[HelperCommand] = []
        self._unpaid = AvoidedClients(_UNPAID_S, _MOST_UNPAID_S)
        self._joined: OrderedDict[bytes, _Joined] = OrderedDict()  # by the Join's nonce
        self._invited_s: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._served: dict[bytes, _Served] = {}
        self._carried_before = 0
        self._helping = True

    # Events.

    def on_uplink(self, uplink: Uplink | None, now_s: float) -> None:
        """Take the state of the host's own network; without one it leaves all requestors."""
        changed = self._uplink is not None and (
            uplink is None
            or uplink.reaches != self._uplink.reaches
            or uplink.via != self._uplink.via
        )
        self._uplink = uplink
        if uplink is None or changed:
            self._leave_all(LeaveReason.UPLINK, now_s)
        elif not self._has_battery(uplink):
            self._leave_all(LeaveReason.BATTERY, now_s)

    def receive_datagram(self, data: bytes, source: LinkAddress, now_s: float) -> None:
        """Take a datagram of the link. What proves nothing is dropped without a word."""
        try:
            datagram = unpack(data)
            message = datagram.message
            if isinstance(message, JoinMessage | HelloAckMessage):
                return
            if isinstance(message, InviteMessage):
                if not self._may_help() or not self._may_invite(source, now_s):
                    return
            elif message.to != self._me or not self._may_be_verified(message, source, now_s):
                return
            certificate = datagram.verify_sender(self._trust, now_s)
        except UntrustedError:
            return
        requestor = certificate.host
        if requestor == self._me or not self._freshness.take(requestor, message.sent_us, now_s):
            return
        if isinstance(message, InviteMessage):
            self._on_invite(certificate, message, source, now_s)
        elif isinstance(message, ConfirmMessage):
            self._on_confirm(certificate, datagram, message, source, now_s)
        elif isinstance(message, HelloMessage):
            self._on_hello(requestor, message.nonce, source, now_s)
        else:
            self._forget_joins(requestor)
            self._stop(requestor, message.reason, by_requestor=True)

    def on_forwarding(self, requestor: bytes, now_s: float) -> None:
        """Tell the requestor that the kernel forwards now."""
        served = self._served.get(requestor)
        if served is not None and served.state is ServingState.STARTING:
            served.state, served.heard_s = ServingState.FORWARDING, now_s
            self._acknowledge(requestor, served.confirm_nonce, served.link, now_s)

    def on_not_forwarding(self, requestor: bytes, now_s: float) -> None:
        self._leave(requestor, LeaveReason.REFUSED, now_s)

    def on_counted(self, requestor: bytes, carried_bytes: int, now_s: float) -> None:
        """Take the kernel's count of a requestor's bytes, both ways, since forwarding started."""
        served = self._served.get(requestor)
        if served is None or served.state is ServingState.STARTING:
            return
        if carried_bytes > served.carried_bytes:
            served.carried_bytes = carried_bytes
            if served.state is ServingState.FORWARDING:
                served.heard_s = now_s
        if not self.left_bytes:
            self._leave_all(LeaveReason.LIMIT, now_s)

    def on_stopped(self, more_bytes: int) -> None:
        """Take what was carried for a requestor after its last count, now that it is over."""
        self._carried_before += max(more_bytes, 0)

    def on_unpaid(self, requestor: bytes, now_s: float) -> None:
        """Leave a requestor whose receipts do not come, or say less than was carried."""
        if (served := self._served.get(requestor)) is not None:
            # The first time it may be the gateway's fault: a killed one loses the counts of a period.
            self._unpaid.add(served.certificate, now_s, once_free=True)
        self._leave(requestor, LeaveReason.UNPAID, now_s)

    def on_revocations(self, data: bytes, now_s: float) -> None:
        """Take the gateway's list. UntrustedError: the gateway did not sign it."""
        self._trust.revoke(data)
        self.handle_timer(now_s)

    def stop(self, now_s: float) -> None:
        """Leave all requestors, and help no other one."""
        self._helping = False
        self._joined.clear()
        self._leave_all(LeaveReason.DONE, now_s)

    def handle_timer(self, now_s: float) -> None:
        """Do what is due; call it at `next_timer`, or at any other time."""
        for nonce, joined in list(self._joined.items()):
            if now_s >= joined.until_s:
                del self._joined[nonce]
        for requestor, served in list(self._served.items()):
            if not self._trust.holds(served.certificate, now_s):
                self._leave(requestor, LeaveReason.UNTRUSTED, now_s)
            elif now_s < self._until_s(served):
                continue
            elif served.state is ServingState.LEAVING:
                self._stop(requestor, served.leaves)
            else:
                starting = served.state is ServingState.STARTING
                reason = LeaveReason.REFUSED if starting else LeaveReason.SILENT
                self._leave(requestor, reason, now_s)

    def next_timer(self) -> float | None:
        """Return when `handle_timer` has something to do; None: never, as far as is known."""
        times = [joined.until_s for joined in self._joined.values()]
        for served in self._served.values():
            times += [self._until_s(served), served.certificate.expires_s]
        return min(times, default=None)

    def commands(self) -> list[HelperCommand]:
        """Return the commands since the last call."""
        taken, self._commands = self._commands, []
        return taken

    def requestors(self) -> list[RequestorView]:
        return [
            RequestorView(
                requestor,
                each.certificate.name,
                each.state,
                each.carried_bytes,
                by_volume(each.contract, 0, each.carried_bytes),
                each.contract.currency,
            )
            for requestor, each in self._served.items()
        ]

    @property
    def left_bytes(self) -> int:
        """Bytes that may still be carried, for all requestors together."""
        carried = self._carried_before + sum(it.carried_bytes for it in self._served.values())
        return max(self._terms.limit_bytes - carried, 0)

    # Messages.

    def _on_invite(
        self, certificate: Certificate, invite: InviteMessage, link: LinkAddress, now_s: float
    ) -> None:
        requestor, uplink = certificate.host, self._uplink
        assert uplink is not None
        full = len(self._other_requestors(certificate)) >= self._terms.most_requestors
        if full or self._unpaid.holds(certificate, now_s) or not self._answers.take(now_s):
            return
        nonce = self._nonce()
        join = JoinMessage(
            sent_us=self._times.next_time(now_s),
            nonce=nonce,
            to=requestor,
            answers=invite.nonce,
            price=self._terms.price,
            currency=self._terms.currency,
            limit_bytes=self.left_bytes,
            rate_bps=uplink.rate_bps,
            network=uplink.network,
            battery_s=uplink.battery_s,
            via=uplink.via,
            reaches=uplink.reaches,
        )
        data = pack(self._identity, join)
        self._forget_joins(requestor, keep=_MOST_JOINED_OF_ONE - 1)
        self._joined[nonce] = _Joined(requestor, unpack(data), now_s + JOIN_S)
        if len(self._joined) > _MOST_JOINED:
            self._joined.popitem(last=False)
        self._commands.append(SendDatagram(data, link))

    def _on_confirm(
        self,
        certificate: Certificate,
        datagram: ShareDatagram,
        confirm: ConfirmMessage,
        link: LinkAddress,
        now_s: float,
    ) -> None:
        requestor = certificate.host
        served = self._served.get(requestor)
        if served is not None and served.join.digest == confirm.join:
            # The same Confirm again: its answer was lost, or is not due yet.
            if served.state is ServingState.LEAVING:
                self._send_leave(requestor, served.leaves, link, now_s)
            elif served.source == confirm.source:
                served.confirm_nonce, served.link, served.heard_s = confirm.nonce, link, now_s
                if served.state is ServingState.FORWARDING:
                    self._acknowledge(requestor, confirm.nonce, link, now_s)
            return
        joined = self._joined.get(confirm.answers)
        if joined is None or (joined.requestor, joined.join.digest) != (requestor, confirm.join):
            self._send_leave(requestor, LeaveReason.UNKNOWN, link, now_s)
            return
        if not self._may_serve(certificate, confirm.source, now_s):
            self._send_leave(requestor, LeaveReason.REFUSED, link, now_s)
            return
        self._forget_joins(requestor)
        for each in self._served.keys() - self._other_requestors(certificate).keys():
            self._stop(each, LeaveReason.UNKNOWN, by_requestor=True)
        uplink = self._uplink
        assert uplink is not None
        assert isinstance(joined.join.message, JoinMessage)
        contract = contract_of(joined.join.message, joined.join.digest, self._me)
        self._served[requestor] = _Served(
            certificate, link, joined.join, datagram.raw, contract, confirm.source, confirm.nonce,
            heard_s=now_s, messages=TokenBucket(20, 40, now_s),
        )  # fmt: skip
        self._commands.append(
            StartForwarding(
                requestor,
                certificate.name,
                link,
                confirm.source,
                uplink.reaches,
                contract,
                joined.join.raw,
                datagram.raw,
            )
        )

    def _on_hello(self, requestor: bytes, nonce: bytes, link: LinkAddress, now_s: float) -> None:
        served = self._served.get(requestor)
        if served is None:
            self._send_leave(requestor, LeaveReason.UNKNOWN, link, now_s)
        elif served.state is ServingState.LEAVING:
            self._send_leave(requestor, served.leaves, link, now_s)
        elif served.state is ServingState.FORWARDING:
            served.heard_s, served.link = now_s, link
            self._acknowledge(requestor, nonce, link, now_s)

    def _acknowledge(self, requestor: bytes, nonce: bytes, link: LinkAddress, now_s: float) -> None:
        sent_us = self._times.next_time(now_s)
        message = HelloAckMessage(sent_us, self._nonce(), requestor, nonce, self.left_bytes)
        self._send(message, link)

    def _send_leave(
        self, requestor: bytes, reason: LeaveReason, link: LinkAddress, now_s: float
    ) -> None:
        self._send(
            LeaveMessage(self._times.next_time(now_s), self._nonce(), requestor, reason), link
        )

    def _send(self, message: ShareMessage, link: LinkAddress) -> None:
        self._commands.append(SendDatagram(pack(self._identity, message), link))

    # The end of one, or of all.

    def _leave(self, requestor: bytes, reason: LeaveReason, now_s: float) -> None:
        """Tell a requestor that it is over; forward what is on its way yet where that may be."""
        served = self._served.get(requestor)
        if served is None:
            return
        notice = reason in WITH_NOTICE
        if notice and served.state is ServingState.LEAVING:
            return
        self._send_leave(requestor, reason, served.link, now_s)
        if notice and served.state is ServingState.FORWARDING:
            served.state, served.leaves, served.heard_s = ServingState.LEAVING, reason, now_s
        else:
            self._stop(requestor, reason)

    def _leave_all(self, reason: LeaveReason, now_s: float) -> None:
        for requestor in list(self._served):
            self._leave(requestor, reason, now_s)

    def _stop(self, requestor: bytes, reason: LeaveReason, *, by_requestor: bool = False) -> None:
        if (served := self._served.pop(requestor, None)) is not None:
            self._carried_before += served.carried_bytes
            self._commands.append(
                StopForwarding(requestor, reason, by_requestor, served.carried_bytes)
            )

    # What may be.

    def _may_help(self) -> bool:
        uplink = self._uplink
        able = self._helping and uplink is not None and self._has_battery(uplink)
        return able and self.left_bytes > 0

    def _may_invite(self, source: LinkAddress, now_s: float) -> bool:
        """Return whether an Invite is verified: a member may have many keys, but has few addresses."""
        address, _, interface = source
        host = address, interface
        if now_s - self._invited_s.get(host, -math.inf) < 1.0 or not self._invites.take(now_s):
            return False
        self._invited_s[host] = now_s
        self._invited_s.move_to_end(host)
        if len(self._invited_s) > _MOST_JOINED:
            self._invited_s.popitem(last=False)
        return True

    def _may_be_verified(self, message: ShareMessage, source: LinkAddress, now_s: float) -> bool:
        """Judge a message before its signature is checked, which costs more."""
        if isinstance(message, ConfirmMessage):
            joins = [each.join for each in self._joined.values()]
            joins += [each.join for each in self._served.values()]
            if any(each.digest == message.join for each in joins):
                return self._of_address.take(source, now_s) and self._confirms.take(now_s)
            return self._strangers.take(now_s)
        buckets = (each.messages for each in self._served.values() if each.link == source)
        return next(buckets, self._strangers).take(now_s)

    def _other_requestors(self, certificate: Certificate) -> dict[bytes, _Served]:
        """Return the requestors of other clients than a certificate's, and with other keys."""
        return {
            key: each
            for key, each in self._served.items()
            if key != certificate.host and each.certificate.session != certificate.session
        }

    def _forget_joins(self, requestor: bytes, *, keep: int = 0) -> None:
        """Forget the Joins that a requestor has not confirmed, but for the `keep` newest."""
        theirs = [nonce for nonce, each in self._joined.items() if each.requestor == requestor]
        for nonce in theirs[: len(theirs) - keep]:
            del self._joined[nonce]

    def _may_serve(self, certificate: Certificate, source: bytes, now_s: float) -> bool:
        """Return whether a requestor may send from an address; that of another one it may not take."""
        if not self._may_help() or self._uplink is None or self._unpaid.holds(certificate, now_s):
            return False
        others = self._other_requestors(certificate)
        taken = {each.source for each in others.values()} | {self._uplink.via}
        room = len(others) < self._terms.most_requestors
        return room and source not in taken

    def _has_battery(self, uplink: Uplink) -> bool:
        return uplink.battery is None or uplink.battery >= self._terms.battery_floor

    def _until_s(self, served: _Served) -> float:
        match served.state:
            case ServingState.STARTING:
                return served.heard_s + START_S
            case ServingState.FORWARDING:
                return served.heard_s + SILENT_S
            case ServingState.LEAVING:
                return served.heard_s + LEAVE_S

    def _nonce(self) -> bytes:
        return self._random(NONCE_BYTES)
