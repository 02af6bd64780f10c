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
import struct
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cedos.kernel import bpf
from cedos.kernel.bpf import (
    CONTEXT,
    EXIT,
    STACK,
    Assembly,
    AttachType,
    BpfMap,
    Helper,
    Opcode,
    ProgramType,
    netns_cookie,
)
from cedos.model import Address

_COARSE_CLOCK: Final = 6  # CLOCK_MONOTONIC_COARSE
_ADDRESS_BYTES, _ENTRIES = 16, 256
# Ticks; how often the host repeats a first packet by default, and how often it shall.
_VALUE: Final = struct.Struct("=III")
_MOST_RETRIES: Final = 127
_MAPPED: Final = bytes(10) + b"\xff\xff"
_MAPPED_WORD: Final = int.from_bytes(_MAPPED[8:], sys.byteorder, signed=True)
_SOL_TCP, _TCP_SYNCNT = 6, 7
# Offsets of the fields of struct bpf_sock_ops, and the values that they must have.
_OP, _REPLY, _FAMILY, _LOCAL4, _LOCAL6, _FULL, _STATE = 0, 4, 20, 28, 48, 72, 88
_TIMEOUT_INIT, _SYN_SENT, _INET = 1, 2, 2
# Stack offsets of the address and of TCP_SYNCNT's value.
_ADDRESS_AT, _COUNT_AT = -_ADDRESS_BYTES, -4


def timeout_program(cookie: int, table: int) -> bytes:
    """Return the program for the sockets of the network namespace with this cookie.

    `table` is an open one: address (IPv4 as ::ffff:a.b.c.d) -> `_VALUE`.
    """
    code = Assembly()
    code.unless(_OP, _TIMEOUT_INIT)
    code.unless(_FULL, 1)
    code.unless(_STATE, _SYN_SENT)
    code.unless_here(cookie)
    _put_address(code)
    code.look_up(table, _ADDRESS_AT)
    code.put(Opcode.COPY, 8, 0)
    code.put(Opcode.LOAD, 2, 8, 0)
    code.put(Opcode.STORE, CONTEXT, 2, _REPLY)
    _option(code, Helper.GETSOCKOPT)
    code.jump(Opcode.IF_NOT, EXIT, 0)
    code.put(Opcode.LOAD, 2, STACK, _COUNT_AT)
    code.put(Opcode.LOAD, 3, 8, 4)
    code.jump(Opcode.IF_NOT_REGISTER, EXIT, 2, 3)
    code.put(Opcode.LOAD, 2, 8, 8)
    code.put(Opcode.STORE, STACK, 2, _COUNT_AT)
    _option(code, Helper.SETSOCKOPT)
    return code.code()


def _put_address(code: Assembly) -> None:
    """Put the local address onto the stack, as the table has it."""
    code.unless(_FAMILY, _INET, "ipv6")
    for word, number in enumerate((0, 0, _MAPPED_WORD)):
        code.put(Opcode.STORE_NUMBER, STACK, offset=_ADDRESS_AT + 4 * word, immediate=number)
    code.put(Opcode.LOAD, 2, CONTEXT, _LOCAL4)
    code.put(Opcode.STORE, STACK, 2, _ADDRESS_AT + 12)
    code.jump(Opcode.JUMP, "address")
    code.label("ipv6")
    for word in range(0, _ADDRESS_BYTES, 4):
        code.put(Opcode.LOAD, 2, CONTEXT, _LOCAL6 + word)
        code.put(Opcode.STORE, STACK, 2, _ADDRESS_AT + word)
    code.label("address")


def _option(code: Assembly, helper: Helper) -> None:
    """Get or sets TCP_SYNCNT."""
    code.put(Opcode.SET, 2, immediate=_SOL_TCP)
    code.put(Opcode.SET, 3, immediate=_TCP_SYNCNT)
    code.set_stack(4, _COUNT_AT)
    code.put(Opcode.SET, 5, immediate=4)
    code.call_on_context(helper)


class FirstTimeouts:
    """The time-outs of first packets, by local address, while this object is open.

    `cgroup` is whose sockets they are for (the root: all of this namespace), `retries` how often the
    host repeats a first packet (net.ipv4.tcp_syn_retries). Raises PermissionError without CAP_BPF or
    CAP_NET_ADMIN, OSError or HostError where the kernel cannot do it.
    """

    def __init__(self, cgroup: Path, retries: int) -> None:
        self._retries = retries
        self._given: dict[Address, float] = {}
        self._table = BpfMap(_ADDRESS_BYTES, _VALUE.size, _ENTRIES)
        self._link = -1
        try:
            self._link = _attach(cgroup, self._table.file)
        except BaseException:
            self._table.close()
            raise

    def set(self, timeouts_s: Mapping[Address, float]) -> None:
        """Replace the time-outs, in s; addresses that are not there have the kernel's own. OSError."""
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
    """Return the kernel's CONFIG_HZ, which its coarse clock shows."""
    return round(1 / time.clock_getres(_COARSE_CLOCK))


def try_out() -> None:
    """Load the program without attaching it; errors as for `FirstTimeouts`."""
    table = BpfMap(_ADDRESS_BYTES, _VALUE.size, 1)
    try:
        os.close(_load(table.file))
    finally:
        table.close()


def _attach(cgroup: Path, table: int) -> int:
    program = _load(table)
    try:
        folder = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return bpf.link(folder, program, AttachType.SOCK_OPS)
        finally:
            os.close(folder)
    finally:
        os.close(program)


def _load(table: int) -> int:
    program = timeout_program(netns_cookie(), table)
    return bpf.load(program, ProgramType.SOCK_OPS, AttachType.SOCK_OPS, "cedos_first")


def _key(address: Address) -> bytes:
    return address.packed if address.version == 6 else _MAPPED + address.packed
