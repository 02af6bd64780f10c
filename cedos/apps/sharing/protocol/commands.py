"""The commands of the two state machines to their drivers, in the order they are to be done in. Pure.

A helper and a requestor are named by their public keys.
"""

from dataclasses import dataclass
from typing import TypeAlias

from cedos.apps.sharing.protocol.messages import Endpoint, LeaveReason
from cedos.apps.sharing.protocol.receipts import Contract

# A neighbour's socket: address, port and interface index. The state machines pass it back.
LinkAddress: TypeAlias = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class SendDatagram:
    """A datagram for a neighbour; `to` None: for the multicast group on the link."""

    data: bytes
    to: LinkAddress | None


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """An offer that the person's wish rules out, for the log; once for each helper and price."""

    name: str
    price: int
    currency: str


@dataclass(frozen=True, slots=True)
class TakeAddress:
    """The need of an address on the link for one helper; `on_address` or `on_no_address` answers."""

    helper: bytes


@dataclass(frozen=True, slots=True)
class AddPath:
    """A path is ready: from `source`, by way of `via`, to `reaches`.

    `join` and `confirm` are the datagrams of the contract, for the gateway.
    """

    helper: bytes
    name: str
    source: bytes
    via: bytes
    reaches: Endpoint
    contract: Contract
    join: bytes
    confirm: bytes


@dataclass(frozen=True, slots=True)
class SuspendPath:
    """A pause of a helper's path: it gets nothing new until `ResumePath`, as it is leaving or silent."""

    helper: bytes


@dataclass(frozen=True, slots=True)
class ResumePath:
    helper: bytes


@dataclass(frozen=True, slots=True)
class RemovePath:
    """The end of a helper: what lies with it is scheduled again, its address and route are removed.

    It also comes where only an address was taken. `by_helper`: the helper said so itself.
    """

    helper: bytes
    reason: LeaveReason
    by_helper: bool


@dataclass(frozen=True, slots=True)
class StartForwarding:
    """The need of NAT and forwarding, from `source` to `reaches` alone.

    `on_forwarding` or `on_not_forwarding` answers. `join` and `confirm` prove the contract, and
    `link` is where the latter came from.
    """

    requestor: bytes
    name: str
    link: LinkAddress
    source: bytes
    reaches: Endpoint
    contract: Contract
    join: bytes
    confirm: bytes


@dataclass(frozen=True, slots=True)
class StopForwarding:
    """The end of a requestor; `on_stopped` takes what was carried beyond the last count."""

    requestor: bytes
    reason: LeaveReason
    by_requestor: bool
    carried_bytes: int


RequestorCommand: TypeAlias = (
    SendDatagram | OfferRefused | TakeAddress | AddPath | SuspendPath | ResumePath | RemovePath
)
HelperCommand: TypeAlias = SendDatagram | StartForwarding | StopForwarding
