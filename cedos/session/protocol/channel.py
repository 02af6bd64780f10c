"""A secured TCP connection, one path of a flow: bytes in, records out, and back. Sans-I/O.

A record is a header of 4 bytes and up to 256 KB of frames, protected by the flow's suite with a key of
this connection and direction alone. A record that is forged, cut short or out of order ends the
connection, never the flow. `Acceptor` makes the channels of the accepting host, under limits.
"""

import hmac
from collections.abc import Callable, Sequence
from typing import Final

from cedos.session.protocol.crypto import (
    TAG_BYTES,
    Buffer,
    KeyPair,
    Random,
    RecordKey,
    Suite,
    expand,
)
from cedos.session.protocol.frames import Chunk
from cedos.session.protocol.handshake.accepting import AcceptorHandshake, AcceptorState, KnownFlows
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.limits import HalfOpen, HandshakeLimits, HostLedger
from cedos.session.protocol.handshake.messages import (
    CONFIRM_BYTES,
    GREETING_BYTES,
    HEADER,
    HEADER_BYTES,
    MalformedError,
    MessageKind,
    frame,
)
from cedos.session.protocol.handshake.noise import NoiseError
from cedos.session.protocol.handshake.outcome import (
    ConnectionKind,
    Failure,
    FailureKind,
    Handshake,
    HandshakeStep,
    Opened,
    Secrets,
)
from cedos.session.protocol.handshake.resume import ResumeHandshake
from cedos.session.protocol.handshake.set_up import SetUpHandshake, SetUpOptions
from cedos.session.protocol.packing import RECORD_BYTES

_RECORD: Final = int(MessageKind.RECORD)
# The bytes and the records after which the caller looks whether there is time for more.
_PORTION_BYTES, _PORTION = 1 << 16, 64


class Channel:
    """A connection from its first byte; made by `set_up`, `resume` or `Acceptor.channel`.

    | state | initiator | acceptor |
    |---|---|---|
    | handshake (`_handshake`) | its hello is sent | waits for a hello |
    | keys agreed (`_secrets`) | sends CONFIRM, and goes on at once | has answered; waits for CONFIRM |
    | `confirmed` | sends and receives records | sends and receives records |
    | `failure` | ends the channel from any state | likewise |

    `opened` is None until the peer has proved who it is; then the channel may send. At a resumption the
    acceptor has that proof with the keys. At a set-up it waits for CONFIRM: a hello may be a replay.
    After a `failure`, send the `outgoing` messages and close the connection.
    """

    __slots__ = (
        "_done", "_handshake", "_held", "_initiator", "_least", "_most", "_opener", "_outgoing",
        "_partial", "_sealer", "_secrets", "confirmed", "failure", "left", "opened",
    )  # fmt: skip

    def __init__(
        self,
        handshake: Handshake,
        *,
        first: bytes = b"",
        done: Callable[["Channel"], None] | None = None,
    ) -> None:
        self.opened: Opened | None = None
        self.confirmed = False
        self.failure: Failure | None = None
        self._handshake: Handshake | None = handshake
        self._initiator = bool(first)
        self._outgoing = [first] if first else []
        self._done = done
        self._held: Opened | None = None
        self._secrets: Secrets | None = None
        self._sealer: RecordKey | None = None
        self._opener: RecordKey | None = None
        self._partial = bytearray()
        # The bytes at the end of what was received last that were not looked at.
        self.left = 0
        # The possible lengths of a record: none before the peer is confirmed.
        self._least, self._most = 1, 0

    def send(self, parts: Sequence[Buffer]) -> list[Buffer]:
        """Return one record of all parts, behind the `outgoing` messages.

        In clear the parts themselves are returned: they must not change before they are sent.
        ValueError: the size is not 1 to `RECORD_BYTES`.
        """
        assert self.opened is not None
        assert self.failure is None
        n_bytes = sum(map(len, parts))
        if not 0 < n_bytes <= RECORD_BYTES:
            raise ValueError(f"a record of {n_bytes} bytes; 1 to {RECORD_BYTES} are possible")
        # Messages of the handshake go first, in the same write.
        before: list[Buffer] = [*self._outgoing]
        self._outgoing.clear()
        sealer = self._sealer
        if sealer is None:
            # In clear: a header, and the caller's own buffers.
            return [*before, HEADER.pack(n_bytes << 8 | _RECORD), *parts]
        header = HEADER.pack(n_bytes + TAG_BYTES << 8 | _RECORD)
        return [*before, header, sealer.seal(header, parts)]

    def send_one(self, plain: bytes) -> bytes:
        sealer = self._sealer
        if self._outgoing:
            return b"".join(self.send([plain]))
        if sealer is None:
            return HEADER.pack(len(plain) << 8 | _RECORD) + plain
        header = HEADER.pack(len(plain) + TAG_BYTES << 8 | _RECORD)
        return header + sealer.seal(header, (plain,))

    @property
    def partial_bytes(self) -> int:
        """Return the bytes of an unfinished record."""
        return len(self._partial)

    def outgoing(self) -> list[bytes]:
        """Return and forget the messages of the handshake that wait to be sent."""
        waiting, self._outgoing = self._outgoing, []
        return waiting

    def receive(self, data: Buffer, now: float) -> list[Chunk]:
        """Return the contents of the first records that are whole now, in order.

        Then look at `opened` and `failure`, and call again with the `left` bytes. The contents are valid
        until `data` changes: copy what is kept.
        """
        records: list[Chunk] = []
        view = memoryview(data)
        # First complete the record that an earlier call left unfinished.
        at = self._complete(view, records, now) if self._partial else 0
        end, whole = len(view), True
        while self.failure is None and end - at >= HEADER_BYTES:
            if at >= _PORTION_BYTES or len(records) >= _PORTION:
                whole = False
                break
            number = HEADER.unpack_from(view, at)[0]
            n_bytes, start = number >> 8, at + HEADER_BYTES
            # Fast path: a record of a confirmed peer with a possible length.
            usual = number & 0xFF == _RECORD and self._least <= n_bytes <= self._most
            if not usual:
                n_bytes, kind = self._check_bounds(view, at)
            # The record is not whole yet, or its header was refused.
            if end - start < n_bytes or self.failure is not None:
                break
            header, at = view[at:start], start + n_bytes
            if usual:
                self._record(header, view[start:at], records)
            else:
                self._message(kind, header, view[start:at], records, now)
        self.left = 0 if whole else end - at
        # Keep the beginning of an unfinished record for the next call.
        if self.failure is None and whole and at < end:
            self._partial += view[at:]
        return records

    def expire(self) -> None:
        """Fail because the peer was too slow to prove itself."""
        self._fail(Failure(FailureKind.TIMED_OUT, "no proof of the peer in time"))

    def abandon(self) -> None:
        self._release()

    def _complete(self, view: memoryview, records: list[Chunk], now: float) -> int:
        partial, taken = self._partial, 0
        # The header itself may be cut.
        if len(partial) < HEADER_BYTES:
            taken = min(HEADER_BYTES - len(partial), len(view))
            partial += view[:taken]
            if len(partial) < HEADER_BYTES:
                return taken
        n_bytes, kind = self._check_bounds(partial, 0)
        if self.failure is not None:
            return taken
        # Take as much of the body as this data has.
        more = min(HEADER_BYTES + n_bytes - len(partial), len(view) - taken)
        partial += view[taken : taken + more]
        if len(partial) == HEADER_BYTES + n_bytes:
            # The record may be a view of the old buffer, so that must not be used again.
            self._partial = bytearray()
            whole = memoryview(partial)
            self._message(kind, whole[:HEADER_BYTES], whole[HEADER_BYTES:], records, now)
        return taken + more

    def _check_bounds(self, data: Buffer, at: int) -> tuple[int, int]:
        """Return length and kind of a message; refuse a wrong one before any of it is kept."""
        number: int = HEADER.unpack_from(data, at)[0]
        n_bytes, kind = number >> 8, number & 0xFF
        if not self.confirmed:
            # Before the peer is confirmed, only short messages of the handshake are kept.
            if n_bytes > GREETING_BYTES:
                self._on_garbled("it does not speak this protocol")
        elif kind != _RECORD or not self._least <= n_bytes <= self._most:
            self._on_garbled("bytes that are no record")
        return n_bytes, kind

    def _record(self, header: memoryview, body: memoryview, records: list[Chunk]) -> None:
        record = body if self._opener is None else self._opener.open(header, body)
        if record is None:
            self._on_garbled("a record that was forged, altered, replayed or out of order")
        else:
            records.append(record)

    def _message(
        self, kind: int, header: memoryview, body: memoryview, records: list[Chunk], now: float
    ) -> None:
        if self.confirmed:
            self._record(header, body, records)
        elif self._secrets is not None:
            self._confirm(kind, bytes(body))
        elif self._handshake is not None:
            try:
                self._step(
                    self._handshake.receive(MessageKind(kind), bytes(body), now), header, body
                )
            except (MalformedError, NoiseError, ValueError) as error:
                self._on_garbled(str(error))

    def _step(self, step: HandshakeStep, header: memoryview, body: memoryview) -> None:
        # Reply first; then a failure ends the channel, or secrets open it.
        if step.reply:
            self._outgoing.append(step.reply)
        if step.failure is not None:
            self._fail(step.failure)
            return
        if step.secrets is None:
            return
        self._handshake = None
        # The keys are agreed: the handshake is over, records can be protected.
        secrets = self._secrets = step.secrets
        if secrets.suite is not Suite.CLEAR:
            self._sealer = RecordKey(secrets.suite, secrets.send)
            self._opener = RecordKey(secrets.suite, secrets.receive)
        # The initiator has the acceptor's proof now, and confirms. The acceptor may send at once, unless
        # the initiator has not proved itself yet: then it waits for the confirmation.
        if self._initiator:
            self._outgoing.append(frame(MessageKind.CONFIRM, _confirmation(secrets.send)))
            self.opened = step.opened
            self._on_confirmed()
        elif step.unproven:
            self._held = step.opened
        else:
            self.opened = step.opened

    def _confirm(self, kind: int, body: bytes) -> None:
        assert self._secrets is not None
        if kind != MessageKind.CONFIRM or not hmac.compare_digest(
            body, _confirmation(self._secrets.receive)
        ):
            self._on_garbled("a replayed hello: its sender cannot confirm")
            return
        self.opened = self.opened or self._held
        self._on_confirmed()

    def _on_confirmed(self) -> None:
        self.confirmed = True
        # From now on only records of possible lengths are accepted.
        overhead = 0 if self._opener is None else TAG_BYTES
        self._least, self._most = overhead + 1, overhead + RECORD_BYTES
        self._secrets = None
        self._release()

    def _on_garbled(self, why: str) -> None:
        self._fail(Failure(FailureKind.GARBLED, why))

    def _fail(self, failure: Failure) -> None:
        if self.failure is None:
            self.failure = failure
        self._partial = bytearray()
        self._release()

    def _release(self) -> None:
        if self._done is not None:
            done, self._done = self._done, None
            done(self)


def _confirmation(secret: bytes) -> bytes:
    return expand(secret, "confirmation", length=CONFIRM_BYTES)


def set_up(me: KeyPair, server_key: bytes, ask: SetUpOptions, *, random: Random) -> Channel:
    """Return the channel of a new flow to the holder of a key; NoiseError: `server_key` is no key."""
    opening = SetUpHandshake(me, server_key, ask, random)
    return Channel(opening, first=opening.hello)


def resume(
    me: KeyPair, credentials: Credentials, kind: ConnectionKind, *, random: Random
) -> Channel:
    """Return the channel of a further connection of a flow; counts an attempt in its credentials."""
    resuming = ResumeHandshake(me, credentials, kind, random)
    return Channel(resuming, first=resuming.hello)


_NO_LIMITS = HandshakeLimits()


class Acceptor:
    """The maker of channels on the accepting host; it watches those that are not confirmed yet.

    `ledger` counts what known hosts have (shared with the flow table). `allow_clear`: clients that
    ask for it may send records without protection.
    """

    def __init__(
        self,
        me: KeyPair,
        flows: KnownFlows,
        *,
        random: Random,
        hardware_aes: bool,
        now: float,
        allow_clear: bool = False,
        limits: HandshakeLimits = _NO_LIMITS,
        ledger: HostLedger | None = None,
    ) -> None:
        self.ledger = ledger or HostLedger(limits)
        self._limits = limits
        self._half_open: HalfOpen[Channel] = HalfOpen(limits)
        self._pushed_out: list[Channel] = []
        self._reception = AcceptorState(
            me,
            flows,
            random=random,
            hardware_aes=hardware_aes,
            allow_clear=allow_clear,
            limits=limits,
            ledger=self.ledger,
            half_open=self._half_open,
            now=now,
        )

    def __len__(self) -> int:
        return len(self._half_open)

    def channel(self, address: str, now: float) -> Channel:
        """Return the channel of a new connection from an address (without its port)."""
        accepting = AcceptorHandshake(self._reception, address)
        channel = Channel(accepting, done=self._half_open.remove)
        # A new connection may push out an older one that is not confirmed yet.
        pushed = self._half_open.add(channel, address, now)
        if pushed is not None:
            self._pushed_out.append(pushed)
        return channel

    def overdue(self, now: float) -> list[Channel]:
        """Return the channels that were too slow or replaced by newer ones: close their connections."""
        late, self._pushed_out = self._pushed_out, []
        late += self._half_open.overdue(now)
        for channel in late:
            channel.expire()
        return late

    def next_expiry(self) -> float | None:
        return float("-inf") if self._pushed_out else self._half_open.next_expiry()
