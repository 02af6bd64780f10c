"""Resumption, and join of a further path: a host that proves the flow's secret goes on with it.

    -> locator, attempt, challenge, fresh key, proof
    <- challenge, fresh key, proof, next locator (encrypted)
    -> confirmation, records

Both ends prove the secret over both challenges, as DTP's one end does (3.3.2); proofs are checked
before any X25519 is computed, and the fresh keys keep each connection's records secret from an
attacker who learns the flow's secret later. One round trip: both ends may send records after it.
"""

import hmac
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag

from cedos.session.protocol.crypto import KeyPair, Random, Suite, aead, expand, extract
from cedos.session.protocol.handshake.credentials import LAST_ATTEMPT, Credentials, Locators
from cedos.session.protocol.handshake.messages import (
    CHALLENGE_BYTES,
    Hello,
    MalformedError,
    MessageKind,
    Notice,
    Resume,
    frame,
    pack_answer,
    pack_stale,
    unpack_answer,
    unpack_notice,
    unpack_stale,
)
from cedos.session.protocol.handshake.outcome import (
    ConnectionKind,
    FailureKind,
    HandshakeStep,
    Opened,
    Secrets,
    failure,
)
from cedos.session.protocol.handshake.set_up import SetUpHandshake, SetUpOptions, failure_of_hint

_NONCE: Final = bytes(12)  # of the box: its key is used once
_STALE_TRIES: Final = 3
_UNPROVEN: Final = "an answer without proof of the flow's secret"


def _proof(
    credentials: Credentials, what: str, initiator: bytes, responder: bytes, *parts: bytes
) -> bytes:
    # Both static keys in it: what one host sent cannot be sent back to it.
    return credentials.mac(what, initiator, responder, *parts)


def _connection(
    credentials: Credentials, shared: bytes, transcript: bytes
) -> tuple[bytes, bytes, bytes]:
    """Return the initiator's secret, the responder's, and the key of the box."""
    root = extract(credentials.secret, shared)
    return (
        expand(root, "initiator", transcript),
        expand(root, "responder", transcript),
        expand(root, "box", transcript),
    )


class ResumeHandshake:
    """The dialling end of a resumption or join.

    The hello may be sent again with a higher attempt, if the peer has seen this one (STALE). After the
    hint that the flow is unknown, a set-up that only asks takes over: it ends the flow only if the peer
    proves that it has no such flow.
    """

    def __init__(
        self, me: KeyPair, credentials: Credentials, kind: ConnectionKind, random: Random
    ) -> None:
        assert kind in {ConnectionKind.RESUME, ConnectionKind.JOIN}
        self._me, self._credentials, self._kind, self._random = me, credentials, kind, random
        self._stale = 0
        self._asking: SetUpHandshake | None = None  # whether the peer still knows the flow
        self._ephemeral, self._challenge, self._hello = self._begin()

    def _begin(self) -> tuple[KeyPair, bytes, Hello]:
        credentials = self._credentials
        ephemeral = KeyPair(self._random(32))
        challenge = self._random(CHALLENGE_BYTES)
        content = Resume(
            credentials.locator, credentials.next_attempt(), challenge, ephemeral.public
        ).pack()
        empty = Hello(int(self._kind), b"")
        proof = _proof(
            credentials, "resume", self._me.public, credentials.peer_key, empty.bound, content
        )
        return ephemeral, challenge, Hello(int(self._kind), content + proof)

    @property
    def hello(self) -> bytes:
        """Return the first message, whole."""
        return frame(MessageKind.RESUME, self._hello.pack())

    def receive(self, kind: MessageKind, body: bytes, now: float) -> HandshakeStep:
        # From the hint on, the question's own handshake gets all messages.
        if self._asking is not None:
            return self._asking.receive(kind, body, now)
        match kind:
            case MessageKind.RESUME_ANSWER:
                return self._on_answer(body)
            case MessageKind.STALE:
                return self._try_again(body)
            case MessageKind.NOTICE if unpack_notice(body)[0] == Notice.UNKNOWN_FLOW:
                # This is not proved: ask the peer itself, by its static key.
                credentials = self._credentials
                ask = SetUpOptions(hardware_aes=credentials.suite is not Suite.CHACHA20_POLY1305)
                self._asking = SetUpHandshake(
                    self._me, credentials.peer_key, ask, self._random, credentials.flow_id
                )
                return HandshakeStep(reply=self._asking.hello)
            case MessageKind.NOTICE:
                return failure_of_hint(body)
        raise MalformedError(f"a message of kind {kind} in answer to a resumption")

    def _on_answer(self, body: bytes) -> HandshakeStep:
        credentials = self._credentials
        signed, ephemeral, proof, box = unpack_answer(body)
        transcript = sha256(self._hello.bound + self._hello.content + signed).digest()
        me, peer = self._me.public, credentials.peer_key
        # Check the proof before any X25519, which costs far more than the hash.
        if not hmac.compare_digest(proof, _proof(credentials, "answer", me, peer, transcript)):
            return failure(FailureKind.GARBLED, _UNPROVEN)
        try:
            shared = self._ephemeral.exchange(ephemeral)
        except ValueError as error:
            raise MalformedError("a public key that no honest host has") from error
        # The keys of this connection. The box holds the locator for the next resumption.
        send, receive, box_key = _connection(credentials, shared, transcript)
        try:
            credentials.locator = aead(box_key, chacha=True).decrypt(_NONCE, box, transcript)
        except InvalidTag:
            return failure(FailureKind.GARBLED, "an answer that was altered on its way")
        return HandshakeStep(
            opened=Opened(self._kind, credentials),
            secrets=Secrets(credentials.suite, send, receive),
        )

    def _try_again(self, body: bytes) -> HandshakeStep:
        """Go on with the number of attempts that the peer names: this end forgot it in a crash."""
        credentials = self._credentials
        highest, proof = unpack_stale(body)
        me, peer = self._me.public, credentials.peer_key
        right = _proof(credentials, "stale", me, peer, self._challenge, body[:6])
        if not hmac.compare_digest(proof, right):
            return failure(FailureKind.GARBLED, _UNPROVEN)
        self._stale += 1
        if self._stale > _STALE_TRIES or highest >= LAST_ATTEMPT:
            return failure(FailureKind.GARBLED, "the peer takes each attempt for an old one")
        credentials.attempt = max(credentials.attempt, highest)
        self._ephemeral, self._challenge, self._hello = self._begin()
        return HandshakeStep(reply=self.hello)


def is_verified(
    me: KeyPair, credentials: Credentials, hello: Hello, resume: Resume, proof: bytes
) -> bool:
    """Return whether the initiator has proved the flow's secret, from the hello's content."""
    content = resume.pack()
    right = _proof(credentials, "resume", credentials.peer_key, me.public, hello.bound, content)
    return hmac.compare_digest(proof, right)


def stale(me: KeyPair, credentials: Credentials, resume: Resume) -> bytes:
    """Return the answer to an attempt that was seen: a replay, or a host that forgot."""
    number = credentials.seen.to_bytes(6, "big")
    peer = credentials.peer_key
    proof = _proof(credentials, "stale", peer, me.public, resume.challenge, number)
    return frame(MessageKind.STALE, pack_stale(credentials.seen, proof))


def answer(
    me: KeyPair, credentials: Credentials, hello: Hello, resume: Resume, random: Random
) -> HandshakeStep:
    """Return the answer to a resumption or join that is verified and new."""
    # From now on a replay of this attempt is answered with STALE.
    credentials.note(resume.attempt)
    ephemeral = KeyPair(random(32))
    signed = pack_answer(random(CHALLENGE_BYTES), ephemeral.public)
    transcript = sha256(hello.bound + hello.content + signed).digest()
    proof = _proof(credentials, "answer", credentials.peer_key, me.public, transcript)
    try:
        shared = ephemeral.exchange(resume.ephemeral)
    except ValueError as error:
        raise MalformedError("a public key that no honest host has") from error
    # The first secret is the initiator's, by which this end receives.
    receive, send, box_key = _connection(credentials, shared, transcript)
    locator = Locators(me).issue(credentials.flow_id, random)
    box = aead(box_key, chacha=True).encrypt(_NONCE, locator, transcript)
    return HandshakeStep(
        reply=frame(MessageKind.RESUME_ANSWER, signed + proof + box),
        opened=Opened(ConnectionKind(hello.detail), credentials),
        secrets=Secrets(credentials.suite, send, receive),
    )
