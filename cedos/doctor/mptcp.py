"""MPTCP on this host: compiled, enabled, steerable, not switched off by a black hole, not shared."""

import errno
import re
import socket
from typing import Final

from cedos.doctor.finding import Files, Finding, limited, missing, ok
from cedos.kernel import generic_netlink
from cedos.kernel.mptcp_netlink import FAMILY_NAME, GET_ADDRESS, parse_endpoint
from cedos.kernel.mptcp_socket import IPPROTO_MPTCP, mptcp_info
from cedos.kernel.sysctl import MPTCP_ENABLED, MPTCP_PATH_MANAGER, MPTCP_PM_TYPE

_NO_MOVES: Final = "living connections cannot be moved; new ones still get their network"
_KERNEL: Final = "a kernel from 5.19 with CONFIG_MPTCP"


def kernel(release: str) -> Finding:
    """Whether the kernel is recent enough; `release` as `uname -r` says it."""
    match = re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version >= (5, 19):
        return ok("kernel", release)
    lost = "per-connection steering of MPTCP" if version >= (5, 6) else _NO_MOVES
    return limited("kernel", release, lost, _KERNEL)


def available(files: Files) -> Finding:
    enabled = files.sysctl(MPTCP_ENABLED)
    if enabled is None:
        return missing("MPTCP", "not in this kernel", _NO_MOVES, _KERNEL)
    if enabled == "0":
        remedy = f"sysctl {MPTCP_ENABLED}=1"
        return missing("MPTCP", "compiled in, but disabled", _NO_MOVES, remedy)
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return missing("MPTCP", f"refused: {error.strerror}", _NO_MOVES, _KERNEL)
    return ok("MPTCP", "compiled in and enabled")


def path_manager(files: Files, daemon_runs: bool) -> Finding:
    """Whether the userspace path manager is there, and whether somebody else has taken it."""
    topic = "MPTCP path manager"
    manager = files.sysctl(MPTCP_PATH_MANAGER) or files.sysctl(MPTCP_PM_TYPE)
    if manager is None:
        return missing(
            topic, "only the kernel's own", "single connections cannot be moved", _KERNEL
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


def black_hole(files: Files) -> Finding | None:
    """Whether the kernel has switched MPTCP off after a connection that died; the loopback shows it."""
    timeout = files.sysctl("net.mptcp.blackhole_timeout")
    if files.sysctl(MPTCP_ENABLED) != "1" or timeout is None:
        return None
    topic = "MPTCP black hole"
    lives = _mptcp_over_loopback()
    if lives is None:
        return limited(
            topic, "cannot be tested on the loopback", "it is not known whether MPTCP is paused"
        )
    if lives:
        return ok(
            topic,
            "not detected"
            if timeout == "0"
            else f"not detected; if it is, MPTCP pauses for {timeout} s",
        )
    return limited(
        topic,
        "detected: new connections are plain TCP for now",
        _NO_MOVES,
        f"sysctl net.mptcp.blackhole_timeout={timeout} (writing it forgets the black hole)",
    )


def _mptcp_over_loopback() -> bool | None:
    try:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as listening,
            socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP) as connecting,
        ):
            listening.bind(("127.0.0.1", 0))
            listening.listen(1)
            connecting.settimeout(1.0)
            connecting.connect(listening.getsockname())
            with listening.accept()[0]:
                info = mptcp_info(connecting)
    except OSError as error:
        # A connection that fell back to TCP has no MPTCP_INFO on newer kernels.
        return False if error.errno in {errno.EOPNOTSUPP, errno.ENOPROTOOPT} else None
    return None if info is None else not info.fallback


async def endpoints(files: Files, daemon_runs: bool) -> Finding | None:
    """Whether other programs write MPTCP endpoints into the kernel (NetworkManager does).

    They are for the kernel's own path manager; a daemon that runs is in its place.
    """
    if files.sysctl(MPTCP_ENABLED) is None:
        return None
    topic = "MPTCP endpoints"
    try:
        answers = await generic_netlink.dump(FAMILY_NAME, GET_ADDRESS)
    except PermissionError:
        return limited(
            topic,
            "cannot be seen without CAP_NET_ADMIN",
            "other programs that manage them stay unseen",
            "use sudo",
        )
    except (OSError, LookupError) as error:
        return limited(
            topic, f"cannot be seen: {error}", "other programs that manage them stay unseen"
        )
    if not answers:
        return ok(topic, "none, so no other program manages them")
    shown = ", ".join(str(each.address) for each in filter(None, map(parse_endpoint, answers)))
    unused = "not used while the daemon runs" if daemon_runs else "in use while no daemon runs"
    return ok(topic, f"{len(answers)} of another program (NetworkManager?), {unused}: {shown}")
