"""BPF programs: assembled here, loaded by bpf(2), and run on the sockets of a cgroup (linux/bpf.h).

No compiler and no library is needed: `Assembly` puts instructions together, with labels to jump to.

`marked_cgroup` gives all connections of a program a mark, so that a routing rule can tell them from
others. A small program on the program's own cgroup sets the mark when a socket connects. A mark set
when the socket is made would miss MPTCP: the kernel makes its first subflow later, and that socket
does not inherit the mark. Routing then decides as for any other program, so that loopback, local
networks and VPNs stay as they are.
"""

import ctypes
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, Final

from cedos.errors import HostError, PrivilegeError

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE = 0, 1, 2, 3
_PROG_LOAD, _PROG_ATTACH, _LINK_CREATE = 5, 8, 28
_SO_NETNS_COOKIE: Final = 71
_NO_PREALLOC: Final = 1
_ALLOW_MULTI: Final = 2


class ProgramType(IntEnum):
    """BPF_PROG_TYPE_*."""

    SOCKET_FILTER = 1
    SCHED_CLS = 3
    SOCK_OPS = 13
    CGROUP_SOCK_ADDR = 18


class AttachType(IntEnum):
    """The place on a cgroup where a program runs (BPF_CGROUP_*)."""

    SOCK_OPS = 3
    INET4_CONNECT = 10
    INET6_CONNECT = 11
    UDP4_SENDMSG = 14
    UDP6_SENDMSG = 15
    UDP4_RECVMSG = 19
    UDP6_RECVMSG = 20
    INET4_GETPEERNAME = 29
    INET6_GETPEERNAME = 30


class MapType(IntEnum):
    """BPF_MAP_TYPE_*: one that is full refuses, or forgets what was used longest ago; by prefix; maps."""

    HASH = 1
    LRU_HASH = 9
    LPM_TRIE = 11
    ARRAY_OF_MAPS = 12


# The hooks at which a socket learns its peer.
CONNECTS: Final = (
    AttachType.INET4_CONNECT,
    AttachType.INET6_CONNECT,
    AttachType.UDP4_SENDMSG,
    AttachType.UDP6_SENDMSG,
)


def root_cgroup(mounts: str) -> Path:
    """Return the root of the cgroup v2 hierarchy, from /proc/self/mounts.

    HostError if none is mounted.
    """
    for line in mounts.splitlines():
        words = line.split()
        if words[2:3] == ["cgroup2"]:
            # The kernel writes white space in paths as octal numbers.
            return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[1]))
    raise HostError("no cgroup v2 is mounted")


def instruction(
    opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0
) -> bytes:
    """Return one instruction; registers are numbers from 0 to 10."""
    return struct.pack("=BBhi", opcode, source << 4 | target, offset, immediate)


def wide(target: int, immediate: int, source: int = 0) -> bytes:
    """Return the instructions that load 64 bits; `source` 1: the open file of a map."""
    low, high = struct.unpack("=ii", struct.pack("=Q", immediate))
    return instruction(0x18, target, source, immediate=low) + instruction(0, immediate=high)


def load(program: bytes, kind: ProgramType, attach: int = 0, name: str = "cedos") -> int:
    """Load a program; the caller closes the returned file descriptor.

    Raises PermissionError without CAP_BPF and CAP_NET_ADMIN, OSError where the kernel refuses the
    program, HostError on an architecture whose system calls are not known here.
    """
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"MIT")
    # union bpf_attr of BPF_PROG_LOAD: type, number and address of the instructions, licence, three fields
    # of the verifier's log, kernel version, flags, name, interface, expected attach type.
    attribute = struct.pack(
        "=IIQQIIQII16sII",
        kind,
        len(program) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        0,
        0,
        0,
        0,
        0,
        name.encode()[:15],
        0,
        attach,
    )
    return _bpf(_PROG_LOAD, attribute)


def attach(cgroup: int, program: int, where: AttachType) -> None:
    """Attach a loaded program to an open cgroup folder, beside others; it stays until that goes."""
    _bpf(_PROG_ATTACH, struct.pack("=IIIII", cgroup, program, where, _ALLOW_MULTI, 0))


def link(cgroup: int, program: int, where: AttachType) -> int:
    """Attach a loaded program to an open cgroup folder for as long as the returned file is open.

    It goes with the process, however that ends. Errors as for `load`.
    """
    return _bpf(_LINK_CREATE, struct.pack("=IIII", program, cgroup, where, 0))


def netns_cookie() -> int:
    """Return the cookie of this thread's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        raw = here.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    return int.from_bytes(raw, sys.byteorder)


class BpfMap:
    """A table that programs and this process share; errors as for `load`.

    `like`: the open file of a map like those that are the values (ARRAY_OF_MAPS).
    """

    def __init__(
        self,
        key_bytes: int,
        value_bytes: int,
        entries: int,
        kind: MapType = MapType.HASH,
        like: int = 0,
    ) -> None:
        self._value_bytes = value_bytes
        flags = _NO_PREALLOC if kind is MapType.LPM_TRIE else 0
        self.file = _bpf(
            _MAP_CREATE, struct.pack("=IIIIII", kind, key_bytes, value_bytes, entries, flags, like)
        )

    def __getitem__(self, key: bytes) -> bytes:
        """Return a value; FileNotFoundError for a missing key."""
        at = ctypes.create_string_buffer(key, len(key))
        of = ctypes.create_string_buffer(self._value_bytes)
        addresses = (ctypes.addressof(at), ctypes.addressof(of))
        _bpf(_MAP_LOOKUP, struct.pack("=I4xQQQ", self.file, *addresses, 0))
        return of.raw

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Set a value; OSError if the table is full."""
        at = ctypes.create_string_buffer(key, len(key))
        of = ctypes.create_string_buffer(value, len(value))
        addresses = (ctypes.addressof(at), ctypes.addressof(of))
        _bpf(_MAP_UPDATE, struct.pack("=I4xQQQ", self.file, *addresses, 0))

    def __delitem__(self, key: bytes) -> None:
        """Delete a value; FileNotFoundError for a missing key."""
        at = ctypes.create_string_buffer(key, len(key))
        _bpf(_MAP_DELETE, struct.pack("=I4xQQQ", self.file, ctypes.addressof(at), 0, 0))

    def close(self) -> None:
        """Close the map; programs that use it keep it."""
        os.close(self.file)


def _bpf(command: int, attribute: bytes) -> int:
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise HostError(f"bpf(2) is not known for {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(attribute, len(attribute))
    result: int = libc.syscall(number, command, buffer, len(attribute))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"bpf: {os.strerror(code)}")
    return result


# The label of the program's end. It returns 1: the kernel proceeds.
EXIT: Final = "exit"

# The register that keeps the program's argument. Calls preserve it.
CONTEXT: Final = 6

STACK: Final = 10


class Opcode(IntEnum):
    """The instructions used here: loads and stores of 1, 4 and 8 bytes, moves, jumps."""

    LOAD = 0x61
    LOAD_BYTE = 0x71
    LOAD_WIDE = 0x79
    STORE = 0x63
    STORE_BYTE = 0x73
    STORE_WIDE = 0x7B
    STORE_NUMBER = 0x62
    COPY = 0xBF
    SET = 0xB7
    ADD = 0x07
    AND = 0x57
    OR = 0x47
    OR_REGISTER = 0x4F
    SHIFT_LEFT = 0x67
    SHIFT_RIGHT = 0x77
    JUMP = 0x05
    IF_EQUAL = 0x15
    IF_EQUAL_REGISTER = 0x1D
    IF_NOT = 0x55
    IF_NOT_REGISTER = 0x5D
    CALL = 0x85
    RETURN = 0x95


class Helper(IntEnum):
    """Functions of the kernel that programs may call (BPF_FUNC_*)."""

    MAP_LOOKUP = 1
    MAP_UPDATE = 2
    RANDOM = 7
    CURRENT_PROCESS = 14
    CURRENT_USER = 15
    SOCKET_COOKIE = 46
    SETSOCKOPT = 49
    GETSOCKOPT = 57
    LOAD_FROM_HEADER = 68  # skb_load_bytes_relative
    NETNS_COOKIE = 122


class Assembly:
    """Instructions in order; `code` gives them with every jump in place.

    It begins by keeping the context, and ends by returning a number at `EXIT`: 1 unless told otherwise.
    """

    def __init__(self) -> None:
        self._slots: list[bytes | tuple[Opcode, int, int, int, str]] = []
        self._labels: dict[str, int] = {}
        self.put(Opcode.COPY, CONTEXT, 1)

    def put(
        self, opcode: Opcode, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0
    ) -> None:
        self._slots.append(instruction(opcode, target, source, offset, immediate))

    def jump(
        self, opcode: Opcode, to: str, target: int = 0, source: int = 0, immediate: int = 0
    ) -> None:
        """Jump to a later label if the opcode's condition holds."""
        self._slots.append((opcode, target, source, immediate, to))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._slots)

    def set_wide(self, target: int, number: int) -> None:
        """Load a number of 64 bits into a register."""
        self._put_wide(wide(target, number))

    def set_map(self, target: int, file: int) -> None:
        """Load a map, open here as `file`, into a register."""
        self._put_wide(wide(target, file, 1))

    def set_stack(self, target: int, offset: int) -> None:
        """Load an address on the stack into a register."""
        self.put(Opcode.COPY, target, STACK)
        self.put(Opcode.ADD, target, immediate=offset)

    def call(self, helper: Helper) -> None:
        """Call a helper: registers 1 to 5 are its arguments and lost after it; 0 has the result."""
        self.put(Opcode.CALL, immediate=helper)

    def call_on_context(self, helper: Helper) -> None:
        self.put(Opcode.COPY, 1, CONTEXT)
        self.call(helper)

    def look_up(self, file: int, key_offset: int, otherwise: str = EXIT) -> None:
        """Load the address of a map's value into register 0; jump if there is none."""
        self.set_map(1, file)
        self._look_up(key_offset, otherwise)

    def look_up_within(self, key_offset: int, otherwise: str = EXIT) -> None:
        """Do the same with the map whose address is in register 0."""
        self.put(Opcode.COPY, 1, 0)
        self._look_up(key_offset, otherwise)

    def _look_up(self, key_offset: int, otherwise: str) -> None:
        self.set_stack(2, key_offset)
        self.call(Helper.MAP_LOOKUP)
        self.jump(Opcode.IF_EQUAL, otherwise, 0)

    def unless(self, field: int, wanted: int, otherwise: str = EXIT) -> None:
        """Jump unless a field of the context has this value."""
        self.put(Opcode.LOAD, 2, CONTEXT, field)
        self.jump(Opcode.IF_NOT, otherwise, 2, immediate=wanted)

    def unless_here(self, netns_cookie: int) -> None:
        """End the program for sockets of other network namespaces."""
        self.call_on_context(Helper.NETNS_COOKIE)
        self.set_wide(7, netns_cookie)
        self.jump(Opcode.IF_NOT_REGISTER, EXIT, 0, 7)

    def code(self, at_exit: int = 1) -> bytes:
        """Return the whole program. ValueError: a jump back, or to a missing label."""
        end = len(self._slots)
        labels = self._labels | {EXIT: end}
        parts = []
        for at, slot in enumerate(self._slots):
            if isinstance(slot, bytes):
                parts.append(slot)
                continue
            opcode, target, source, immediate, to = slot
            # A distance counts from the next instruction. Jumps back would be loops, which the kernel
            # refuses.
            over = labels.get(to, -1) - at - 1
            if over < 0:
                raise ValueError(f"no label {to} ahead")
            parts.append(instruction(opcode, target, source, over, immediate))
        return (
            b"".join(parts)
            + instruction(Opcode.SET, 0, immediate=at_exit)
            + instruction(Opcode.RETURN)
        )

    def _put_wide(self, two: bytes) -> None:
        # It takes the room of two instructions.
        self._slots += [two[:8], two[8:]]


_SOL_SOCKET, _SO_MARK = 1, 36
_PREFIX: Final = "cedos-exec-"


@dataclass(frozen=True, slots=True)
class User:
    """The user that a program runs as."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def marking_program(mark: int) -> bytes:
    """Return the program: bpf_setsockopt(ctx, SOL_SOCKET, SO_MARK, &mark, 4); return 1 (go on)."""
    signed = mark - (1 << 32) if mark >= 1 << 31 else mark
    code = Assembly()
    # The helper takes the mark's address, so the mark goes on the stack.
    code.put(Opcode.STORE_NUMBER, STACK, offset=-4, immediate=signed)
    code.put(Opcode.SET, 2, immediate=_SOL_SOCKET)
    code.put(Opcode.SET, 3, immediate=_SO_MARK)
    code.set_stack(4, -4)
    code.put(Opcode.SET, 5, immediate=4)
    code.call_on_context(Helper.SETSOCKOPT)
    return code.code()


def own_cgroup(mounts: str, membership: str) -> Path:
    """Return this process's folder in the cgroup v2 hierarchy; HostError if none is mounted.

    `mounts` is /proc/self/mounts, `membership` /proc/self/cgroup.
    """
    try:
        root = root_cgroup(mounts)
    except HostError as error:
        raise HostError(
            f"{error}; `mount -t cgroup2 none /sys/fs/cgroup/unified` does it"
        ) from None
    inside = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), "/")
    return root / inside.lstrip("/")


@contextmanager
def marked_cgroup(mark: int) -> Iterator[Path]:
    """Make a cgroup below this process's own whose connections carry the mark.

    It is removed after the block unless a process still lives inside; then the next call removes it.
    PrivilegeError: making a cgroup or loading a program is refused. HostError: there is no cgroup v2,
    or the kernel cannot do it.
    """
    try:
        parent = own_cgroup(
            Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text()
        )
        # Cgroups of earlier calls whose programs have ended since; rmdir refuses the others.
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
            program = load(marking_program(mark), ProgramType.CGROUP_SOCK_ADDR, where)
            try:
                attach(cgroup, program, where)
            finally:
                os.close(program)
    finally:
        os.close(cgroup)


def run_inside(cgroup: Path, command: Sequence[str], user: User | None = None) -> int:
    """Run a command inside a cgroup to its end, and pass signals on to it.

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

    # Ctrl-C and Ctrl-\ reach the command from the terminal; this process outlives it to clean up.
    before = {
        number: signal.signal(number, handler)
        for number, handler in (
            (signal.SIGINT, lambda *_: None),
            (signal.SIGQUIT, lambda *_: None),
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
        # A cgroup with a process inside cannot be removed.
        _enter(cgroup.parent)
        for number, handler in before.items():
            signal.signal(number, handler)
    return status if status >= 0 else 128 - status


def _enter(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text("0")
