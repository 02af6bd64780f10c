"""Privileges: the two capabilities that the daemon needs, and the sockets that need them.

Once its privileged part is a process of its own (`PART_NAME`), the daemon gives its capabilities
up. Sockets are then opened by that process (`delegate_opening`). Each of them says what it is for, and so
what is given away.
"""

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cedos.errors import PrivilegeError
from cedos.kernel.interface_socket import interface_socket

NEEDED: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
# The kernel's name of the privileged process, at most fifteen characters.
PART_NAME: Final = "cedos-privileg"

_STATUS: Final = Path("/proc/self/status")
_CAPABILITY_VERSION_3: Final = 0x20080522
_DAC_READ_SEARCH: Final = 2
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_libc = ctypes.CDLL(None, use_errno=True)


def held_capabilities() -> frozenset[str]:
    """Return the needed capabilities that are effective in this process."""
    lines = _STATUS.read_text().splitlines()
    mask = int(next(line.split()[1] for line in lines if line.startswith("CapEff:")), 16)
    return frozenset(name for name, bit in NEEDED.items() if mask >> bit & 1)


def require(what: str) -> None:
    """Raise PrivilegeError, with what is missing and how to get it, unless both are held."""
    missing = sorted(NEEDED.keys() - held_capabilities())
    if missing:
        raise PrivilegeError(
            f"{what} needs {' and '.join(missing)}: run it as root, or by the systemd unit"
            " (`cedos example unit`)"
        )


def give_up() -> None:
    """Give up all capabilities of this process for good, and those of programs that it starts.

    To be called while it has one thread: each has its own. OSError: the kernel refuses.
    """
    nothing = struct.pack("=6I", 0, 0, 0, 0, 0, 0)
    version = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    # 1. Set-uid programs give nothing back. 2. Started programs inherit nothing. 3. This process has
    # nothing.
    for done in (
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0),
        _libc.capset(version, nothing),
    ):
        if done != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"capabilities cannot be given up: {os.strerror(number)}")


def enter_any_folder() -> None:
    """Let this thread of root, which acts as another user, enter and read folders of root alone.

    Where it may not, it cannot enter them. What it writes and removes is that user's.
    """
    version, now = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    if _libc.capget(version, now) == 0:
        _, permitted, *rest = struct.unpack("=6I", now)
        _libc.capset(version, struct.pack("=6I", 1 << _DAC_READ_SEARCH, permitted, *rest))


_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_LOCK_FILTER = 26, 33, 44
_ETH_P_ALL, _ALL_INTERFACES = 0x0003, 0
_INSTRUCTION_BYTES: Final = 8
_libc = ctypes.CDLL(None, use_errno=True)
# The buffer of the capturing socket. A queued packet counts with its whole memory, up to 64 KB and
# more.
_PACKETS_BUFFER_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class EventSocket:
    """Events of a netlink protocol's multicast groups."""

    protocol: int
    groups: tuple[int, ...]
    receive_buffer_bytes: int

    def open(self) -> socket.socket:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        opened = socket.socket(socket.AF_NETLINK, kind, self.protocol)
        try:
            enlarge(opened, self.receive_buffer_bytes)
            opened.bind((0, 0))
            for group in self.groups:
                opened.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
        except OSError:
            opened.close()
            raise
        return opened


@dataclass(frozen=True, slots=True)
class PacketSocket:
    """The packets of one interface, or of all, that a filter (classic BPF) lets through.

    The filter cannot be taken off again.
    """

    code: bytes
    interface: str | None

    def open(self) -> socket.socket:
        # Protocol 0 hears nothing: no packet gets in before the filter is there.
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK, 0)
        try:
            index = socket.if_nametoindex(self.interface) if self.interface else _ALL_INTERFACES
            attach_filter(opened, self.code)
            opened.setsockopt(socket.SOL_SOCKET, _SO_LOCK_FILTER, 1)
            enlarge(opened, _PACKETS_BUFFER_BYTES)
            # By hand, as Python's own bind wants the name of one interface.
            address = struct.pack(
                "=HHiHBB8s", socket.AF_PACKET, socket.htons(_ETH_P_ALL), index, 0, 0, 0, b""
            )
            if _libc.bind(opened.fileno(), address, len(address)) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        except OSError:
            opened.close()
            raise
        return opened


@dataclass(frozen=True, slots=True)
class EchoSocket:
    """ICMP over one interface, with the kernel's time of what it receives."""

    interface: str
    version: int

    def open(self) -> socket.socket:
        protocol = socket.IPPROTO_ICMP if self.version == 4 else socket.IPPROTO_ICMPV6
        return interface_socket(
            self.interface, self.version, socket.SOCK_RAW, protocol, timestamps=True
        )


PrivilegedSocket = EventSocket | PacketSocket | EchoSocket
Open = Callable[[PrivilegedSocket], socket.socket]

_opener: Open | None = None


def open_privileged(wanted: PrivilegedSocket) -> socket.socket:
    """Open the socket, here or by the opener of `delegate_opening`; OSError, PermissionError."""
    return wanted.open() if _opener is None else _opener(wanted)


@contextmanager
def delegate_opening(opener: Open) -> Iterator[None]:
    """Let `opener` open all privileged sockets within the block: this process gave up its privileges."""
    global _opener  # noqa: PLW0603
    before, _opener = _opener, opener
    try:
        yield
    finally:
        _opener = before


def attach_filter(opened: socket.socket, code: bytes) -> None:
    """Receive only what the filter (classic BPF) lets through from now on."""
    instructions = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HL", len(code) // _INSTRUCTION_BYTES, ctypes.addressof(instructions))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)


def enlarge(opened: socket.socket, receive_buffer_bytes: int) -> None:
    """Set the receive buffer; without CAP_NET_ADMIN as far as the system's limit goes."""
    with suppress(PermissionError):
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_buffer_bytes)
        return
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
