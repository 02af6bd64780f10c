"""The accepting end of a handshake: which conversation a hello begins, and under which limits it may.

| hello | answer | then |
|---|---|---|
| any, another version | NOTICE version | the connection fails |
| SET_UP under load, without a good cookie | COOKIE | the same hello is expected again |
| SET_UP, beyond the limit of set-ups | NOTICE busy | fails |
| SET_UP for another key | NOTICE wrong key | fails |
| SET_UP that asks for a flow | SET_UP_ANSWER known or gone | fails; the answer is proof |
| SET_UP that opens a flow, refused | SET_UP_ANSWER, the reason | fails, or (duplicate id) another hello |
| SET_UP that opens a flow, granted | SET_UP_ANSWER | opened once the peer confirms |
| RESUME of an unknown flow, or without proof | NOTICE unknown flow | another hello may follow |
| RESUME with an attempt that was seen | STALE | another hello may follow |
| RESUME beyond the host's limit | NOTICE busy | fails |
| RESUME, proved | RESUME_ANSWER | opened at once: the attempt is new |

A connection has a bounded number of hellos. A cookie shows that the sender reads answers: the answer
to a hello without one costs one hash and leaves nothing behind. A cookie is good for the address and
the very hello it was made for, for a minute or two.
"""

import hmac
from collections.abc import Sized
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from cedos.limits import TokenBucket
from cedos.session.protocol.crypto import KeyPair, Random, Suite, host_id
from cedos.session.protocol.handshake import resume, set_up
from cedos.session.protocol.handshake.credentials import Credentials, Locators
from cedos.session.protocol.handshake.limits import HandshakeLimits, HostLedger
from cedos.session.protocol.handshake.messages import (
    COOKIE_BYTES,
    LOWEST_VERSION,
    VERSION,
    Granted,
    Hello,
    MalformedError,
    MessageKind,
    Notice,
    Offer,
    Purpose,
    Resume,
    Status,
    frame,
    pack_notice,
)
from cedos.session.protocol.handshake.noise import NoiseError, Responder
from cedos.session.protocol.handshake.outcome import (
    ConnectionKind,
    FailureKind,
    HandshakeStep,
    Opened,
    Secrets,
    failure,
)

_PERIOD_S: Final = 60.0


class Cookies:
    """Cookies without a table: a keyed hash of the address, the hello and the minute."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, address: str, content: bytes, now: float) -> bytes:
        return self._of(address, content, int(now // _PERIOD_S))

    def is_good(self, cookie: bytes, address: str, content: bytes, now: float) -> bool:
        """Return whether a cookie was made for this content and address, at most two minutes ago."""
        period = int(now // _PERIOD_S)
        return any(
            hmac.compare_digest(cookie, self._of(address, content, which))
            for which in (period, period - 1)
        )

    def _of(self, address: str, content: bytes, period: int) -> bytes:
        where = address.encode()
        of = period.to_bytes(8, "big", signed=True) + bytes((len(where),)) + where + content
        return hmac.digest(self._secret, of, "sha256")[:COOKIE_BYTES]


_HELLOS: Final = 8  # of one connection: cookies, duplicates, stale attempts, a question
_BUSY_FACTOR: Final = 4  # set-ups with a cookie are refused above this many times that rate


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request for a new flow. The host's key is proved; that the request is fresh is not."""

    flow_id: bytes
    peer_key: bytes
    deadline_s: int
    address: str

    @property
    def host_id(self) -> bytes:
        return host_id(self.peer_key)


@dataclass(frozen=True, slots=True)
class FlowGrant:
    """Permission for a flow with this deadline (0: none)."""

    deadline_s: int


class FlowRefusalReason(Enum):
    DUPLICATE = Status.DUPLICATE  # there is a flow of this id
    LIMIT = Status.LIMIT
    NOT_ALLOWED = Status.NOT_ALLOWED


@dataclass(frozen=True, slots=True)
class FlowRefusal:
    reason: FlowRefusalReason
    retry_after_s: int = 0


class KnownFlows(Protocol):
    def find(self, flow_id: bytes) -> Credentials | None:
        """Return a flow's credentials, always the same object; None: unknown or expired."""

    def admit(self, request: OpenRequest) -> FlowGrant | FlowRefusal:
        """Return whether a flow may be opened. Reserves nothing: the request may be a replay."""


class AcceptorState:
    """The state that all handshakes of an accepting host share: keys, flows, limits and load."""

    def __init__(
        self,
        me: KeyPair,
        flows: KnownFlows,
        *,
        random: Random,
        hardware_aes: bool,
        allow_clear: bool,
        limits: HandshakeLimits,
        ledger: HostLedger,
        half_open: Sized,
        now: float,
    ) -> None:
        self.me, self.flows, self.random, self.limits = me, flows, random, limits
        self.hardware_aes, self.allow_clear, self.ledger = hardware_aes, allow_clear, ledger
        self.locators = Locators(me)
        self.cookies = Cookies(random(32))
        self._half_open = half_open
        rate = limits.set_ups_per_s
        self._without_cookie = TokenBucket(rate, rate, now)
        self._with_cookie = TokenBucket(rate * _BUSY_FACTOR, rate * _BUSY_FACTOR, now)

    def asks_cookie(self, now: float) -> bool:
        return len(self._half_open) >= self.limits.cookies_from or not self._without_cookie.take(
            now
        )

    def is_overloaded(self, now: float) -> bool:
        """Return whether even set-ups with a cookie are refused. Resumptions never are."""
        return not self._with_cookie.take(now)


class AcceptorHandshake:
    """The accepting end of one connection, from its first hello on (see the module)."""

    def __init__(self, reception: AcceptorState, address: str) -> None:
        self._reception, self._address = reception, address
        self._hellos = 0

    def receive(self, kind: MessageKind, body: bytes, now: float) -> HandshakeStep:
        if kind not in {MessageKind.SET_UP, MessageKind.RESUME}:
            raise MalformedError(f"a message of kind {kind} instead of a hello")
        self._hellos += 1
        if self._hellos > _HELLOS:
            raise MalformedError("a hello after a hello after a hello")
        hello = Hello.unpack(body)
        if not LOWEST_VERSION <= hello.version <= VERSION:
            why = f"the peer speaks version {hello.version} of the protocol"
            return failure(FailureKind.VERSION, why, reply=_notice(Notice.VERSION))
        if hello.detail not in {0, 1}:
            raise MalformedError("a hello of an unknown sort")
        return self._resume(hello, now) if kind is MessageKind.RESUME else self._set_up(hello, now)

    def _set_up(self, hello: Hello, now: float) -> HandshakeStep:
        here = self._reception
        bound = hello.bound + hello.content
        # Under load only a sender that reads answers is served, and not more than fit.
        if not here.cookies.is_good(hello.cookie, self._address, bound, now):
            if here.asks_cookie(now):
                cookie = here.cookies.make(self._address, bound, now)
                return HandshakeStep(reply=frame(MessageKind.COOKIE, cookie))
        elif here.is_overloaded(now):
            why = "more set-ups than this host can serve"
            return failure(FailureKind.BUSY, why, reply=_notice(Notice.BUSY, 1.0))
        # The first X25519: whose key is it?
        noise = Responder(here.me, hello.bound, chacha=bool(hello.detail))
        try:
            offer = Offer.unpack(noise.read(hello.content))
        except NoiseError:
            why = "a set-up for another key than this host's"
            return failure(FailureKind.WRONG_KEY, why, reply=_notice(Notice.WRONG_KEY))
        if offer.purpose == Purpose.ASK:
            return self._tell_whether_known(noise, offer)
        if offer.purpose != Purpose.OPEN:
            raise MalformedError("a set-up for an unknown purpose")
        # A new flow: admitted, refused, or a duplicate of one that is known.
        asked = OpenRequest(offer.flow_id, noise.peer, offer.deadline_s, self._address)
        answer = here.flows.admit(asked)
        if isinstance(answer, FlowRefusal):
            granted = Granted(answer.reason.value, retry_after_s=answer.retry_after_s)
            reply = self._answer(noise, granted)
            if answer.reason is FlowRefusalReason.DUPLICATE:
                return HandshakeStep(reply=reply)
            why = f"a new flow was refused: {answer.reason.name.lower().replace('_', ' ')}"
            return failure(FailureKind.REFUSED, why, reply=reply)
        return self._grant(noise, offer, answer)

    def _grant(self, noise: Responder, offer: Offer, answer: FlowGrant) -> HandshakeStep:
        here = self._reception
        # No protection only if both ends ask for it, AES only if both have it in hardware.
        if offer.clear and here.allow_clear:
            suite = Suite.CLEAR
        elif offer.hardware_aes and here.hardware_aes:
            suite = Suite.AES_128_GCM
        else:
            suite = Suite.CHACHA20_POLY1305
        deadline_s = min(answer.deadline_s, here.limits.deadline_s)
        locator = here.locators.issue(offer.flow_id, here.random)
        reply = self._answer(noise, Granted(Status.ACCEPTED, deadline_s, suite, 0, locator))
        secret, receive, send = set_up.flow_secrets(noise)
        credentials = Credentials(offer.flow_id, secret, noise.peer, suite, offer.locator)
        opened = Opened(ConnectionKind.NEW, credentials, deadline_s)
        # A replayed hello gets this far; only its author can confirm.
        return HandshakeStep(reply, opened, Secrets(suite, send, receive), unproven=True)

    def _tell_whether_known(self, noise: Responder, offer: Offer) -> HandshakeStep:
        """Answer, with proof, whether a flow is known; that of another host is not."""
        # A flow of another host counts as unknown, so that ids cannot be tried out.
        credentials = self._reception.flows.find(offer.flow_id)
        known = credentials is not None and credentials.peer_key == noise.peer
        reply = self._answer(noise, Granted(Status.KNOWN if known else Status.GONE))
        why = f"the peer asked after a flow that is {'known' if known else 'not known'}"
        return failure(FailureKind.LOST_STATE, why, reply=reply)

    def _answer(self, noise: Responder, granted: Granted) -> bytes:
        ephemeral = KeyPair(self._reception.random(32))
        return frame(MessageKind.SET_UP_ANSWER, noise.write(ephemeral, granted.pack()))

    def _resume(self, hello: Hello, now: float) -> HandshakeStep:
        here = self._reception
        asked, proof = Resume.unpack(hello.content)
        credentials = here.flows.find(here.locators.read(asked.locator))
        if credentials is None or not resume.is_verified(here.me, credentials, hello, asked, proof):
            return HandshakeStep(reply=_notice(Notice.UNKNOWN_FLOW))
        # A replay, or a host that forgot its counter, is told the highest attempt.
        if not credentials.is_new(asked.attempt):
            return HandshakeStep(reply=resume.stale(here.me, credentials, asked))
        wait_s = here.ledger.resume(host_id(credentials.peer_key), now)
        if wait_s:
            why = "a host resumes more often than it may"
            notice = _notice(Notice.BUSY, wait_s)
            return failure(FailureKind.BUSY, why, reply=notice, retry_after_s=wait_s)
        return resume.answer(here.me, credentials, hello, asked, here.random)


def _notice(notice: Notice, retry_after_s: float = 0.0) -> bytes:
    return frame(MessageKind.NOTICE, pack_notice(notice, retry_after_s))
