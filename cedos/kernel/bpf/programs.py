"""Small programs on a cgroup's sockets by bpf(2), without compiler or library (linux/bpf.h)."""

import ctypes
import os
import platform
import re
import socket
import struct
import sys
from enum import IntEnum
from pathlib import Path
from typing import Final

from cedos.errors import HostError

_SYSCALL: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_DELETE = 0, 1, 2, 3
_PROG_LOAD, _PROG_ATTACH, _LINK_CREATE = 5, 8, 28
_SO_NETNS_COOKIE: Final = 71
_NO_PREALLOC: Final = 1
_ALLOW_MULTI: Final = 2


class ProgramType(IntEnum):
    """BPF_PROG_TYPE_*."""

    SOCK_OPS = 13
    CGROUP_SOCK_ADDR = 18


class AttachType(IntEnum):
    """Where on a cgroup a program runs (BPF_CGROUP_*)."""

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
    """BPF_MAP_TYPE_*: one that is full refuses, or forgets what was used longest ago; by prefix."""

    HASH = 1
    LRU_HASH = 9
    LPM_TRIE = 11


CONNECTS: Final = (
    AttachType.INET4_CONNECT,
    AttachType.INET6_CONNECT,
    AttachType.UDP4_SENDMSG,
    AttachType.UDP6_SENDMSG,
)
"""Wherever a socket gets to know whom it talks to."""


def root_cgroup(mounts: str) -> Path:
    """The root of the cgroup v2 hierarchy, from /proc/self/mounts; HostError where none is mounted."""
    for line in mounts.splitlines():
        words = line.split()
        if words[2:3] == ["cgroup2"]:
            # The kernel writes white space in paths as octal numbers.
            return Path(re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[1]))
    raise HostError("no cgroup v2 is mounted")


def instruction(
    opcode: int, target: int = 0, source: int = 0, offset: int = 0, immediate: int = 0
) -> bytes:
    """One instruction; registers are numbers from 0 to 10."""
    return struct.pack("=BBhi", opcode, source << 4 | target, offset, immediate)


def wide(target: int, immediate: int, source: int = 0) -> bytes:
    """Loads 64 bits into a register (two instructions); `source` 1: the open file of a map."""
    low, high = struct.unpack("=ii", struct.pack("=Q", immediate))
    return instruction(0x18, target, source, immediate=low) + instruction(0, immediate=high)


def load(program: bytes, kind: ProgramType, attach: AttachType, name: str = "cedos") -> int:
    """Loads a program; the caller closes the returned file descriptor.

    Raises PermissionError without CAP_BPF and CAP_NET_ADMIN, OSError where the kernel refuses the
    program, HostError on an architecture whose system calls are not known here.
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


def link(cgroup: int, program: int, where: AttachType) -> int:
    """Attaches a loaded program to an open cgroup folder for as long as the returned file is open.

    It goes with the process, however that ends. Errors as for `load`; OSError before Linux 5.7.
    """
    return _bpf(_LINK_CREATE, struct.pack("=IIII", program, cgroup, where, 0))


def netns_cookie() -> int:
    """The number by which programs know this thread's network namespace; OSError before Linux 5.14."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        raw = here.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8)
    return int.from_bytes(raw, sys.byteorder)


class BpfMap:
    """A table that programs and this process share; errors as for `load`."""

    def __init__(
        self, key_bytes: int, value_bytes: int, entries: int, kind: MapType = MapType.HASH
    ) -> None:
        self._value_bytes = value_bytes
        flags = _NO_PREALLOC if kind is MapType.LPM_TRIE else 0
        self.file = _bpf(
            _MAP_CREATE, struct.pack("=IIIII", kind, key_bytes, value_bytes, entries, flags)
        )

    def __getitem__(self, key: bytes) -> bytes:
        """A value; one that is not there is a FileNotFoundError."""
        at = ctypes.create_string_buffer(key, len(key))
        of = ctypes.create_string_buffer(self._value_bytes)
        addresses = (ctypes.addressof(at), ctypes.addressof(of))
        _bpf(_MAP_LOOKUP, struct.pack("=I4xQQQ", self.file, *addresses, 0))
        return of.raw

    def __setitem__(self, key: bytes, value: bytes) -> None:
        """Sets a value; OSError where the table is full."""
        at = ctypes.create_string_buffer(key, len(key))
        of = ctypes.create_string_buffer(value, len(value))
        addresses = (ctypes.addressof(at), ctypes.addressof(of))
        _bpf(_MAP_UPDATE, struct.pack("=I4xQQQ", self.file, *addresses, 0))

    def __delitem__(self, key: bytes) -> None:
        """Deletes a value; one that is not there is a FileNotFoundError."""
        at = ctypes.create_string_buffer(key, len(key))
        _bpf(_MAP_DELETE, struct.pack("=I4xQQQ", self.file, ctypes.addressof(at), 0, 0))

    def close(self) -> None:
        """Closes it; programs that use it keep it."""
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
