"""Takes the paths of new MPTCP connections into our hands, where this host lets us."""

from typing import Final

from cedos.errors import HostError
from cedos.kernel.sysctl import MPTCP_ENABLED, MPTCP_PATH_MANAGER, MPTCP_PM_TYPE
from cedos.steer.journal.records import CONNECTIONS, Append, change_sysctl
from cedos.steer.kernel.interface import SteeringKernel

# The later one's name first: a kernel that has both keeps them in step.
_PATH_MANAGERS: Final = ((MPTCP_PATH_MANAGER, "userspace"), (MPTCP_PM_TYPE, "1"))


def take_path_manager(kernel: SteeringKernel, append: Append) -> None:
    """Take the path manager over. HostError: impossible, or another program has it."""
    lost = "Living connections cannot be moved; new ones are still steered"
    enabled = kernel.read_sysctl(MPTCP_ENABLED)
    if enabled is None:
        raise HostError(f"this kernel has no MPTCP. {lost}")
    if enabled == "0":
        raise HostError(f"MPTCP is disabled (`sysctl {MPTCP_ENABLED}=1` enables it). {lost}")
    for key, after in _PATH_MANAGERS:
        before = kernel.read_sysctl(key)
        if before is None:
            continue
        if before == after:
            raise HostError(
                f"another program (mptcpd?) manages the paths of MPTCP connections: {key} is {before}"
                f" already. {lost}. If there is no such program, run `sysctl {key}="
                f"{'kernel' if after == 'userspace' else 0}`"
            )
        append(CONNECTIONS)
        change_sysctl(kernel, append, key, after)
        return
    raise HostError(f"this kernel's MPTCP paths cannot be managed by a program. {lost}")
