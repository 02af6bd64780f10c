"""Limits of what one host, and all strangers together, may ask of a server. Pure.

The papers leave this open (DTP section 7, "State Explosion Attacks"; Cedos III-F suggests a limit of
flows per device). A stranger costs a bounded number of half-open handshakes and, once there are many,
a cookie each; a known host has a limit on flows, on bytes held for its idle flows, on resumptions.

`HostCounts` counts the records of very many hosts in 2 MB, by a count-min sketch. It never counts too
few. It counts too many only where a host shares both counters with busier ones, which an attacker
cannot choose, as Python keys its hashes in each process.
"""

from array import array
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Final, Generic, TypeVar

from cedos.limits import TokenBucket

_BITS: Final = 18
_MASK: Final = (1 << _BITS) - 1


class HostCounts:
    """A count-min sketch of two rows: a host has one counter in each, which it may share."""

    def __init__(self) -> None:
        self._rows = (array("I", bytes(4 << _BITS)), array("I", bytes(4 << _BITS)))

    def add(self, host: bytes, by: int = 1) -> None:
        first, second = self._rows
        number = hash(host)
        first[number & _MASK] += by
        second[number >> _BITS & _MASK] += by

    def of(self, host: bytes) -> int:
        """Return how many records the host has, or a few more."""
        first, second = self._rows
        number = hash(host)
        return min(first[number & _MASK], second[number >> _BITS & _MASK])


_HOSTS_REMEMBERED: Final = 100_000


@dataclass(frozen=True, slots=True)
class HandshakeLimits:
    """The limits of a server. Rates are sustained; `*_burst` may come at once."""

    flows: int = 250_000  # of all hosts: an attacker can make any number of keys, each a host
    flows_per_host: int = 10_000
    connections_per_peer: int = 250_000  # of all flows of an account (`SessionPath`)
    absent: int = 4_096  # of all hosts, in memory and without a network
    asleep: int = 1_000_000  # of all hosts, written down
    idle_bytes_per_host: int = 256 << 20  # in memory, for its flows without a network
    unread_bytes_per_host: int = 256 << 20  # received for all its flows, and not read
    unread_bytes: int = 1 << 30  # the same of all hosts
    resumptions_per_s: float = 50.0
    resumption_burst: int = 500
    deadline_s: int = 30 * 86_400  # no flow is granted a longer sleep
    half_open: int = 1024
    half_open_per_address: int = 256
    cookies_from: int = 64  # half-open handshakes from which on a cookie is asked for
    set_ups_per_s: float = 500.0  # of all hosts; above it a cookie is asked for as well
    handshake_s: float = 10.0  # from accept() to the confirmation, however slowly it drips


class HostLedger:
    """The living flows and recent resumptions of each host, by its id."""

    def __init__(self, limits: HandshakeLimits) -> None:
        self.limits = limits
        self._flows: dict[bytes, int] = {}
        self._of_peer: dict[str, int] = {}
        self._all_flows = 0
        self._rates: OrderedDict[bytes, TokenBucket] = OrderedDict()

    def may_open(self, host: bytes, kept: int = 0) -> bool:
        """Return whether a host may have one more flow; count nothing, as it may never confirm.

        `kept`: how many of its flows are written down, living or not.
        """
        if self._all_flows >= self.limits.flows:
            return False
        return max(self._flows.get(host, 0), kept) < self.limits.flows_per_host

    def open_flow(self, host: bytes) -> None:
        """Count one more flow, even above the limit: several may have been admitted at once."""
        self._flows[host] = self._flows.get(host, 0) + 1
        self._all_flows += 1

    def close_flow(self, host: bytes) -> None:
        self._all_flows -= 1
        _take_one(self._flows, host)

    def has_room(self, peer: str) -> bool:
        """Return whether a peer's flows may have one more connection."""
        return self._of_peer.get(peer, 0) < self.limits.connections_per_peer

    def add_connection(self, peer: str) -> None:
        """Count a connection of a peer's flow, until `take_connection`."""
        self._of_peer[peer] = self._of_peer.get(peer, 0) + 1

    def take_connection(self, peer: str) -> None:
        _take_one(self._of_peer, peer)

    def resume(self, host: bytes, now: float) -> float:
        """Count a resumption or join; return the seconds to wait if there are too many, else 0."""
        rate = self._rates.get(host)
        if rate is None:
            rate = TokenBucket(self.limits.resumptions_per_s, self.limits.resumption_burst, now)
            self._rates[host] = rate
            if len(self._rates) > _HOSTS_REMEMBERED:
                self._rates.popitem(last=False)
        self._rates.move_to_end(host)
        return 0.0 if rate.take(now) else rate.wait_s


Counted = TypeVar("Counted", bound=Hashable)


def _take_one(counts: dict[Counted, int], whose: Counted) -> None:
    counts[whose] -= 1
    if not counts[whose]:
        del counts[whose]


def network_of(address: str) -> str:
    """Return an IPv4 address, or what one holder of IPv6 addresses has at least: 64 bits of it."""
    address = address.removeprefix("::ffff:").partition("%")[0]
    return str(IPv6Address(int(IPv6Address(address)) >> 64 << 64)) if ":" in address else address


Pending = TypeVar("Pending", bound=Hashable)


class HalfOpen(Generic[Pending]):
    """Handshakes that are not confirmed yet, with limits on number, number by address, and time.

    When full, the oldest is dropped: an honest host is done after a round trip, so the oldest is
    idle. The same holds for an address that has used its share. Many hosts may share it behind a
    carrier's NAT: to refuse the newest would let one of them keep out all others.
    """

    def __init__(self, limits: HandshakeLimits) -> None:
        self._limits = limits
        self._pending: OrderedDict[Pending, tuple[str, float]] = OrderedDict()
        self._of_address: dict[str, OrderedDict[Pending, None]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, one: Pending, address: str, now: float) -> Pending | None:
        """Add a handshake; return the one that was dropped for it."""
        pushed, address = None, network_of(address)
        # Over one of the limits, the oldest goes: of this address, or of all.
        theirs = self._of_address.get(address, OrderedDict())
        if len(theirs) >= self._limits.half_open_per_address:
            pushed = next(iter(theirs))
        elif len(self._pending) >= self._limits.half_open:
            pushed = next(iter(self._pending))
        if pushed is not None:
            self.remove(pushed)
        self._pending[one] = (address, now + self._limits.handshake_s)
        self._of_address.setdefault(address, OrderedDict())[one] = None
        return pushed

    def remove(self, one: Pending) -> None:
        entry = self._pending.pop(one, None)
        if entry is not None:
            theirs = self._of_address[entry[0]]
            del theirs[one]
            if not theirs:
                del self._of_address[entry[0]]

    def overdue(self, now: float) -> list[Pending]:
        late: list[Pending] = []
        # All have the same time, so the oldest expires first.
        for one, (_, expires_at_s) in self._pending.items():
            if expires_at_s > now:
                break
            late.append(one)
        for one in late:
            self.remove(one)
        return late

    def next_expiry(self) -> float | None:
        return next((expires_at_s for _, expires_at_s in self._pending.values()), None)
