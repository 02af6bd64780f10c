"""The packet filter's rules for rescued flows: translate their address, refuse late answers.

Two chains, through the real `iptables` and `ip6tables`, put in once: a rescue itself only changes the
sets that they ask (`ipset`). `CEDOS_NAT` gives a rescued flow the address of the interface that
it leaves by. `CEDOS_LATE` stands before connection tracking, where an answer over the rescuing network
still bears that network's address: what comes there to the socket's own address comes from the network
that the flow was rescued from, and is dropped, or two connections would live. Only the flags that
could begin or end one are examined, so that other packets cost nothing.
"""

from typing import Final

from cedos.host.steer.kernel import iptables
from cedos.host.steer.kernel.ipset import NAMES
from cedos.host.steer.kernel.iptables import Chain

TABLES: Final = ("raw", "nat")
_LATE: Final = "-m set --match-set {set} dst,dst,src -j DROP"
CHAINS: Final = (
    Chain(
        "raw",
        "CEDOS_LATE",
        "PREROUTING",
        tuple(f"-p tcp --tcp-flags {flag} {flag} {_LATE}" for flag in ("SYN", "RST")),
    ),
    Chain(
        "nat",
        "CEDOS_NAT",
        "POSTROUTING",
        ("-p tcp -m set --match-set {set} src,src,dst -j MASQUERADE",),
    ),
)


def versions() -> tuple[int, ...]:
    return tuple(iptables.programs())


def put_in() -> None:
    """Put the chains in; the sets must be there. Errors: OSError with iptables' own words."""
    iptables.put_in(CHAINS, NAMES)


def take_out() -> bool:
    """Take them out; whether they were there. Errors: OSError."""
    return iptables.remove(*TABLES)


def present() -> bool:
    return iptables.present(*TABLES)
