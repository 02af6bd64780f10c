"""The doctor's findings about the kernel: MPTCP, observation of flows, rescue, barring."""

import ctypes
import os
import socket
import threading
from ipaddress import ip_network
from typing import Final

from cedos.doctor import Files, Finding, limited, missing, ok
from cedos.errors import HostError
from cedos.host.steer.journal_records import RETRANSMISSION, TCP_RTO_MAX
from cedos.host.steer.kernel import first_timeout, ipset
from cedos.host.steer.kernel.egress_wall import EgressWall
from cedos.host.steer.kernel.rule_filter import element
from cedos.kernel import conntrack, privileges
from cedos.kernel.bpf import AttachType, ProgramType, instruction, load, root_cgroup
from cedos.kernel.mptcp import IPPROTO_MPTCP
from cedos.kernel.netlink import NETLINK_NETFILTER, Requester
from cedos.kernel.sysctl import MPTCP_ENABLED, MPTCP_PATH_MANAGER, MPTCP_PM_TYPE

_NO_MOVES: Final = "living connections cannot be moved; new ones still get their network"
_MPTCP_KERNEL: Final = "a kernel from 5.19 with CONFIG_MPTCP"


def mptcp(files: Files) -> Finding:
    enabled = files.sysctl(MPTCP_ENABLED)
    if enabled is None:
        return missing("MPTCP", "not in this kernel", _NO_MOVES, _MPTCP_KERNEL)
    if enabled == "0":
        remedy = f"sysctl {MPTCP_ENABLED}=1"
        return missing("MPTCP", "compiled in, but disabled", _NO_MOVES, remedy)
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return missing("MPTCP", f"refused: {error.strerror}", _NO_MOVES, _MPTCP_KERNEL)
    return ok("MPTCP", "compiled in and enabled")


def path_manager(files: Files, daemon_runs: bool) -> Finding:
    """Check that the userspace path manager exists and that no other program uses it."""
    topic = "MPTCP path manager"
    manager = files.sysctl(MPTCP_PATH_MANAGER) or files.sysctl(MPTCP_PM_TYPE)
    if manager is None:
        return missing(
            topic, "only the kernel's own", "single connections cannot be moved", _MPTCP_KERNEL
        )
    if manager in {"1", "userspace"} and not daemon_runs:
        return limited(
            topic,
            "userspace, though no cedos daemon runs",
            "another program (mptcpd?) may steer the same connections",
            "stop that program; if a cedos daemon was killed, run `cedos restore`",
        )
    return ok(
        topic,
        "userspace is available; in use: "
        + {"0": "kernel", "1": "userspace"}.get(manager, manager),
    )


_AS_ROOT: Final = "run it as root, or by the systemd unit (`cedos example unit`)"


def capabilities() -> Finding:
    """Check whether this process could be the daemon."""
    topic = "privileges"
    held = privileges.held_capabilities()
    absent = sorted(privileges.NEEDED.keys() - held)
    if not absent:
        return ok(topic, " and ".join(sorted(held)))
    return limited(
        topic,
        f"this process lacks {' and '.join(absent)}",
        "`cedos up` cannot be run by this user",
        _AS_ROOT,
    )


def connection_tracking(files: Files) -> Finding:
    """Check that connection tracking reports new plain TCP and UDP flows."""
    topic = "flows (conntrack)"
    lost = "new plain TCP and UDP flows are noticed late"
    events = files.sysctl("net.netfilter.nf_conntrack_events")
    if events is None:
        return limited(
            topic, "module nf_conntrack not loaded", lost, "modprobe nf_conntrack_netlink"
        )
    if events == "0":
        return limited(topic, "events are off", lost, "sysctl net.netfilter.nf_conntrack_events=1")
    if full := conntrack.describe_full_table(files.sysctl):
        return limited(topic, full, "all programs: their new connections fail")
    return ok(topic, "available")


def bpf(files: Files) -> Finding:
    """Check that small programs may be attached to the sockets of a cgroup."""
    topic = "BPF on cgroups"
    lost = "`cedos exec` cannot mark a program's connections"
    mounts = (files.read("/proc/self/mounts") or "").splitlines()
    if not any(line.split()[2:3] == ["cgroup2"] for line in mounts):
        return missing(
            topic, "no cgroup v2 is mounted", lost, "mount -t cgroup2 none /sys/fs/cgroup"
        )
    try:
        program = instruction(0xB7, 0, immediate=1) + instruction(0x95)
        os.close(load(program, ProgramType.CGROUP_SOCK_ADDR, AttachType.INET4_CONNECT))
    except PermissionError:
        return limited(topic, "needs root (CAP_BPF)", lost, "sudo cedos exec ...")
    except HostError as error:
        return missing(topic, str(error), lost)
    except OSError as error:
        return missing(topic, str(error.strerror), lost, "a kernel with CONFIG_CGROUP_BPF")
    return ok(topic, "available")


_NO_RESCUE: Final = "connections that start on a dead network fail after many seconds"
_LATE: Final = "first packets on a dead network are sent elsewhere after 1 s instead of 0.25 s"


def rescue() -> Finding:
    """Check that the packet filter can match single flows (ipset)."""
    topic = "rescue (ipset)"
    try:
        requester = Requester(NETLINK_NETFILTER)
        try:
            there = ipset.is_supported(requester)
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
        return missing(topic, str(error), _NO_RESCUE, "a kernel with CONFIG_NETFILTER")
    if not there:
        return missing(
            topic,
            "not in this kernel",
            _NO_RESCUE,
            "modprobe ip_set_hash_ipportip xt_set (CONFIG_IP_SET)",
        )
    return ok(topic, "available")


def early_rescue(files: Files) -> Finding:
    """Check that the kernel can be told to repeat first packets early."""
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
    """Check whether the retransmission time-out is bounded, and why not."""
    topic = "retransmission after an outage"
    late = "connections that an outage caught may wait as long again as the outage"
    now = {key: files.sysctl(key) for key in RETRANSMISSION}
    if now[TCP_RTO_MAX] is None:
        return limited(topic, f"this kernel has no {TCP_RTO_MAX}", late, "a kernel from 6.15")
    if daemon_runs and all(now[key] == ours for key, (_, ours) in RETRANSMISSION.items()):
        return ok(topic, f"after at most {now[TCP_RTO_MAX]} ms, while the daemon runs")
    own = [f"{key} = {now[key]}" for key, (usual, _) in RETRANSMISSION.items() if now[key] != usual]
    if own:
        return ok(topic, f"left alone, as these are not the kernel's defaults: {', '.join(own)}")
    if daemon_runs:
        return limited(topic, "the daemon does not bound it", late, "[steering] tcp = true")
    return ok(topic, "can be bounded while the daemon runs")


_CLONE_NEWNET: Final = 0x40000000
_NO_WALL: Final = (
    "a flush of the packet filter opens networks that a hard budget blocks, for tenths of a second;"
    " sockets that are bound to an interface pass rules"
)


def second_wall() -> Finding:
    """Test the second wall in a temporary network namespace."""
    topic = "budgets, rules (clsact)"
    errors: list[Exception] = []
    trying = threading.Thread(target=_try_wall, args=(errors,))
    trying.start()
    trying.join()
    if not errors:
        return ok(topic, "available")
    (error,) = errors
    if isinstance(error, PermissionError):
        return limited(topic, "cannot be tested without root", "it is not known", "run it as root")
    return limited(topic, str(error), _NO_WALL, "modprobe sch_ingress cls_bpf")


def _try_wall(errors: list[Exception]) -> None:
    """Run in a thread of its own, because that stays in the namespace."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        wall = EgressWall()
        try:
            if not wall.put_up(["lo"]):
                raise HostError("the filter does not stand")
            wall.forbid(socket.if_nametoindex("lo"), {element(ip_network("192.0.2.1"), None): True})
        finally:
            wall.close()
    except (OSError, HostError) as error:
        errors.append(error)
