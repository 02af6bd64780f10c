"""The helpers of this host, as `cedos share request` left them in the kernel's tables.

Each has an address on the shared link, and a table of its own that leads from there to the gateway. The
address's metric is the helper's price, in millionths for 10^9 bytes.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from cedos.kernel.policy_routing import HELPER_TABLES, SHARING_PROTOCOL, SeenRoute
from cedos.kernel.rtnetlink import Link, LinkAddress
from cedos.model import Network, NetworkKind, NextHop

_PRICE_MB: Final = 1e9


def is_of_helper(address: LinkAddress) -> bool:
    """Return whether an address leads by a helper, and not where others of its interface lead."""
    return address.protocol == SHARING_PROTOCOL


def helpers(
    links: Mapping[int, Link], addresses: Iterable[LinkAddress], routes: Iterable[SeenRoute]
) -> list[Network]:
    """Return the helpers by which a route leads somewhere, in the order of their tables."""
    own = {each.interface.ip: each for each in addresses if is_of_helper(each)}
    found = []
    for route in sorted(routes, key=lambda each: each.table):
        address = own.get(route.source) if route.source is not None else None
        link = links.get(route.index)
        if route.table not in HELPER_TABLES or address is None or link is None:
            continue
        found.append(
            Network(
                # The names are few, however many neighbours are met: what is counted has the name.
                name=f"helper-{HELPER_TABLES.index(route.table) + 1}",
                interface=link.name,
                index=link.index,
                kind=NetworkKind.HELPER,
                metered=True,
                addresses=(address.interface,),
                next_hops=(NextHop(4, route.gateway),),
                # One that leaves carries what is on its way, and nothing new.
                up=link.carries and address.preferred,
                carrier=link.running,
                leads_to=route.destination.network_address,
                money_per_mb=address.metric / _PRICE_MB,
            )
        )
    return found
