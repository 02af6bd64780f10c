"""Whether first packets into a dead network can be rescued, and what an outage caught goes on soon."""

from typing import Final

from cedos.doctor.finding import Files, Finding, limited, missing, ok
from cedos.errors import HostError
from cedos.kernel.bpf.programs import root_cgroup
from cedos.kernel.netlink import NETLINK_NETFILTER, Requester
from cedos.steer.journal.sysctls import RETRANSMISSION, TCP_RTO_MAX
from cedos.steer.kernel import first_timeout, ipset

_LOST: Final = "connections that start on a dead network fail after many seconds"
_LATE: Final = "first packets on a dead network are sent elsewhere after 1 s instead of 0.25 s"
_AS_ROOT: Final = "run it as root, or by the systemd unit (`cedos example unit`)"


def translation() -> Finding:
    """Whether the packet filter can be asked for single flows (ipset)."""
    topic = "rescue (ipset)"
    try:
        requester = Requester(NETLINK_NETFILTER)
        try:
            there = ipset.supported(requester)
        finally:
            requester.close()
    except PermissionError:
        return limited(
            topic,
            "cannot be tested without CAP_NET_ADMIN",
            "it is not known whether first packets can be rescued",
            _AS_ROOT,
        )
    except (OSError, HostError) as error:
        return missing(topic, str(error), _LOST, "a kernel with CONFIG_NETFILTER")
    if not there:
        return missing(
            topic,
            "not in this kernel",
            _LOST,
            "modprobe ip_set_hash_ipportip xt_set (CONFIG_IP_SET)",
        )
    return ok(topic, "available")


def early(files: Files) -> Finding:
    """Whether the kernel can be told to repeat first packets early."""
    topic = "early rescue (BPF sockops)"
    try:
        root_cgroup(files.read("/proc/self/mounts") or "")
        first_timeout.try_out()
    except PermissionError:
        return limited(topic, "needs CAP_BPF", _LATE, _AS_ROOT)
    except HostError as error:
        return limited(topic, str(error), _LATE, "mount -t cgroup2 none /sys/fs/cgroup")
    except OSError as error:
        return limited(
            topic,
            f"the kernel refuses the program: {error.strerror}",
            _LATE,
            "a kernel from 5.15 with CONFIG_CGROUP_BPF",
        )
    return ok(topic, "available")


def retransmission(files: Files, daemon_runs: bool) -> Finding:
    """Tell whether the retransmission time-out is bounded, or who keeps the daemon from it."""
    topic = "retransmission after an outage"
    late = "what an outage caught goes on after up to as long again as the outage was"
    now = {key: files.sysctl(key) for key in RETRANSMISSION}
    if now[TCP_RTO_MAX] is None:
        return limited(topic, f"this kernel has no {TCP_RTO_MAX}", late, "a kernel from 6.15")
    if daemon_runs and all(now[key] == ours for key, (_, ours) in RETRANSMISSION.items()):
        return ok(topic, f"after at most {now[TCP_RTO_MAX]} ms, while the daemon runs")
    own = [f"{key} = {now[key]}" for key, (usual, _) in RETRANSMISSION.items() if now[key] != usual]
    if own:
        return ok(topic, f"left alone, as these are not the kernel's defaults: {', '.join(own)}")
    if daemon_runs:
        return limited(
            topic, "the daemon does not bound it", late, "[steering] retransmission = true"
        )
    return ok(topic, "can be bounded while the daemon runs")
