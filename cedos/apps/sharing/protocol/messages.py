"""The messages on the local link, and the one form of their datagrams. Pure.

    magic "CSHR" | version | length of the certificate, 16 bits | certificate | body | signature

The body is a MessagePack array whose first item is the kind. The signature covers all before it, as it
came: no receiver encodes a message again to verify it. Numbers are integers, addresses IPv4's 4 bytes.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cedos.apps.sharing.protocol.certificates import (
    MOST_CERTIFICATE_BYTES,
    Certificate,
    HostIdentity,
    PublicKey,
    Trust,
    UntrustedError,
)
from cedos.apps.sharing.protocol.signing import SIGNATURE_BYTES, is_signed
from cedos.selector.sharing import NetworkType

GROUP: Final = "239.255.99.98"
# The UDP port of all messages. Invites go to a multicast group with a TTL of 1, other
# messages to one socket. Only root may take it: a user who held it kept a helper from starting.
PORT: Final = 338

MOST_DATAGRAM_BYTES: Final = 1200
NONCE_BYTES: Final = 16
VERSION: Final = 3
_HEAD: Final = struct.Struct(">4sBH")
_MAGIC: Final = b"CSHR"
_DATAGRAM: Final = b"cedos share datagram 1"

Nonce = Annotated[bytes, Meta(min_length=NONCE_BYTES, max_length=NONCE_BYTES)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
PackedAddress = Annotated[bytes, Meta(min_length=4, max_length=4)]
Microseconds = Annotated[int, Meta(ge=0, le=2**56)]
RateBps = Annotated[int, Meta(ge=0, le=10**12)]
Price = Annotated[int, Meta(ge=0, le=10**12)]
Currency = Annotated[str, Meta(pattern=r"^[A-Z]{3}$")]
ByteCount = Annotated[int, Meta(ge=0, le=10**15)]


class Endpoint(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An address of the gateway to which a helper forwards."""

    address: PackedAddress
    port: Annotated[int, Meta(ge=1, le=65_535)]


class LeaveReason(IntEnum):
    """The reason why one of the two ends it."""

    DONE = 0  # the person stopped it
    LIMIT = 1  # the data that the helper sells is used up
    BATTERY = 2
    UPLINK = 3  # the helper's network is gone
    UNKNOWN = 4  # the helper does not know this requestor (any more)
    REFUSED = 5  # the helper cannot forward from this address
    CARRIES_NOTHING = 6  # the helper answers, yet what was sent through it does not arrive
    UNPAID = 7  # receipts do not come, or say less than was carried
    SILENT = 8
    UNTRUSTED = 9  # the certificate has expired or was revoked


# Reasons for which a helper goes on forwarding for a short time, so that packets in flight arrive.
WITH_NOTICE: Final = {LeaveReason.DONE, LeaveReason.BATTERY}


class InviteMessage(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=1
):
    """A requestor's call for helpers, to all on the link. `rate_bps` is what it still wants."""

    sent_us: Microseconds
    nonce: Nonce
    rate_bps: RateBps


class JoinMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=2):
    """A helper's answer to an Invite: its terms, and what it knows of its path to the gateway.

    Attributes:
        to: the requestor's key.
        answers: nonce of the Invite.
        price: millionths of `currency` for 10^9 bytes.
        limit_bytes: the most that it will carry for this requestor.
        rate_bps: of its path to the gateway; None: not known.
        battery_s: seconds until its battery is empty; None: on mains power, or not known.
        via: its address on the link, the next hop of the requestor's route.
        reaches: where it forwards to, its own knowledge of the gateway's address.
    """

    sent_us: Microseconds
    nonce: Nonce
    to: PublicKey
    answers: Nonce
    price: Price
    currency: Currency
    limit_bytes: ByteCount
    rate_bps: RateBps | None
    network: NetworkType
    battery_s: Annotated[int, Meta(ge=0, le=10**8)] | None
    via: PackedAddress
    reaches: Endpoint


class ConfirmMessage(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=3
):
    """A requestor's acceptance of one Join. With it the two have a contract.

    Attributes:
        to: the helper's key.
        answers: nonce of the Join.
        join: SHA-256 of the whole datagram of the Join, so that its terms are what both signed.
        source: the address from which the requestor will send through this helper.
    """

    sent_us: Microseconds
    nonce: Nonce
    to: PublicKey
    answers: Nonce
    join: Digest
    source: PackedAddress


class LeaveMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=4):
    """The end of a contract, from either end."""

    sent_us: Microseconds
    nonce: Nonce
    to: PublicKey
    reason: LeaveReason


class HelloMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=5):
    """A requestor's question whether a silent helper is there."""

    sent_us: Microseconds
    nonce: Nonce
    to: PublicKey


class HelloAckMessage(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=6
):
    """A helper's answer: to a Hello, and to a Confirm once it forwards.

    `answers` is the nonce of either; `left_bytes` is what it still carries for this requestor.
    """

    sent_us: Microseconds
    nonce: Nonce
    to: PublicKey
    answers: Nonce
    left_bytes: ByteCount


ShareMessage = (
    InviteMessage | JoinMessage | ConfirmMessage | LeaveMessage | HelloMessage | HelloAckMessage
)
_DECODER: Final = msgspec.msgpack.Decoder(ShareMessage)


@dataclass(frozen=True, slots=True)
class ShareDatagram:
    """A datagram whose form is right. Its signature is checked by `verify_sender` alone."""

    raw: bytes
    certificate: bytes
    message: ShareMessage

    @property
    def digest(self) -> bytes:
        """SHA-256 of the datagram, as a Confirm names a Join."""
        return sha256(self.raw).digest()

    def verify_sender(self, trust: Trust, now_s: float) -> Certificate:
        """Return the sender's certificate.

        Raises:
            UntrustedError: the certificate does not hold, or another key signed the datagram.
        """
        certificate = trust.read(self.certificate, now_s)
        signed, signature = self.raw[:-SIGNATURE_BYTES], self.raw[-SIGNATURE_BYTES:]
        if not is_signed(certificate.host, _DATAGRAM, signed, signature):
            raise UntrustedError("a datagram that its sender did not sign")
        return certificate


def pack(identity: HostIdentity, message: ShareMessage) -> bytes:
    """Return a message as a signed datagram."""
    certificate = identity.certificate
    head = _HEAD.pack(_MAGIC, VERSION, len(certificate))
    signed = head + certificate + msgspec.msgpack.encode(message)
    data = signed + identity.key.sign(_DATAGRAM, signed)
    assert len(data) <= MOST_DATAGRAM_BYTES
    return data


def unpack(data: bytes) -> ShareDatagram:
    """Return a datagram's parts; nothing is proved yet.

    Raises:
        UntrustedError: it is none of this protocol, or breaks a bound.
    """
    if not _HEAD.size + 2 * SIGNATURE_BYTES < len(data) <= MOST_DATAGRAM_BYTES:
        raise UntrustedError(f"a datagram of {len(data)} bytes")
    magic, version, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or version != VERSION:
        raise UntrustedError("a datagram of another protocol or version")
    end = _HEAD.size + length
    if length > MOST_CERTIFICATE_BYTES or end >= len(data) - SIGNATURE_BYTES:
        raise UntrustedError("a datagram whose certificate does not fit")
    try:
        message = _DECODER.decode(data[end:-SIGNATURE_BYTES])
    except (ValueError, RecursionError) as error:
        raise UntrustedError(f"a datagram without a message: {error}") from error
    return ShareDatagram(data, data[_HEAD.size : end], message)
