"""Whether this host can be observed: flows, first packets, pings, radios."""

import os
import socket
from pathlib import Path
from typing import Final

from cedos.config import Config
from cedos.doctor.finding import Files, Finding, limited, missing, ok
from cedos.errors import CedosError, HostError
from cedos.kernel import generic_netlink, privileges, sock_diag
from cedos.kernel.bpf.programs import AttachType, ProgramType, instruction, load
from cedos.kernel.netlink import NETLINK_SOCK_DIAG, AsyncRequester
from cedos.profiler.capture.packet_socket import open_capture

_AS_ROOT: Final = "run it as root, or by the systemd unit (`cedos example unit`)"


def capabilities() -> Finding:
    """Whether this very process could be the daemon."""
    topic = "privileges"
    held = privileges.held()
    absent = sorted(privileges.NEEDED.keys() - held)
    if not absent:
        return ok(topic, " and ".join(sorted(held)))
    return limited(
        topic,
        f"this process lacks {' and '.join(absent)}",
        "`cedos up` cannot be run by this user",
        _AS_ROOT,
    )


async def flows() -> Finding:
    """Whether sock_diag tells the living flows; MPTCP tokens come with it."""
    topic = "flows (sock_diag)"
    lost = "living flows are not seen; new connections are still steered"
    requester = AsyncRequester(NETLINK_SOCK_DIAG)
    try:
        answers = await requester.dump(
            sock_diag.SOCK_DIAG_BY_FAMILY, sock_diag.flows_request(socket.AF_INET)
        )
    except OSError as error:
        return missing(topic, str(error.strerror), lost, "a kernel with CONFIG_INET_DIAG")
    finally:
        requester.close()
    return ok(topic, f"available; {len(answers)} TCP over IPv4 now")


def connection_tracking(files: Files) -> Finding:
    """Whether connection tracking tells the beginning of plain TCP and UDP flows."""
    topic = "flows (conntrack)"
    lost = "new plain TCP and UDP flows are noticed late"
    events = files.sysctl("net.netfilter.nf_conntrack_events")
    if events is None:
        return limited(
            topic, "module nf_conntrack not loaded", lost, "modprobe nf_conntrack_netlink"
        )
    if events == "0":
        return limited(topic, "events are off", lost, "sysctl net.netfilter.nf_conntrack_events=1")
    return ok(topic, "available")


def packets() -> Finding:
    topic = "first packets (AF_PACKET)"
    lost = "sizes are guessed, not read from HTTP and TLS"
    try:
        # Protocol 0 receives nothing: looking must not cost the host a copy of every packet.
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
    except PermissionError:
        return limited(topic, "needs CAP_NET_RAW", lost, _AS_ROOT)
    except OSError as error:
        return missing(topic, str(error.strerror), lost, "a kernel with CONFIG_PACKET")
    return ok(topic, "available")


def ping(files: Files, groups: frozenset[int] | None = None) -> Finding:
    topic = "ping"
    if "CAP_NET_RAW" in privileges.held():
        return ok(topic, "allowed by CAP_NET_RAW")
    allowed = files.sysctl("net.ipv4.ping_group_range") or "1 0"
    low, high = (int(bound) for bound in allowed.split()[:2])
    mine = frozenset({os.getegid(), *os.getgroups()}) if groups is None else groups
    if any(low <= group <= high for group in mine):
        return ok(topic, f"allowed by net.ipv4.ping_group_range {low} to {high}")
    return limited(
        topic,
        "needs CAP_NET_RAW, or a group within net.ipv4.ping_group_range",
        "round-trip times are known only where flows show them",
        _AS_ROOT,
    )


async def radio(files: Files) -> Finding:
    topic = "Wi-Fi signal (nl80211)"
    lost = "signal strength and link speed of Wi-Fi"
    try:
        await generic_netlink.family("nl80211")
    except LookupError:
        return missing(topic, "not in this kernel, or no radio", lost)
    except OSError as error:
        return missing(topic, str(error.strerror), lost)
    radios = sorted(path.name for path in _entries(files.path("/sys/class/ieee80211")))
    if not radios:
        return limited(topic, "available, but there is no radio", lost)
    return ok(topic, ", ".join(radios))


def bpf(files: Files) -> Finding:
    """Whether small programs may be attached to a cgroup's sockets."""
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


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def lookups(files: Files, config: Config) -> Finding:
    """What becomes of look-ups where a network's resolver says nothing."""
    topic = "look-ups"
    servers = [
        words[1]
        for line in (files.read("/etc/resolv.conf") or "").splitlines()
        if len(words := line.split()) > 1 and words[0] == "nameserver"
    ]
    if servers and all(each.startswith("127.0.0.5") for each in servers):
        return ok(topic, "systemd-resolved asks the resolvers of all networks by itself")
    lost = "where a network's resolver says nothing, each look-up takes five seconds or fails"
    if not config.steering.lookups:
        return limited(topic, "fail over to no other network", lost, "[steering] lookups = true")
    try:
        open_capture().close()
    except CedosError as error:
        return limited(topic, str(error), lost, "run the daemon with CAP_NET_RAW")
    return ok(topic, "answered over another network where a resolver says nothing for 0.3 s")
