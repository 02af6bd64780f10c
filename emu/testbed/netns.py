"""Network namespaces: made, entered, and removed without a trace.

The testbed changes the kernel's settings only inside namespaces, so that the host's own networking stays
as it was.

Kernel settings of an emulated host that no `ip` command makes: offloads, congestion control, NAT.

All settings are those of a namespace but one: the host's list of congestion controls from which
namespaces may choose. `use_cubic` changes that list under a lock, and restores it before it releases the
lock.
"""

import array
import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cedos.errors import EmulationError

RUN = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
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


def _setns(fd: int) -> None:
    if _libc.setns(fd, _CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise EmulationError(f"cannot enter a network namespace: {os.strerror(code)} (run as root)")


@contextmanager
def entered(path: Path) -> Iterator[None]:
    """Let the calling thread run the block inside the namespace at `path`.

    Sockets that the block opens belong to the namespace for good. Never await inside the block: other
    tasks of the thread would run in the namespace, too.
    """
    # Remember this thread's namespace, enter the other one, and come back whatever happens.
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _setns(here)
    finally:
        os.close(here)


class Namespace:
    """A network namespace with a name, as `ip netns` has them."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = RUN / name

    @classmethod
    def create(cls, name: str) -> "Namespace":
        """Make the namespace, with its loopback up. EmulationError: the kernel refuses."""
        namespace = cls(name)
        _ip("netns", "add", name)
        namespace.ip("link", "set", "lo", "up")
        return namespace

    @classmethod
    def attach(cls, name: str, pid: int) -> "Namespace":
        _ip("netns", "attach", name, str(pid))
        return cls(name)

    def remove(self) -> None:
        """Remove the name; the kernel frees the namespace when its last process is gone."""
        if self.path.exists():
            _ip("netns", "del", self.name)

    def ip(self, *arguments: str) -> str:
        """Run `ip` inside and return what it printed."""
        return _ip("-n", self.name, *arguments)

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that runs `arguments` inside (by nsenter, which keeps /sys)."""
        return ["nsenter", f"--net={self.path}", "--", *arguments]

    def run(
        self, *arguments: str, check: bool = True, timeout_s: float = 30.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end; with `check`, a failure is an EmulationError."""
        return _run(self.command(*arguments), check=check, timeout_s=timeout_s)

    def popen(self, *arguments: str, **options: Any) -> "subprocess.Popen[Any]":
        return subprocess.Popen(self.command(*arguments), **options)

    @contextmanager
    def entered(self) -> Iterator[None]:
        with entered(self.path):
            yield

    def sysctl(self, key: str, value: str | int | None = None) -> str:
        """Read a network sysctl inside, or with `value` write it; return its content then."""
        file = Path("/proc/sys") / key.replace(".", "/")
        with self.entered():
            try:
                if value is not None:
                    file.write_text(f"{value}\n")
                return file.read_text().strip()
            except OSError as error:
                raise EmulationError(f"sysctl {key}={value} in {self.name}: {error}") from error


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments]).stdout


def _run(
    command: Sequence[str], *, check: bool = True, timeout_s: float = 30.0
) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=timeout_s
        )
    except FileNotFoundError as error:
        raise EmulationError(f"{error.filename} is not installed; ./run installs it") from error
    except subprocess.TimeoutExpired as error:
        raise EmulationError(f"{' '.join(command)}: no end after {timeout_s:g} s") from error
    if check and done.returncode != 0:
        raise EmulationError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done


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
