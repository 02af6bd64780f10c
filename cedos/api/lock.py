"""Locks: one daemon per runtime directory, and one steering daemon per network namespace.

Two daemons that steer one namespace would undo each other's changes. Therefore the daemon holds
two locks. It locks the pid file in the runtime directory with `flock`. It also listens on a unix
socket with an abstract name. Abstract names belong to the network namespace, so a second daemon
there is refused even if it has other directories, and daemons of other namespaces are not. The
kernel releases both locks when the process dies.
"""

import fcntl
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from cedos.config.directories import directories
from cedos.errors import AlreadyRunningError, HostError, PrivilegeError
from cedos.kernel import own_file
from cedos.kernel.privileges import PART_NAME
from cedos.logs import get_logger

_NAME: Final = "\0cedos-steers-this-network-namespace"
_ROOT: Final = 0
_PID_BYTES: Final = 32
_ENDING_S: Final = 0.5
_BETWEEN_S: Final = 0.02
_ANSWER_TIMEVAL: Final = struct.pack("@2l", 3, 0)  # seconds, and microseconds
_log = get_logger(__name__)


@contextmanager
def only_daemon(pid_file: Path, *, steers: bool = True) -> Iterator[None]:
    """Hold the locks during the block.

    `steers`: whether this daemon changes the namespace; a dry run does not.

    AlreadyRunningError: another daemon is alive; the message has its process id. PrivilegeError: the
    runtime directory cannot be written. HostError: the pid file cannot be opened for another reason.
    """
    descriptor = _lock_file(pid_file)
    try:
        with hold_namespace() if steers else nullcontext():
            yield
    finally:
        # Keep the file: a third daemon could lock a new one while a second one waits for this.
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def running_pid(pid_file: Path) -> int | None:
    """Return the process id of the daemon that holds `pid_file`, or None.

    If the caller may not open the file, return the daemon that steers this network namespace.
    """
    try:
        # The daemon's user owns the folder and could have put a pipe or a link there.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(pid_file, flags)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_pid(file)
        finally:
            os.close(file)
    except PermissionError:
        pid, uid = _holder()
        return daemon_of(pid) if pid and _can_steer(uid) else None
    except OSError:
        pass
    return None


def _lock_file(pid_file: Path, *, again: bool = False) -> int:
    # Only the owner may open the file, since a lock on it keeps daemons from starting.
    try:
        pid_file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = os.open(pid_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except PermissionError as error:
        raise PrivilegeError(
            f"{pid_file}: {error.strerror}; run as root, by the systemd unit,"
            " or with CEDOS_RUNTIME_DIR set to a folder of your own"
        ) from error
    except OSError as error:
        raise HostError(f"{pid_file}: {error.strerror}") from error
    try:
        own_file.check(descriptor, pid_file)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid = _read_pid(descriptor)
        os.close(descriptor)
        if not again and (pid is None or not Path(f"/proc/{pid}").exists()):
            # The process that locks it is no daemon: an older file was open to others.
            pid_file.unlink(missing_ok=True)
            return _lock_file(pid_file, again=True)
        raise _already_running(pid, f"it holds {pid_file}") from None
    except OSError as error:
        os.close(descriptor)
        raise HostError(f"{pid_file}: {error.strerror}") from error
    return descriptor


@contextmanager
def hold_namespace() -> Iterator[None]:
    """Hold the name of this network namespace during the block, and until iptables has ended.

    AlreadyRunningError: it is held.
    """
    with _take_namespace_name() as holding:
        asked = threading.Thread(target=_close_connections, args=(holding,), daemon=True)
        asked.start()
        try:
            yield
        finally:
            with suppress(OSError):
                holding.shutdown(socket.SHUT_RDWR)
            asked.join()


def _close_connections(holding: socket.socket) -> None:
    """Close connections at once.

    A lookup is answered by the connection itself, and two open ones fill the queue.
    """
    with suppress(OSError):  # (it is shut down)
        while True:
            holding.accept()[0].close()
            time.sleep(_BETWEEN_S)  # so that endless connections do not keep the daemon busy


def _take_namespace_name() -> socket.socket:
    holding = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(holding)
        holding.listen(1)
        holding.set_inheritable(True)
    except OSError:
        holding.close()
        pid, uid = _holder()
        if not _can_steer(uid):
            # Any user may take the name. A daemon answers on it.
            _log.warning("a process of a user holds the daemon's name", pid=pid or None)
            return socket.socket(socket.AF_UNIX)
        raise _already_running(daemon_of(pid), "it steers this network namespace") from None
    return holding


def _bind(holding: socket.socket) -> None:
    """Bind the name.

    OSError: it is held. The privileged part of a killed daemon holds it for a moment.
    """
    until_s = time.monotonic() + _ENDING_S
    while True:
        try:
            return holding.bind(_NAME)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def _holder() -> tuple[int, int | None]:
    """Return the process that answers on the name, and its user; 0: the kernel does not show it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        # Others may ask the daemon at the same time: wait for a place in its queue.
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _ANSWER_TIMEVAL)
        with suppress(OSError):
            asking.connect(_NAME)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("3i", credentials)
            return pid, uid
    return 0, None


def daemon_of(pid: int) -> int:
    """Return the daemon of a privileged part's process; any other process itself."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return int(facts["PPid"]) if facts["Name"] == PART_NAME else pid
    except (OSError, KeyError, ValueError):
        return pid


def _can_steer(uid: int | None) -> bool:
    """Return whether a user's process can be a daemon: it is root's, ours, or the service's.

    What the process itself may do tells nothing: any user has all capabilities in a user namespace of
    their own, and may leave a listening socket to a set-uid program that waits for a password.
    """
    with suppress(OSError):
        if uid == directories({}).runtime.stat().st_uid:
            return True
    return uid in (_ROOT, os.geteuid())


def _read_pid(file: int) -> int | None:
    try:
        return int(os.pread(file, _PID_BYTES, 0))
    except (OSError, ValueError):
        return None


def _already_running(pid: int | None, how: str) -> AlreadyRunningError:
    who = f"a daemon (process {pid})" if pid else "a daemon"
    return AlreadyRunningError(f"{who} runs already: {how}; see `cedos status`, or stop it first")
