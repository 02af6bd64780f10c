"""Small programs on a cgroup's sockets by bpf(2), without compiler or library (linux/bpf.h)."""

import ctypes
import os
import platform
import struct
from enum import IntEnum
from typing import Final

from cedos.errors import HostError

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_PROG_LOAD, _PROG_ATTACH = 5, 8
_ALLOW_MULTI: Final = 2


class ProgramType(IntEnum):
    """BPF_PROG_TYPE_*."""

    CGROUP_SOCK_ADDR = 18


class AttachType(IntEnum):
    """Where on a cgroup a program runs (BPF_CGROUP_*)."""

    INET4_CONNECT = 10
    INET6_CONNECT = 11
    UDP4_SENDMSG = 14
    UDP6_SENDMSG = 15


def instruction(
    opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0
) -> bytes:
    """One instruction; registers are numbers from 0 to 10."""
    return struct.pack("=BBhi", opcode, source << 4 | target, offset, immediate)


def load(program: bytes, kind: ProgramType, attach: AttachType, name: str = "cedos") -> int:
    """Loads a program; the caller closes the returned file descriptor.

    Raises:
        PermissionError: the process lacks CAP_BPF and CAP_NET_ADMIN.
        OSError: the kernel refuses the program.
        HostError: an architecture whose system calls are not known here.
    """
    code = ctypes.create_string_buffer(program, len(program))
    licence = ctypes.create_string_buffer(b"MIT")
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
    """Attaches a loaded program to an open cgroup folder, beside others; it stays until that goes."""
    _bpf(_PROG_ATTACH, struct.pack("=IIIII", cgroup, program, where, _ALLOW_MULTI, 0))


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
