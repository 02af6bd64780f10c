"""Makes the kernel repeat an unanswered first packet early: a tiny BPF program on a cgroup's sockets.

The kernel asks it, each time a socket connects, how long to wait for the first answer (a second
otherwise). It answers from a table, by the address that the socket has got, so that each network has
its own time-out; for sockets of other network namespaces and for addresses that are not in the table
it says nothing. A socket that repeats its first packet sooner repeats it more often, so that `connect`
gives up no sooner than it did, unless the program has set that itself (TCP_SYNCNT). The program stays
attached while this process lives.
"""

import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cedos.kernel.bpf import programs
from cedos.kernel.bpf.programs import AttachType, BpfHashMap, ProgramType, instruction, wide
from cedos.model import Address

_SO_NETNS_COOKIE: Final = 71
_COARSE_CLOCK: Final = 6  # CLOCK_MONOTONIC_COARSE
_ADDRESS_BYTES, _ENTRIES = 16, 256
# Ticks; how often the host repeats by itself, and how often it is to.
_VALUE: Final = struct.Struct("=III")
_MOST_RETRIES: Final = 127
_MAPPED: Final = bytes(10) + b"\xff\xff"
_MAPPED_WORD: Final = int.from_bytes(_MAPPED[8:], sys.byteorder, signed=True)
_LOOKUP_HELPER, _SETSOCKOPT_HELPER, _GETSOCKOPT_HELPER, _COOKIE_HELPER = 1, 49, 57, 122
_SOL_TCP, _TCP_SYNCNT = 6, 7
# struct bpf_sock_ops: where its fields are, and what they must be.
_OP, _REPLY, _FAMILY, _LOCAL4, _LOCAL6, _FULL, _STATE = 0, 4, 20, 28, 48, 72, 88
_TIMEOUT_INIT, _SYN_SENT, _INET = 1, 2, 2
# Opcodes: 32-bit load and store, comparisons that jump, moves.
_LOAD, _STORE, _STORE_NUMBER = 0x61, 0x63, 0x62
_IF_EQUAL, _IF_NOT, _IF_NOT_REGISTER, _JUMP = 0x15, 0x55, 0x5D, 0x05
_COPY, _SET, _ADD, _CALL, _EXIT = 0xBF, 0xB7, 0x07, 0x85, 0x95

# Instructions, or what gives them once it is known over how many others they may jump.
_Part = bytes | Callable[[int], bytes]


def timeout_program(cookie: int, table: int) -> bytes:
    """The program for the sockets of the network namespace with this cookie.

    `table` is an open one: address (IPv4 as ::ffff:a.b.c.d) -> `_VALUE`.
    """
    parts: list[_Part] = [
        _unless(_OP, _TIMEOUT_INIT),
        _unless(_FULL, 1),
        _unless(_STATE, _SYN_SENT),
        instruction(_COPY, 1, 6) + instruction(_CALL, immediate=_COOKIE_HELPER) + wide(7, cookie),
        lambda over: instruction(_IF_NOT_REGISTER, 0, 7, over),
        _address(),
        wide(1, table, 1) + instruction(_COPY, 2, 10) + instruction(_ADD, 2, immediate=-16),
        instruction(_CALL, immediate=_LOOKUP_HELPER),
        lambda over: instruction(_IF_EQUAL, 0, offset=over, immediate=0),
        instruction(_COPY, 8, 0),
        instruction(_LOAD, 2, 8, 0) + instruction(_STORE, 6, 2, _REPLY),
        _option(_GETSOCKOPT_HELPER),
        lambda over: instruction(_IF_NOT, 0, offset=over, immediate=0),
        instruction(_LOAD, 2, 10, -4) + instruction(_LOAD, 3, 8, 4),
        lambda over: instruction(_IF_NOT_REGISTER, 2, 3, over),
        instruction(_LOAD, 2, 8, 8) + instruction(_STORE, 10, 2, -4),
        _option(_SETSOCKOPT_HELPER),
    ]
    code = b""
    for part in reversed(parts):
        # What jumps jumps to the end: over all that is there by now, in units of eight bytes.
        code = (part if isinstance(part, bytes) else part(len(code) // 8)) + code
    end = instruction(_SET, 0, immediate=1) + instruction(_EXIT)
    return instruction(_COPY, 6, 1) + code + end


def _unless(field: int, wanted: int) -> _Part:
    """To the end, unless a field of the context has a value."""
    load = instruction(_LOAD, 2, 6, field)
    return lambda over: load + instruction(_IF_NOT, 2, offset=over, immediate=wanted)


def _address() -> bytes:
    """Puts the local address onto the stack, as the table has it."""
    ipv4 = b"".join(
        (
            instruction(_STORE_NUMBER, 10, offset=-16, immediate=0),
            instruction(_STORE_NUMBER, 10, offset=-12, immediate=0),
            instruction(_STORE_NUMBER, 10, offset=-8, immediate=_MAPPED_WORD),
            instruction(_LOAD, 2, 6, _LOCAL4),
            instruction(_STORE, 10, 2, -4),
        )
    )
    ipv6 = b"".join(
        instruction(_LOAD, 2, 6, _LOCAL6 + word) + instruction(_STORE, 10, 2, word - 16)
        for word in range(0, _ADDRESS_BYTES, 4)
    )
    ipv4 += instruction(_JUMP, offset=len(ipv6) // 8)
    family = instruction(_LOAD, 2, 6, _FAMILY)
    return family + instruction(_IF_NOT, 2, offset=len(ipv4) // 8, immediate=_INET) + ipv4 + ipv6


def _option(helper: int) -> bytes:
    """Gets or sets TCP_SYNCNT, in the last four bytes of the stack."""
    return b"".join(
        (
            instruction(_COPY, 1, 6),
            instruction(_SET, 2, immediate=_SOL_TCP),
            instruction(_SET, 3, immediate=_TCP_SYNCNT),
            instruction(_COPY, 4, 10),
            instruction(_ADD, 4, immediate=-4),
            instruction(_SET, 5, immediate=4),
            instruction(_CALL, immediate=helper),
        )
    )


class FirstTimeouts:
    """The time-outs of first packets, by local address, while this object is open.

    `cgroup` is whose sockets they are for (the root: all of this namespace), `retries` how often the
    host repeats a first packet (net.ipv4.tcp_syn_retries). Raises PermissionError without CAP_BPF or
    CAP_NET_ADMIN, OSError or HostError where the kernel cannot do it.
    """

    def __init__(self, cgroup: Path, retries: int) -> None:
        self._retries = retries
        self._given: dict[Address, float] = {}
        self._table = BpfHashMap(_ADDRESS_BYTES, _VALUE.size, _ENTRIES)
        self._link = -1
        try:
            self._link = _attached(cgroup, self._table.file)
        except BaseException:
            self._table.close()
            raise

    def set(self, timeouts_s: Mapping[Address, float]) -> None:
        """Replaces the time-outs, in s; addresses that are not there have the kernel's own. OSError."""
        for address in self._given.keys() - timeouts_s.keys():
            del self._table[_key(address)]
            del self._given[address]
        for address, timeout_s in timeouts_s.items():
            if self._given.get(address) != timeout_s:
                ticks = max(1, math.ceil(timeout_s * ticks_per_second()))
                # The pauses double: half of the time-out is made up for by one more.
                more = max(0, round(math.log2(1 / timeout_s)))
                self._table[_key(address)] = _VALUE.pack(
                    ticks, self._retries, min(self._retries + more, _MOST_RETRIES)
                )
                self._given[address] = timeout_s

    def close(self) -> None:
        if self._link >= 0:
            os.close(self._link)
            self._table.close()
            self._link = -1


def ticks_per_second() -> int:
    """The kernel's CONFIG_HZ, which its coarse clock shows."""
    return round(1 / time.clock_getres(_COARSE_CLOCK))


def try_out() -> None:
    """Loads the program without attaching it; errors as for `FirstTimeouts`."""
    table = BpfHashMap(_ADDRESS_BYTES, _VALUE.size, 1)
    try:
        os.close(_loaded(table.file))
    finally:
        table.close()


def _attached(cgroup: Path, table: int) -> int:
    program = _loaded(table)
    try:
        folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return programs.link(folder, program, AttachType.SOCK_OPS)
        finally:
            os.close(folder)
    finally:
        os.close(program)


def _loaded(table: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        cookie = int.from_bytes(
            here.getsockopt(socket.SOL_SOCKET, _SO_NETNS_COOKIE, 8), sys.byteorder
        )
    program = timeout_program(cookie, table)
    return programs.load(program, ProgramType.SOCK_OPS, AttachType.SOCK_OPS, "cedos_first")


def _key(address: Address) -> bytes:
    return address.packed if address.version == 6 else _MAPPED + address.packed
