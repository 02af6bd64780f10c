"""The packet filter's rules that hold answers to look-ups until the daemon has read them.

A user's rule for a name is kept by routes to the addresses of the name. A program must not have such an
address before its route stands: so an answer waits in a queue (`cedos.kernel.packet_queue`), usually for
a millisecond. Without a daemon at the queue all answers pass. The chain is in the table `mangle`: the
user's own firewall is asked about answers afterwards, as always. What connection tracking finds invalid
(a wrong checksum, a number of TCP out of the window) is no answer to a program, and is dropped.
"""

from typing import Final

from cedos.host.steer.kernel.iptables import Chain

QUEUE: Final = 7300
_HELD: Final = tuple(
    f"-p {protocol} --sport 53 -m conntrack {state}"
    for protocol in ("udp", "tcp")
    for state in (
        "--ctstate INVALID -j DROP",
        f"! --ctstate NEW -j NFQUEUE --queue-num {QUEUE} --queue-bypass",
    )
)


def chain(*, holds: bool) -> Chain:
    """Return the chain that holds answers, or none."""
    return Chain("mangle", "CEDOS_ANSWERS", "INPUT", _HELD if holds else ())
