"""Full-tunnel VPNs: has one taken the default, and do other people's rules stand behind ours?"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cedos.kernel.interface_kind import TUNNEL_KINDS
from cedos.kernel.policy_routing import MAIN_TABLE, SeenRoute, SeenRule
from cedos.kernel.rtnetlink import Link
from cedos.steer.routing.plan import LAST_PREFERENCE

_KINDS: Final = TUNNEL_KINDS | {"ppp"}
# ARPHRD: NONE, PPP, TUNNEL, TUNNEL6, SIT, IPGRE, IP6GRE, RAWIP.
_TYPES: Final = frozenset((65534, 512, 768, 769, 776, 778, 823, 519))
_MAIN_PREFERENCE: Final = 32766


@dataclass(frozen=True, slots=True)
class Foreign:
    """The routing that other programs have put in.

    `tunnelled` has the VPN's interface by each IP version whose default it has; `notes` say what was
    found, in words.
    """

    tunnelled: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def examine(
    rules: Sequence[SeenRule],
    routes: Sequence[SeenRoute],
    links: Sequence[Link],
    networks: Collection[int],
) -> Foreign:
    """Find full tunnels and rules that ours would overtake.

    `networks` are the indices of the access networks: never tunnels, even if they look so (a modem
    is a raw IP interface).
    """
    tunnels = {
        link.index: link.name
        for link in links
        if (link.kind in _KINDS or link.type in _TYPES) and link.index not in networks
    }
    tunnelled: dict[int, str] = {}
    notes = []
    for version in (4, 6):
        own = [route for route in routes if route.version == version]
        through = _tunnel(own, MAIN_TABLE, tunnels)
        for rule in rules:
            if rule.version != version or rule.ours or rule.table is None:
                continue
            if rule.general and 0 < rule.preference < _MAIN_PREFERENCE:
                through = through or _tunnel(own, rule.table, tunnels)
            elif LAST_PREFERENCE < rule.preference < _MAIN_PREFERENCE and not rule.general:
                notes.append(
                    f"cedos overrides another program's IPv{version} rule {rule.preference}. With a"
                    " preference below 32000 it would stay in force"
                )
        if through is not None:
            tunnelled[version] = through
            notes.append(
                f"a VPN ({through}) carries all IPv{version} traffic, and cedos leaves it alone"
            )
    return Foreign(tunnelled, tuple(notes))


def _tunnel(routes: Sequence[SeenRoute], table: int, tunnels: dict[int, str]) -> str | None:
    """Return the tunnel that a table's default route, or both halves of one, lead into."""
    inside = [route for route in routes if route.table == table]
    defaults = [route for route in inside if route.destination.prefixlen == 0]
    if defaults:
        best = min(defaults, key=lambda route: route.metric)
        if best.index in tunnels:
            return tunnels[best.index]
    halves = {
        route.destination: route.index
        for route in inside
        if route.destination.prefixlen == 1 and route.index in tunnels
    }
    return tunnels[next(iter(halves.values()))] if len(halves) == 2 else None
