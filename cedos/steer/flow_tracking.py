"""Makes the kernel track flows and count their bytes, which the monitor lives on."""

from cedos.errors import HostError
from cedos.steer.journal.records import FILTER, Append, change_sysctl
from cedos.steer.journal.sysctls import CONNTRACK_ACCOUNTING
from cedos.steer.kernel.interface import SteeringKernel


def track_flows(kernel: SteeringKernel, append: Append) -> None:
    """Raise HostError where there is no iptables, or it refuses."""
    append(FILTER)
    try:
        kernel.track_flows()
    except OSError as error:
        raise HostError(
            f"iptables cannot be used ({error.strerror}), so flows are not counted"
        ) from error
    change_sysctl(kernel, append, CONNTRACK_ACCOUNTING, "1")
