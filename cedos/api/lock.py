"""One daemon per runtime directory and one steering daemon per network namespace.

Two daemons that steer one namespace would undo each other's work. The pid file in the runtime
directory is locked by `flock`; beside it a listening unix socket with an abstract name is held,
because such names belong to the network namespace itself: a second daemon there is refused even if
its directories differ, while daemons of other namespaces (phones in the testbed, containers) do not
see it. The kernel frees both when the process dies, however it dies.
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

import structlog

from cedos.errors import AlreadyRunningError, HostError, PrivilegeError
from cedos.kernel.privileges import PART_NAME, held

_NAME: Final = "\0cedos-steers-this-network-namespace"
_ROOT: Final = 0
_PID_BYTES: Final = 32
_ENDING_S: Final = 0.5
_BETWEEN_S: Final = 0.02
_log = structlog.get_logger(__name__)


@contextmanager
def only_daemon(pid_file: Path, *, steers: bool = True) -> Iterator[None]:
    """Holds the locks for as long as the block lasts.

    `steers`: whether this one changes the namespace; a dry run does not.

    Raises:
        AlreadyRunningError: another daemon lives; names its process id.
        PrivilegeError: the runtime directory may not be written.
        HostError: the pid file cannot be opened for another reason.
    """
    descriptor = _locked_file(pid_file)
    try:
        with namespace_held() if steers else nullcontext():
            yield
    finally:
        # Unlinking would let a third daemon lock a new file while a second one waits for this.
        os.ftruncate(descriptor, 0)
        os.close(descriptor)


def running_pid(pid_file: Path) -> int | None:
    """The process id of the living daemon that holds `pid_file`, None where there is none.

    Who may not open it is told of the one that steers this network namespace.
    """
    try:
        # Its folder is the daemon's user's, who may have put a pipe or a link there.
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
        holder = _holder()
        return daemon_of(holder[0]) if holder is not None and _can_steer(*holder) else None
    except OSError:
        pass
    return None


def _locked_file(pid_file: Path, *, again: bool = False) -> int:
    # For its owner alone: whoever may open a file may lock it, and keep daemons from starting.
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
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.fchmod(descriptor, 0o600)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
    except BlockingIOError:
        pid = _read_pid(descriptor)
        os.close(descriptor)
        if not again and (pid is None or not Path(f"/proc/{pid}").exists()):
            # Whoever locks it is none: it was open to others once.
            pid_file.unlink(missing_ok=True)
            return _locked_file(pid_file, again=True)
        raise _already(pid, f"it holds {pid_file}") from None
    except OSError as error:
        os.close(descriptor)
        raise HostError(f"{pid_file}: {error.strerror}") from error
    return descriptor


@contextmanager
def namespace_held() -> Iterator[None]:
    """Holds this network namespace's name for as long as the block lasts; AlreadyRunningError."""
    with _namespace_name() as holding:
        asked = threading.Thread(target=_let_go, args=(holding,), daemon=True)
        asked.start()
        try:
            yield
        finally:
            with suppress(OSError):
                holding.shutdown(socket.SHUT_RDWR)
            asked.join()


def _let_go(holding: socket.socket) -> None:
    """Who asks who holds the name has its answer with the connection; kept, two of them leave no room."""
    with suppress(OSError):  # (it is shut down)
        while True:
            holding.accept()[0].close()
            time.sleep(_BETWEEN_S)  # whoever asks without end does not keep us busy


def _namespace_name() -> socket.socket:
    holding = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(holding)
        holding.listen(1)
    except OSError:
        holding.close()
        holder = _holder()
        if holder is not None and not _can_steer(*holder):
            # Anybody may take the name; only who can steer could be a daemon.
            _log.warning("a process without privileges holds the daemon's name", pid=holder[0])
            return socket.socket(socket.AF_UNIX)
        pid = daemon_of(holder[0]) if holder is not None else None
        raise _already(pid, "it steers this network namespace") from None
    return holding


def _bind(holding: socket.socket) -> None:
    """OSError: somebody keeps the name. The privileged part of a killed daemon takes a moment to end."""
    until_s = time.monotonic() + _ENDING_S
    while True:
        try:
            return holding.bind(_NAME)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)


def _holder() -> tuple[int, int] | None:
    """The process that listens on the name, and its user; None where the kernel does not show it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        with suppress(OSError):
            asking.connect(_NAME)
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            pid, uid, _ = struct.unpack("3i", credentials)
            return (pid, uid) if pid else None
    return None


def daemon_of(pid: int) -> int:
    """The daemon whose privileged part a process is; the process itself where it is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        facts = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return int(facts["PPid"]) if facts["Name"] == PART_NAME else pid
    except (OSError, KeyError, ValueError):
        return pid


def _can_steer(pid: int, uid: int) -> bool:
    try:
        return "CAP_NET_ADMIN" in held(pid)
    except ProcessLookupError:  # other users' processes may be hidden (hidepid, ProtectProc)
        return uid in (_ROOT, os.geteuid())


def _read_pid(file: int) -> int | None:
    try:
        return int(os.pread(file, _PID_BYTES, 0))
    except (OSError, ValueError):
        return None


def _already(pid: int | None, how: str) -> AlreadyRunningError:
    who = f"a daemon (process {pid})" if pid else "a daemon"
    return AlreadyRunningError(f"{who} runs already: {how}; see `cedos status`, or stop it first")
