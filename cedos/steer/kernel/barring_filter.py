"""What the packet filter does with barred networks: nothing of a program's goes over them.

Three chains, through the real `iptables` and `ip6tables`. A program that begins a connection is refused
at once; one in the middle of it is reset by its next packet, and then the kernel itself resets whatever
the other end still sends, so that this stops too. Datagrams are refused to their sender on either side.
The same holds for what this host forwards (containers, guests). What keeps the network itself goes on:
addresses (DHCP), neighbours, routers and multicast listeners of IPv6; ARP is no concern of iptables.

Behind these stands a second wall, in the table `security`, which comes after `filter` and is flushed by
hardly anybody: what the first one lets through as somebody has flushed it (`iptables -F`) is dropped
there until it is repaired. Only nf_tables has that table everywhere.
"""

from collections.abc import Collection, Iterator
from typing import Final

from cedos.steer.kernel import iptables
from cedos.steer.kernel.iptables import Chain

# Destination unreachable, multicast listeners (RFC 2710, RFC 3810), neighbour discovery (RFC 4861).
_ICMPV6: Final = (1, 130, 131, 132, 133, 134, 135, 136, 137, 143)
_UNREACHABLE: Final = 3
# -4 and -6: of the one IP version only.
_HOSTS_OUT: Final = (
    "-4 {where} -p udp --sport 68 --dport 67 -j RETURN",
    "-6 {where} -p udp --sport 546 --dport 547 -j RETURN",
    f"-4 {{where}} -p icmp --icmp-type {_UNREACHABLE} -j RETURN",
    *(f"-6 {{where}} -p ipv6-icmp --icmpv6-type {kind} -j RETURN" for kind in _ICMPV6),
)
_HOSTS_IN: Final = (
    "-4 {where} -p udp --sport 67 --dport 68 -j RETURN",
    "-6 {where} -p udp --dport 546 -j RETURN",
)
# A reset ends a connection at the other end too: it must get through.
_OUT: Final = (
    "{where} -p tcp --tcp-flags RST RST -j RETURN",
    "{where} -p tcp -j REJECT --reject-with tcp-reset",
    "{where} -j REJECT",
)
# The second wall's, where nobody can be told why.
_DROP_OUT: Final = ("{where} -p tcp --tcp-flags RST RST -j RETURN", "{where} -j DROP")
_DROP_IN: Final = ("{where} -p tcp --syn -j DROP", "{where} -p udp -j DROP")
# What comes for a living connection must reach it, or it would never learn that it is to end.
_IN: Final = (
    "{where} -p tcp --syn -j REJECT --reject-with tcp-reset",
    "{where} -p udp -j REJECT",
)


def put_in(interfaces: Collection[str]) -> None:
    """Bars these interfaces and no others; none: all are open. Errors: OSError, iptables' own words."""
    iptables.put_in(chains(interfaces))


def chains(interfaces: Collection[str]) -> list[Chain]:
    """What bars these interfaces, on this host."""

    def rules(*of: tuple[str, tuple[str, ...]]) -> Iterator[str]:
        for interface in interfaces:
            for side, lines in of:
                for line in lines:
                    # Braces are nothing special in a name.
                    name = interface.replace("{", "{{").replace("}", "}}")
                    yield line.format(where=f"{side} {name}")

    def wall(table: str, name: str, out: tuple[str, ...], in_: tuple[str, ...]) -> list[Chain]:
        return [
            Chain(table, f"{name}_OUT", "OUTPUT", tuple(rules(("-o", _HOSTS_OUT), ("-o", out)))),
            Chain(table, f"{name}_IN", "INPUT", tuple(rules(("-i", _HOSTS_IN), ("-i", in_)))),
            Chain(table, f"{name}_FWD", "FORWARD", tuple(rules(("-o", out), ("-i", in_)))),
        ]

    first = wall("filter", "CEDOS_BAR", _OUT, _IN)
    if not iptables.on_nf_tables():
        return first
    return [*first, *wall("security", "CEDOS_WALL", _DROP_OUT, _DROP_IN)]
