"""The two parts of a host that steering takes into its hands, each only where the host has it."""

from collections.abc import Callable
from typing import Final

from cedos.errors import HostError
from cedos.steer.journal import Record
from cedos.steer.kernel.interface import Kernel
from cedos.steer.undo import CONNECTIONS, FILTER, sysctl_record

# The later one's name first: a kernel that has both keeps them in step.
_PATH_MANAGERS: Final = (("net.mptcp.path_manager", "userspace"), ("net.mptcp.pm_type", "1"))
_ACCOUNTING: Final = "net.netfilter.nf_conntrack_acct"

Append = Callable[[Record], None]


def change_sysctl(kernel: Kernel, append: Append, key: str, after: str) -> None:
    """Sets a sysctl, the way back on the disk first; one that this kernel lacks is left out."""
    before = kernel.read_sysctl(key)
    if before is not None and before.split() != after.split():
        append(sysctl_record(key, before, after))
        kernel.write_sysctl(key, after)


def take_path_manager(kernel: Kernel, append: Append) -> None:
    """Takes the management of new MPTCP connections' paths into our hands.

    Raises:
        HostError: this host cannot do it, or somebody else does; nothing is changed then.
    """
    lost = "living connections cannot be moved; new ones still get their network"
    enabled = kernel.read_sysctl("net.mptcp.enabled")
    if enabled is None:
        raise HostError(f"this kernel has no MPTCP, so {lost}")
    if enabled == "0":
        raise HostError(f"MPTCP is disabled (`sysctl net.mptcp.enabled=1` enables it), so {lost}")
    for key, after in _PATH_MANAGERS:
        before = kernel.read_sysctl(key)
        if before is None:
            continue
        if before == after:
            raise HostError(
                f"{key} is {before} already: another program (mptcpd?) manages the paths of MPTCP"
                f" connections, so {lost}; where there is none, `sysctl {key}="
                f"{'kernel' if after == 'userspace' else 0}` makes room"
            )
        append(CONNECTIONS)
        change_sysctl(kernel, append, key, after)
        return
    raise HostError(f"this kernel's MPTCP paths cannot be managed by a program, so {lost}")


def foreign_endpoints(kernel: Kernel) -> str | None:
    """Says who else writes MPTCP endpoints: we never do, so every one is somebody else's."""
    there = kernel.endpoints()
    if not there:
        return None
    listed = ", ".join(str(endpoint.address) for endpoint in there)
    return (
        f"another program (NetworkManager?) writes MPTCP endpoints: {listed}; new connections do"
        " not use them while cedos runs"
    )


def track_flows(kernel: Kernel, append: Append) -> None:
    """Makes the kernel track connections and count their bytes, which the monitor lives on.

    Raises:
        HostError: there is no iptables, or it refuses.
    """
    append(FILTER)
    try:
        kernel.track_flows()
    except OSError as error:
        raise HostError(
            f"iptables cannot be used ({error.strerror}), so flows are not counted"
        ) from error
    change_sysctl(kernel, append, _ACCOUNTING, "1")
