"""Contracts and receipts: what requestor and helper agreed on, and what the gateway saw carried. Pure.

A contract is a Join and the Confirm that names its digest: both signed, so neither can later speak of
another price. The requestor shows it to the gateway with the path that it is about. A receipt is the
gateway's signed record for one contract and one period.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from cedos.apps.sharing.protocol.certificates import (
    PublicKey,
    Seconds,
    Serial,
    Trust,
    UntrustedError,
    open_sealed,
    seal,
)
from cedos.apps.sharing.protocol.messages import (
    ByteCount,
    ConfirmMessage,
    Currency,
    Digest,
    JoinMessage,
    Price,
    unpack,
)
from cedos.apps.sharing.protocol.signing import SIGNATURE_BYTES, SigningKey, is_signed

MOST_RECEIPT_BYTES: Final = 384
GIGABYTE: Final = 10**9
_RECEIPT: Final = b"cedos share receipt 1"


@dataclass(frozen=True, slots=True)
class Contract:
    """The agreement of a requestor and a helper.

    Attributes:
        number: SHA-256 of the Join's datagram, which its Confirm names.
        price: millionths of `currency` for 10^9 bytes.
        made_us: the time in the Join, microseconds since 1970.
    """

    number: bytes
    requestor: bytes
    helper: bytes
    price: int
    currency: str
    made_us: int


def contract_of(join: JoinMessage, digest: bytes, helper: bytes) -> Contract:
    """Return the contract that a Confirm of this Join makes. `digest`: of the Join's datagram."""
    return Contract(
        number=digest,
        requestor=join.to,
        helper=helper,
        price=join.price,
        currency=join.currency,
        made_us=join.sent_us,
    )


def read_contract(join: bytes, confirm: bytes, trust: Trust, now_s: float) -> Contract:
    """Return the contract in the datagrams of a Join and of its Confirm.

    Raises:
        UntrustedError: one of them is forged, or they do not belong together.
    """
    joined, confirmed = unpack(join), unpack(confirm)
    terms, acceptance = joined.message, confirmed.message
    if not isinstance(terms, JoinMessage) or not isinstance(acceptance, ConfirmMessage):
        raise UntrustedError("a contract that is no Join and Confirm")
    helper = joined.verify_sender(trust, now_s).host
    requestor = confirmed.verify_sender(trust, now_s).host
    if (terms.to, acceptance.to) != (requestor, helper) or acceptance.join != joined.digest:
        raise UntrustedError("a Confirm of another Join")
    return contract_of(terms, joined.digest, helper)


def by_volume(contract: Contract, before_bytes: int, after_bytes: int) -> int:
    """Return the price of the bytes between two totals; what is rounded off comes with later bytes."""
    price = contract.price
    return after_bytes * price // GIGABYTE - before_bytes * price // GIGABYTE


class Receipt(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The gateway's record for one contract and one period.

    Attributes:
        gateway: the key that signed it.
        serial: the gateway's number of the receipt, never used twice.
        contract: number of the contract.
        up_bytes: payload that the gateway accepted from the helper's paths in the period.
        down_bytes: payload that the requestor proved to have received over them.
        total_bytes: both, since the contract began, at the end of the period.
        amount: what the requestor owes the helper for the period, millionths of `currency`.
    """

    gateway: PublicKey
    serial: Serial
    requestor: PublicKey
    helper: PublicKey
    contract: Digest
    start_s: Seconds
    end_s: Seconds
    up_bytes: ByteCount
    down_bytes: ByteCount
    total_bytes: ByteCount
    amount: Price
    currency: Currency

    @property
    def carried_bytes(self) -> int:
        return self.up_bytes + self.down_bytes


def sign_receipt(receipt: Receipt, key: SigningKey) -> bytes:
    return seal(receipt, _RECEIPT, key)


def read_receipt(data: bytes, gateway: bytes) -> Receipt:
    """Return the receipt that a gateway signed.

    Raises:
        UntrustedError: it is malformed, of another gateway, or forged.
    """
    receipt, body = open_sealed(data, Receipt, MOST_RECEIPT_BYTES, "receipt")
    if receipt.gateway != gateway:
        raise UntrustedError("a receipt of another gateway")
    if not is_signed(gateway, _RECEIPT, body, data[-SIGNATURE_BYTES:]):
        raise UntrustedError("a receipt that the gateway did not sign")
    return receipt
