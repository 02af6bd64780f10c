"""The rules of the packet filter that hold answers to look-ups, and those that bar networks.

A user's rule for a name is kept by routes to the addresses of the name. A program must not have such an
address before its route stands: so an answer waits in a queue (`cedos.kernel.packet_queue`), usually for
a millisecond. Without a daemon at the queue all answers pass. The chain is in the table `mangle`: the
user's own firewall is asked about answers afterwards, as always. A user's flood of questions is cut as it
is sent, or it would push those of others out of what the daemon remembers. The packet filter knows no
user of an answer, and a daemon with less than half a core cannot read 20,000 answers a second. What
connection tracking finds invalid (a wrong checksum, a number of TCP out of the window) is no answer to a
program, and is dropped, as is what it knows no question or connection of.

Three chains bar networks, so that no program's packets go over them. A program that begins a connection
is refused at once; one in the middle of it is reset by its next packet, and then the kernel itself
resets whatever the other end still sends, so that this stops too. Datagrams are refused to their sender
on either side. The same holds for what this host forwards (containers, guests). What keeps the network
itself goes on: addresses (DHCP), neighbours, routers and multicast listeners of IPv6; ARP is no concern
of iptables.

A program without privilege can make the kernel send some of that: it joins groups of IPv6, binds the
ports of DHCP where a sysctl lets it, or sends this host a datagram under another host's address of IPv6,
which is answered with its own bytes. Or it connects so: for each reset the kernel looks for a neighbour.
So these pass small and seldom. IPv4's reports of listeners (IGMP) do not pass at all, as no address
depends on them.

Behind these stands a second wall (`egress_wall`), until a flush here is repaired.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

from cedos.host.steer.kernel import iptables
from cedos.host.steer.kernel.iptables import Chain
from cedos.logs import get_logger

_log = get_logger(__name__)

QUEUE: Final = 7300
_HELD: Final = tuple(
    f"-p {protocol} --sport 53 -m conntrack {state}"
    for protocol in ("udp", "tcp")
    for state in (
        "--ctstate INVALID -j DROP",
        # Connection tracking has forgotten the question, as its table was full.
        *(("--ctstate NEW --dport 1024:65535 -j DROP",) if protocol == "udp" else ()),
        # It has forgotten a connection, and takes what comes of it for the first packet.
        *(("--ctstate NEW ! --syn -j DROP",) if protocol == "tcp" else ()),
        # What opens a connection once more would tell another beginning of its stream.
        *(("--ctstatus ASSURED --tcp-flags SYN SYN -j DROP",) if protocol == "tcp" else ()),
        # Programs do not read an urgent byte with the others.
        *(("! --ctstate NEW --tcp-flags URG URG -j DROP",) if protocol == "tcp" else ()),
        f"! --ctstate NEW -j NFQUEUE --queue-num {QUEUE} --queue-bypass",
    )
)
# Each user may send so many questions, as the daemon has to remember them and to read the answers; beyond
# that `send` fails. Root and services may send any number. Subordinate numbers count together. A flood by
# TCP slows itself: what is dropped of it comes later.
MOST_ASKED_PER_S: Final = 2000
_USERS: Final = (*map(str, range(1000, 1016)), "1016-59999", "60000-65535", "65536-4294967294")
_ASKED: Final = (
    "! -p udp -j RETURN",
    "-p udp ! --dport 53 -j RETURN",
    *(
        f"-m owner --uid-owner {user} -m limit --limit {MOST_ASKED_PER_S}/second"
        f" --limit-burst {MOST_ASKED_PER_S} -j RETURN"
        for user in _USERS
    ),
    "-m owner --uid-owner 1000-4294967294 -j DROP",
)
# Destination unreachable, multicast listeners (RFC 2710, RFC 3810), neighbour discovery (RFC 4861).
SMALL_ICMPV6: Final = (1, 131, 132, 135, 143)
HOST_ICMPV6: Final = (130, 133, 134, 136, 137)
# The most that such a packet may have: a report of seven groups, a reset with all options.
REPORT_BYTES, RESET_BYTES = 200, 120
_UNREACHABLE: Final = 3
_SELDOM: Final = "-m limit --limit 6/minute --limit-burst 10 -m length --length 0:{bytes}"
_DHCP_BYTES: Final = 1000
# Each connection of a host is reset once; a guest with raw sockets can send resets without end.
_RESETS: Final = (
    "-p tcp --tcp-flags RST RST -m limit --limit 20/second --limit-burst 1000"
    f" -m length --length 0:{RESET_BYTES}"
)
# -4 and -6: of the one IP version only.
_HOSTS_OUT: Final = (
    f"-4 {{where}} -p udp --sport 68 --dport 67 {_SELDOM.format(bytes=_DHCP_BYTES)} -j RETURN",
    f"-6 {{where}} -p udp --sport 546 --dport 547 {_SELDOM.format(bytes=_DHCP_BYTES)} -j RETURN",
    f"-4 {{where}} -p icmp --icmp-type {_UNREACHABLE} {_SELDOM.format(bytes=REPORT_BYTES)} -j RETURN",
    *(f"-6 {{where}} -p ipv6-icmp --icmpv6-type {kind} -j RETURN" for kind in HOST_ICMPV6),
    *(
        f"-6 {{where}} -p ipv6-icmp --icmpv6-type {kind} {_SELDOM.format(bytes=REPORT_BYTES)} -j RETURN"
        for kind in SMALL_ICMPV6
    ),
)
_HOSTS_IN: Final = (
    "-4 {where} -p udp --sport 67 --dport 68 -j RETURN",
    "-6 {where} -p udp --dport 546 -j RETURN",
)
# A reset ends a connection at the other end too, so it must pass.
_OUT: Final = (
    f"{{where}} {_RESETS} -j RETURN",
    "{where} -p tcp -j REJECT --reject-with tcp-reset",
    "{where} -j REJECT",
)
# Packets of a living connection must reach it, or it would never learn that it is to end.
_IN: Final = (
    "{where} -p tcp --syn -j REJECT --reject-with tcp-reset",
    "{where} -p udp -j REJECT",
)
# Names of interfaces that can be barred: iptables takes them for one word, not for an option, and
# not (+) for a pattern.
INTERFACE: Final = re.compile(r"(?!-)[0-9A-Za-z_.@:+{}-]{0,14}[0-9A-Za-z_.@:{}-]")


def hold_answers(on: bool) -> list[Chain]:
    """Put in the chains that hold answers and bound users' questions, and return them.

    Without `on` both are empty. OSError: iptables' own words.
    """
    chains = [
        Chain("mangle", "CEDOS_ANSWERS", "INPUT", _HELD if on else ()),
        Chain("mangle", "CEDOS_ASKED", "OUTPUT", _ASKED if on else ()),
    ]
    try:
        iptables.put_in(chains)
    except OSError as error:  # this kernel may lack what only the bound needs (xt_owner)
        chains = chains[:1]
        iptables.put_in(chains)
        _log.warning("users' questions have no limit", why=error.strerror)
    return chains


def bar(interfaces: Collection[str]) -> None:
    """Bar these interfaces and no others; none: all are open. Errors: OSError, iptables' own words."""
    iptables.put_in(barring_chains(interfaces))


def barring_chains(interfaces: Collection[str]) -> list[Chain]:
    """Return the chains that bar these interfaces on this host."""

    def rules(*of: tuple[str, tuple[str, ...]]) -> Iterator[str]:
        for interface in interfaces:
            for side, lines in of:
                for line in lines:
                    # Braces are nothing special in a name.
                    name = interface.replace("{", "{{").replace("}", "}}")
                    yield line.format(where=f"{side} {name}")

    return [
        Chain("filter", "CEDOS_BAR_OUT", "OUTPUT", tuple(rules(("-o", _HOSTS_OUT), ("-o", _OUT)))),
        Chain("filter", "CEDOS_BAR_IN", "INPUT", tuple(rules(("-i", _HOSTS_IN), ("-i", _IN)))),
        Chain("filter", "CEDOS_BAR_FWD", "FORWARD", tuple(rules(("-o", _OUT), ("-i", _IN)))),
    ]
