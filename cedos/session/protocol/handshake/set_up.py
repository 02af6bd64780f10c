"""Set-up: a new flow by Noise_IK with the server's key pinned; one round trip, then data.

Unlike DTP's (3.3.4), both ends are authenticated and the secret is never sent, not even encrypted.
The deadline is DTP's keep-alive duration (3.2): the opener asks, the acceptor grants as much or less.
The same exchange answers, with proof, whether a flow is still known.
"""

from dataclasses import dataclass
from typing import Final

from cedos.session.protocol.crypto import KeyPair, Random, Suite, expand, extract
from cedos.session.protocol.handshake.credentials import Credentials, Locators
from cedos.session.protocol.handshake.messages import (
    COOKIE_BYTES,
    FLOW_ID_BYTES,
    Granted,
    Hello,
    MalformedError,
    MessageKind,
    Notice,
    Offer,
    Purpose,
    Status,
    frame,
    unpack_notice,
)
from cedos.session.protocol.handshake.noise import Initiator, NoiseError, Responder
from cedos.session.protocol.handshake.outcome import (
    ConnectionKind,
    FailureKind,
    HandshakeStep,
    Opened,
    Secrets,
    failure,
)

_TRIES: Final = 3  # with other flow ids; two of 2^128 meet by accident never


@dataclass(frozen=True, slots=True)
class SetUpOptions:
    deadline_s: int = 0
    hardware_aes: bool = True
    clear: bool = False  # no protection of records, if the other end wants that as well


def flow_secrets(noise: Initiator | Responder) -> tuple[bytes, bytes, bytes]:
    """Return the flow's secret, the initiator's and the responder's from a finished handshake."""
    root = extract(noise.hash, b"".join(noise.split()))
    return expand(root, "flow"), expand(root, "initiator"), expand(root, "responder")


class SetUpHandshake:
    """The opener's end; with a `flow_id`, the question whether the peer still knows that flow.

    The hello may be sent several times: with the cookie that the acceptor asked for, or with another flow
    id if there is a flow of this one.
    """

    def __init__(
        self,
        me: KeyPair,
        server: bytes,
        ask: SetUpOptions,
        random: Random,
        flow_id: bytes | None = None,
    ) -> None:
        self._me, self._server, self._ask, self._random = me, server, ask, random
        self._purpose = Purpose.OPEN if flow_id is None else Purpose.ASK
        self._flow_id = random(FLOW_ID_BYTES) if flow_id is None else flow_id
        self._tries = 1
        self._noise, self._hello = self._begin()

    def _begin(self) -> tuple[Initiator, Hello]:
        chacha = not self._ask.hardware_aes
        offer = Offer(
            self._flow_id,
            self._purpose,
            self._ask.deadline_s,
            self._ask.hardware_aes,
            self._ask.clear,
            Locators(self._me).issue(self._flow_id, self._random),
        )
        empty = Hello(int(chacha), b"")
        ephemeral = KeyPair(self._random(32))
        noise = Initiator(self._me, ephemeral, self._server, empty.bound, chacha=chacha)
        return noise, Hello(int(chacha), noise.write(offer.pack()))

    @property
    def hello(self) -> bytes:
        """Return the first message, whole."""
        return frame(MessageKind.SET_UP, self._hello.pack())

    def receive(self, kind: MessageKind, body: bytes, now: float) -> HandshakeStep:
        match kind:
            # The acceptor is under load: the cookie shows that this end reads its answers. It asks once
            # for each hello; a stranger, whose messages need no key, could ask without end.
            case MessageKind.COOKIE if len(body) == COOKIE_BYTES and not self._hello.cookie:
                self._hello = Hello(self._hello.detail, self._hello.content, body)
                return HandshakeStep(reply=self.hello)
            case MessageKind.NOTICE:
                return failure_of_hint(body)
            case MessageKind.SET_UP_ANSWER:
                # Only the holder of the server's static key can make an answer that decrypts.
                try:
                    granted = Granted.unpack(self._noise.read(body))
                except NoiseError:
                    why = "the answer does not come from the holder of the server's key"
                    return failure(FailureKind.WRONG_KEY, why)
                return self._on_granted(granted)
        raise MalformedError(f"a message of kind {kind} in answer to a set-up")

    def _on_granted(self, granted: Granted) -> HandshakeStep:
        # A status fits either an opening or a question. Any other combination is malformed.
        opening = self._purpose is Purpose.OPEN
        match granted.status:
            case Status.ACCEPTED if opening:
                return self._on_accepted(granted)
            case Status.DUPLICATE if opening and self._tries < _TRIES:
                self._tries += 1
                self._flow_id = self._random(FLOW_ID_BYTES)
                self._noise, self._hello = self._begin()
                return HandshakeStep(reply=self.hello)
            case Status.NOT_ALLOWED if opening:
                why = "the server does not know this host's key; its owner has to allow it"
                return failure(FailureKind.REFUSED, why, proved=True)
            case Status.LIMIT | Status.DUPLICATE if opening:
                why = "the server takes no more flows of this host now"
                return failure(
                    FailureKind.REFUSED, why, proved=True, retry_after_s=granted.retry_after_s
                )
            case Status.GONE if not opening:
                return failure(
                    FailureKind.LOST_STATE, "the peer has no such flow any more", proved=True
                )
            case Status.KNOWN if not opening:
                why = "the peer knows the flow: an attacker disturbed its resumption"
                return failure(FailureKind.GARBLED, why)
        raise MalformedError(f"a status {granted.status} in answer to a set-up")

    def _on_accepted(self, granted: Granted) -> HandshakeStep:
        try:
            suite = Suite(granted.suite)
        except ValueError as error:
            raise MalformedError(f"an unknown protection of records {granted.suite}") from error
        # The acceptor chooses the suite. It must not be able to choose no protection by itself.
        if suite is Suite.CLEAR and not self._ask.clear:
            return failure(
                FailureKind.REFUSED, "the server wants to send in clear; this end not", proved=True
            )
        secret, send, receive = flow_secrets(self._noise)
        credentials = Credentials(self._flow_id, secret, self._server, suite, granted.locator)
        return HandshakeStep(
            opened=Opened(ConnectionKind.NEW, credentials, granted.deadline_s),
            secrets=Secrets(suite, send, receive),
        )


def failure_of_hint(body: bytes) -> HandshakeStep:
    """Return an initiator's failure after a hint; nothing in the hint is proved."""
    notice, lowest, highest, retry_after_s = unpack_notice(body)
    match notice:
        case Notice.WRONG_KEY:
            why = "the server says that it does not hold the key that is pinned for it"
            return failure(FailureKind.WRONG_KEY, why)
        case Notice.VERSION:
            why = f"the peer speaks versions {lowest} to {highest} of the protocol"
            return failure(FailureKind.VERSION, why)
        case Notice.BUSY:
            why = "the peer is busy"
            return failure(FailureKind.BUSY, why, retry_after_s=retry_after_s)
    raise MalformedError(f"an unknown notice {notice}")
