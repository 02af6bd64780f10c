"""Kernel settings of an emulated host that no `ip` command makes: offloads, congestion control, NAT.

All settings are those of a namespace but one: the host's list of congestion controls from which
namespaces may choose. `use_cubic` changes that list under a lock, and restores it before it releases the
lock.
"""

import array
import fcntl
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace

_SIOCETHTOOL = 0x8946
# ETHTOOL_STSO, ETHTOOL_SGSO, ETHTOOL_SGRO (linux/ethtool.h)
_OFFLOADS = (0x1F, 0x24, 0x2C)
_CHECKSUMS = 0x17  # ETHTOOL_STXCSUM
_NETLINK_NETFILTER = 12
_CONNTRACK_DELETE = 0x0102  # NFNL_SUBSYS_CTNETLINK << 8 | IPCTNL_MSG_CT_DELETE
_REQUEST_ACK = 0x5

_ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
# The lock of the whole host, whatever runtime directories exist.
_LOCK = Path("/run/cedos-emu.lock")

# These keep one experiment from changing the next: without cached metrics, and without the hour for
# which the kernel turns MPTCP off after one lost SYN. Buffers are so large that they never limit a
# transfer.
_NO_BLACK_HOLES = {"net.mptcp.blackhole_timeout": "0"}  # from Linux 6.12 on
HOST_SYSCTLS = {
    "net.ipv4.tcp_no_metrics_save": "1",
    **_NO_BLACK_HOLES,
    "net.ipv4.tcp_rmem": "4096 131072 33554432",
    "net.ipv4.tcp_wmem": "4096 131072 33554432",
    "net.ipv4.conf.all.rp_filter": "2",
    "net.ipv4.conf.default.rp_filter": "2",
    # Mahimahi carries IPv4 only; without IPv6 no solicitations use up opportunities, or wake radios.
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
}
ROUTER_SYSCTLS = {
    "net.ipv4.ip_forward": "1",
    "net.ipv4.conf.all.rp_filter": "0",
    "net.ipv4.conf.default.rp_filter": "0",
    "net.ipv6.conf.all.disable_ipv6": "1",
    "net.ipv6.conf.default.disable_ipv6": "1",
}
# The NAT accepts packets outside a flow's window, but no flow whose beginning it did not see.
NAT_SYSCTLS = {
    "net.netfilter.nf_conntrack_tcp_be_liberal": "1",
    "net.netfilter.nf_conntrack_tcp_loose": "0",
}


def write_sysctls(values: dict[str, str]) -> None:
    """Write sysctls in the namespace that the calling thread is in; one that is absent is skipped."""
    for key, value in values.items():
        file = Path("/proc/sys") / key.replace(".", "/")
        with suppress(FileNotFoundError):
            file.write_text(f"{value}\n")


def forget_black_holes(namespace: Namespace) -> None:
    """Let MPTCP go on after a lost SYN, where the kernel would pause it for an hour."""
    with namespace.entered():
        write_sysctls(_NO_BLACK_HOLES)


def use_cubic(namespaces: Iterable[Namespace]) -> None:
    """Make cubic the congestion control of namespaces.

    A namespace may choose only from the host's list of allowed ones, but keeps its choice when the list
    changes. So cubic is added to the list for an instant and removed again, by one testbed at a time.
    """
    with _LOCK.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # If a process was killed in that instant, the lock file still holds the former list.
        lock.seek(0)
        allowed = lock.read() or _ALLOWED.read_text()
        lock.truncate(0)
        widen = "cubic" not in allowed.split()
        try:
            if widen:
                lock.write(allowed)
                lock.flush()
                _allow(f"{allowed.strip()} cubic\n")
            for namespace in namespaces:
                namespace.sysctl("net.ipv4.tcp_congestion_control", "cubic")
        finally:
            if widen:
                _ALLOWED.write_text(allowed)
                lock.truncate(0)


def _allow(congestion_controls: str) -> None:
    try:
        _ALLOWED.write_text(congestion_controls)
    except OSError as error:
        raise EmulationError(f"this kernel has no cubic congestion control: {error}") from error


def without_offloads(*interfaces: str) -> None:
    """Turn off segmentation and receive offload on interfaces of this namespace."""
    for interface in interfaces:
        _turn_off(interface, *_OFFLOADS)


def without_checksum_offload(interface: str) -> None:
    """Let the kernel compute checksums itself, for programs that read an interface's packets."""
    _turn_off(interface, _CHECKSUMS)


def _turn_off(interface: str, *commands: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in commands:
            value = array.array("I", [command, 0])
            address, _ = value.buffer_info()
            fcntl.ioctl(control, _SIOCETHTOOL, struct.pack("16sP16x", interface.encode(), address))


def forget_connections() -> None:
    """Empty the connection tracking (and so the NAT) of the namespace the calling thread is in.

    Packets that still come for earlier connections are then refused.
    """
    header = struct.pack("=IHHIIBBH", 20, _CONNTRACK_DELETE, _REQUEST_ACK, 1, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as netfilter:
        netfilter.settimeout(5)
        netfilter.send(header)
        (error,) = struct.unpack_from("=i", netfilter.recv(4096), 16)
    if error:
        raise EmulationError(f"cannot empty the connection tracking: error {-error}")
