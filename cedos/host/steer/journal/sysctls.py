"""The sysctls that cedos changes, and no others: what each may hold, and what cedos gives it.

A journal may say anything. Only these keys, with values of their kind, are ever written.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from cedos.kernel.sysctl import MPTCP_PATH_MANAGER, MPTCP_PM_TYPE

CONNTRACK_ACCOUNTING: Final = "net.netfilter.nf_conntrack_acct"
MPTCP_CLOSE_TIMEOUT: Final = "net.mptcp.close_timeout"
MPTCP_FALLBACK: Final = "net.mptcp.syn_retrans_before_tcp_fallback"
TCP_RMEM: Final = "net.ipv4.tcp_rmem"
TCP_RTO_MAX: Final = "net.ipv4.tcp_rto_max_ms"
TCP_RETRIES: Final = "net.ipv4.tcp_retries2"
TCP_SYN_RETRIES: Final = "net.ipv4.tcp_syn_retries"
TCP_ORPHAN_RETRIES: Final = "net.ipv4.tcp_orphan_retries"

# The daemon's values of `tcp_rmem[2]` lie on these steps, which tells them from others' values.
WINDOW_STEPS_PER_DOUBLING: Final = 4

# The sysctls of the bound of the retransmission time-out: the kernel's default of each, and ours.
#
# The kernel counts retransmissions, not seconds. With shorter time-outs it has to send more of
# them before it gives up a connection, one that opens, or one that its program has closed
# (`docs/decisions/caught.md`). The values are ones that a person hardly sets, so that they are
# known as ours without the journal.
RETRANSMISSION: Final[Mapping[str, tuple[str, str]]] = {
    TCP_RTO_MAX: ("120000", "1990"),
    TCP_RETRIES: ("15", "254"),
    TCP_SYN_RETRIES: ("6", "63"),
    TCP_ORPHAN_RETRIES: ("0", "53"),
}

_MOST: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")


@dataclass(frozen=True, slots=True)
class ChangedSysctl:
    """`valid`: it can be a host's own value; `ours`: one that cedos gives.

    `usual`: what it was before is known without the journal; None: it is not.
    """

    valid: Callable[[str], bool]
    ours: Callable[[str], bool]
    usual: str | None = None


def _up_to(most: int) -> Callable[[str], bool]:
    return lambda value: bool(_NUMBER.fullmatch(value)) and int(value) <= most


def _path_manager(value: str) -> bool:
    return bool(_NAME.fullmatch(value))


def _buffers(value: str) -> bool:
    words = value.split()
    numbers = [int(word) for word in words if _NUMBER.fullmatch(word)]
    return len(words) == len(numbers) == 3 and min(numbers) > 0 and max(numbers) <= _MOST


def _bounded_buffers(value: str) -> bool:
    if not _buffers(value):
        return False
    _, initial, most = map(int, value.split())
    steps = round(math.log2(most) * WINDOW_STEPS_PER_DOUBLING)
    return most in (initial, int(2 ** (steps / WINDOW_STEPS_PER_DOUBLING)))


# The sysctls that cedos changes. The path manager's is known without a journal: without a daemon
# no program steers it.
CHANGED: Final[Mapping[str, ChangedSysctl]] = {
    MPTCP_PATH_MANAGER: ChangedSysctl(_path_manager, "userspace".__eq__, "kernel"),
    MPTCP_PM_TYPE: ChangedSysctl(_up_to(255), "1".__eq__, "0"),
    MPTCP_CLOSE_TIMEOUT: ChangedSysctl(_up_to(_MOST), "1".__eq__),
    MPTCP_FALLBACK: ChangedSysctl(_up_to(255), "6".__eq__),
    CONNTRACK_ACCOUNTING: ChangedSysctl(_up_to(1), "1".__eq__),
    TCP_RMEM: ChangedSysctl(_buffers, _bounded_buffers),
    **{
        key: ChangedSysctl(_up_to(_MOST), ours.__eq__, usual)
        for key, (usual, ours) in RETRANSMISSION.items()
    },
}


def valid(key: str, value: str) -> bool:
    """Return whether cedos changes this sysctl, and a host can have this value of it."""
    return key in CHANGED and CHANGED[key].valid(value)
