"""A program whose connections carry a mark, so that a routing rule can tell them from others.

The mark is set when a socket connects, by a small BPF program on the program's own cgroup. Setting
it when the socket is made would miss MPTCP: its first subflow is a socket that the kernel makes
later, and that does not inherit it. Routing then decides as for anybody else, so that loopback,
local networks and VPNs stay what they are.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from cedos.errors import HostError, PrivilegeError
from cedos.kernel.bpf import programs
from cedos.kernel.bpf.assembly import STACK, Assembly, Helper, Opcode
from cedos.kernel.bpf.programs import CONNECTS, ProgramType

_SOL_SOCKET, _SO_MARK = 1, 36
_PREFIX: Final = "cedos-exec-"


@dataclass(frozen=True, slots=True)
class User:
    """Whom the program runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def marking_program(mark: int) -> bytes:
    """bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, 4); return 1 (go on)."""
    signed = mark - (1 << 32) if mark >= 1 << 31 else mark
    code = Assembly()
    code.put(Opcode.STORE_NUMBER, STACK, offset=-4, immediate=signed)
    code.put(Opcode.SET, 2, immediate=_SOL_SOCKET)
    code.put(Opcode.SET, 3, immediate=_SO_MARK)
    code.set_stack(4, -4)
    code.put(Opcode.SET, 5, immediate=4)
    code.call_on_context(Helper.SETSOCKOPT)
    return code.code()


def own_cgroup(mounts: str, membership: str) -> Path:
    """This process's folder in the cgroup v2 hierarchy; HostError where none is mounted.

    `mounts` is /proc/self/mounts, `membership` /proc/self/cgroup.
    """
    try:
        root = programs.root_cgroup(mounts)
    except HostError as error:
        raise HostError(
            f"{error}; `mount -t cgroup2 none /sys/fs/cgroup/unified` does it"
        ) from None
    inside = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/")
    return root / inside.lstrip("/")


@contextmanager
def marked_cgroup(mark: int) -> Iterator[Path]:
    """A cgroup below this process's own; what connects from inside carries the mark.

    It is removed behind the block unless something still lives inside; then the next one does.

    Raises:
        PrivilegeError: making a cgroup or loading a program is refused.
        HostError: there is no cgroup v2, or the kernel cannot do it.
    """
    try:
        parent = own_cgroup(
            Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text()
        )
        for dead in parent.glob(f"{_PREFIX}*"):
            with suppress(OSError):
                dead.rmdir()
        folder = parent / f"{_PREFIX}{os.getpid()}"
        folder.mkdir()
        try:
            _attach(folder, mark)
            yield folder
        finally:
            with suppress(OSError):
                folder.rmdir()
    except PermissionError as error:
        raise PrivilegeError(
            "marking a program's connections needs root; use `sudo cedos exec ...`:"
            " the program itself then runs as you"
        ) from error
    except OSError as error:
        raise HostError(f"a program's connections cannot be marked here: {error}") from error


def _attach(folder: Path, mark: int) -> None:
    cgroup = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for where in CONNECTS:
            program = programs.load(marking_program(mark), ProgramType.CGROUP_SOCK_ADDR, where)
            try:
                programs.attach(cgroup, program, where)
            finally:
                os.close(program)
    finally:
        os.close(cgroup)


def run_inside(cgroup: Path, command: Sequence[str], user: User | None = None) -> int:
    """Runs a command inside a cgroup to its end, and passes signals on to it.

    Returns:
        Its exit status as a shell gives it: 128 and the signal's number for a killed one, 127 for
        a command that is not there, 126 for one that cannot be started.
    """
    identity: dict[str, Any] = (
        {"user": user.uid, "group": user.gid, "extra_groups": user.groups} if user else {}
    )
    child: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        if child is not None:
            child.send_signal(number)

    # Ctrl-C reaches the command from the terminal; this process outlives it to clean up.
    before = {
        number: signal.signal(number, handler)
        for number, handler in (
            (signal.SIGINT, lambda *_: None),
            (signal.SIGTERM, pass_on),
            (signal.SIGHUP, pass_on),
        )
    }
    try:
        # The command inherits the cgroup; entering it behind a fork would need a thread-safe fork.
        _enter(cgroup)
        child = subprocess.Popen(command, **identity)
        status = child.wait()
    except FileNotFoundError:
        return 127
    except PermissionError:
        return 126
    finally:
        _enter(cgroup.parent)
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _enter(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text("0")
