"""The packet filter of a host that forwards for its neighbours (`cedos.host.steer.sharing`).

A requestor's packets go to the gateway's address and port and nowhere else: not to this host itself, its
local networks, or what an uplink's router answers at 169.254.169.254. They count as the requestor's only
with the hardware address that it was admitted with. All requestors share one quota for both directions;
beyond it the kernel resets connections. The connections of each and of all have limits, or those of one
requestor fill the kernel's table. On an interface that this program made forward, nothing else is
forwarded, whatever the interface is called by then.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from cedos.host.steer.kernel import iptables
from cedos.host.steer.kernel.iptables import Chain, Counted
from cedos.kernel.classic_bpf import INTERFACE

PREFIX: Final = "CEDOSHARE_"
_QUOTA: Final = f"{PREFIX}QUOTA"
_TABLES: Final = ("filter", "nat")
MOST_CONNECTIONS, MOST_CONNECTIONS_OF_ONE = 4_096, 256
# Classic BPF that is true of packets which arrived at an interface: what is forwarded bears its index.
_ARRIVED_AT: Final = f"4,32 0 0 {INTERFACE},21 0 1 {{index}},6 0 0 1,6 0 0 0"


@dataclass(frozen=True, slots=True)
class ForwardedRequestor:
    """A requestor that is forwarded for.

    Attributes:
        address: the one that it took for this helper, on the shared link.
        hardware_address: where packets from that address must come from.
        gateway: with `port`, the only destination (TCP).
    """

    address: IPv4Address
    hardware_address: bytes
    gateway: IPv4Address
    port: int


@dataclass(frozen=True, slots=True)
class ForwardingLinks:
    """The shared link and the uplink. `closed`: those where nothing else may be forwarded, by index."""

    shared: str
    uplink: str
    closed: tuple[int, ...]


def put_in(requestors: Collection[tuple[int, ForwardedRequestor]], links: ForwardingLinks) -> None:
    """Let these requestors through and no others; the quota goes on. Errors: OSError."""
    iptables.put_in(_chains(requestors, links), prefix=PREFIX)


def stands(requestors: Collection[tuple[int, ForwardedRequestor]], links: ForwardingLinks) -> bool:
    """Return whether nothing of the filter has gone (`iptables.stand`). Errors: OSError."""
    counters = [_counter_chain(slot) for slot, _ in requestors]
    return iptables.stand([_quota_chain(0), *counters, *_chains(requestors, links)], PREFIX)


def put_quota(limit_bytes: int) -> None:
    """Make the quota, before a requestor is let through. Errors: OSError."""
    iptables.put_in([_quota_chain(limit_bytes)], prefix=PREFIX)


def put_counter(slot: int) -> None:
    """Make the counter of a requestor, before it is let through. Errors: OSError."""
    iptables.put_in([_counter_chain(slot)], prefix=PREFIX)


def remove_counter(slot: int) -> None:
    """Forget the counter of a requestor that is not let through any more. Errors: OSError."""
    iptables.drop_chain("filter", _counter(slot))


def read_carried() -> dict[int, Counted]:
    """Return by slot what the kernel has forwarded: IP, both directions. Errors: OSError."""
    counted = iptables.counters("filter", f"{PREFIX}R")
    return {int(name.removeprefix(f"{PREFIX}R")): rules[-1] for name, rules in counted.items()}


def present() -> bool:
    """Return whether a chain of sharing is there; False too if that is unknown."""
    return iptables.present(*_TABLES, prefix=PREFIX)


def remove() -> bool:
    """Remove all chains of sharing; return whether there was one. Errors: OSError."""
    return iptables.remove(*_TABLES, prefix=PREFIX)


def _limit(connections: int, prefix_length: int) -> str:
    return (
        f"-4 -m conntrack --ctstate NEW -m connlimit --connlimit-above {connections}"
        f" --connlimit-mask {prefix_length} -j DROP"
    )


def _quota_chain(limit_bytes: int) -> Chain:
    rules = (
        _limit(MOST_CONNECTIONS, 0),
        f"-4 -m quota --quota {limit_bytes} -j RETURN",
        "-4 -p tcp -j REJECT --reject-with tcp-reset",
        "-4 -j DROP",
    )
    return Chain("filter", _QUOTA, "", rules)


def _counter_chain(slot: int) -> Chain:
    rules = (_limit(MOST_CONNECTIONS_OF_ONE, 32), f"-4 -j {_QUOTA}", "-4 -j ACCEPT")
    return Chain("filter", _counter(slot), "", rules)


def _counter(slot: int) -> str:
    return f"{PREFIX}R{slot}"


def _chains(
    requestors: Collection[tuple[int, ForwardedRequestor]], links: ForwardingLinks
) -> list[Chain]:
    shared, uplink = (_escape(name) for name in (links.shared, links.uplink))

    def forward_rules() -> Iterator[str]:
        for slot, each in requestors:
            gateway = f"{each.gateway} -p tcp"
            hardware = each.hardware_address.hex(":")
            there = f"-4 -i {shared} -s {each.address}"
            back = f"-4 -i {uplink} -o {shared} -d {each.address}"
            yield (
                f"{there} -o {uplink} -d {gateway} --dport {each.port}"
                f" -m mac --mac-source {hardware} -j {_counter(slot)}"
            )
            yield (
                f"{back} -s {gateway} --sport {each.port}"
                f" -m conntrack --ctstate ESTABLISHED -j {_counter(slot)}"
            )
            # Errors of the way, above all that a packet is too large for it.
            yield f"{back} -p icmp -m conntrack --ctstate RELATED -j {_counter(slot)}"
        # Requestors that were left, too: a router forwards for no such address (RFC 3927, 7).
        yield f"-4 -i {shared} -s 169.254.0.0/16 -j DROP"
        yield f"-4 -o {shared} -d 169.254.0.0/16 -j DROP"
        for index in links.closed:
            yield f'-4 -m bpf --bytecode "{_ARRIVED_AT.format(index=index)}" -j DROP'

    own = tuple(f"-4 -i {shared} -s {each.address} -j DROP" for _, each in requestors)
    hidden = tuple(
        f"-4 -o {uplink} -s {each.address} -d {each.gateway} -p tcp --dport {each.port} -j MASQUERADE"
        for _, each in requestors
    )
    return [
        Chain("filter", f"{PREFIX}FWD", "FORWARD", tuple(forward_rules())),
        Chain("filter", f"{PREFIX}IN", "INPUT", own),
        Chain("nat", f"{PREFIX}NAT", "POSTROUTING", hidden),
    ]


def _escape(name: str) -> str:
    # Braces are nothing special in a name.
    return name.replace("{", "{{").replace("}", "}}")
