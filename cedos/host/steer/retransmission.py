"""Bounds the retransmission time-out of new TCP sockets, so that they go on soon after an outage.

The time-out doubles with each retransmission, up to two minutes: after an outage of 14 s the next
retransmission may be 12 s away. Linux 6.15 and newer can bound it.
"""

from cedos.host.steer.journal.records import Append, change_sysctl
from cedos.host.steer.journal.sysctls import RETRANSMISSION, TCP_RTO_MAX
from cedos.host.steer.kernel.interface import SteeringKernel


def bound_retransmission(kernel: SteeringKernel, append: Append) -> bool:
    """Set the bound and what keeps the kernel's patience; return whether it was set.

    A kernel without the bound, and one in which the user has set any of these sysctls, is left alone.
    """
    usual = all(kernel.read_sysctl(key) == default for key, (default, _) in RETRANSMISSION.items())
    if not usual:
        return False
    # The bound is set last: no connection is given up early in between.
    patience = [key for key in RETRANSMISSION if key != TCP_RTO_MAX]
    for key in (*patience, TCP_RTO_MAX):
        change_sysctl(kernel, append, key, RETRANSMISSION[key][1])
    return True
