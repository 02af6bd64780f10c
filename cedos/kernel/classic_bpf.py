"""A tiny assembler for classic BPF (`<linux/bpf_common.h>`), whose jumps name labels."""

import struct
from dataclasses import dataclass

# Loads from this offset on return facts about the packet (`<linux/filter.h>`, SKF_AD_*).
_ANCILLARY = 0xFFFFF000
PROTOCOL = _ANCILLARY + 0
PACKET_TYPE = _ANCILLARY + 4
INTERFACE = _ANCILLARY + 8
NETLINK_ATTRIBUTE = _ANCILLARY + 12
NETLINK_NESTED = _ANCILLARY + 16
VLAN_TAG_PRESENT = _ANCILLARY + 48
# The offset of the network header, independent of where the packet's data begin (SKF_NET_OFF).
NETWORK_HEADER = 0xFFF00000

_LD, _LDX, _ST, _ALU, _JMP, _RET, _MISC = 0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x07
_SIZES = {4: 0x00, 2: 0x08, 1: 0x10}
_ABSOLUTE, _INDEXED, _IMMEDIATE, _MEMORY, _FOUR_TIMES_LOW_NIBBLE = 0x20, 0x40, 0x00, 0x60, 0xA0
_LENGTH = 0x80
_ADD, _SUBTRACT, _AND, _LEFT, _RIGHT, _BY_X = 0x00, 0x10, 0x50, 0x60, 0x70, 0x08
_JUMP, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_ANY_BIT = 0x00, 0x10, 0x20, 0x40
_TAX = 0x00
_FARTHEST = 255


@dataclass(frozen=True, slots=True)
class _Line:
    code: int
    k: int = 0
    if_true: str | None = None
    if_false: str | None = None


class Assembler:
    """Collects instructions in order; `assemble` gives the bytecode.

    A is the accumulator, X the index register. A load beyond the packet's end ends the program with
    0: the packet is dropped. A jump without a label goes on with the next instruction.
    """

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        if name in self._labels:
            raise ValueError(f"label {name!r} is there twice")
        self._labels[name] = len(self._lines)

    def load(self, offset: int, size: int, *, indexed: bool = False) -> None:
        """Load `size` (1, 2 or 4) bytes of the packet at `offset`, or at X + `offset`, into A."""
        mode = _INDEXED if indexed else _ABSOLUTE
        self._lines.append(_Line(_LD | _SIZES[size] | mode, offset))

    def load_immediate(self, value: int) -> None:
        self._lines.append(_Line(_LD | _IMMEDIATE, value))

    def load_length(self) -> None:
        self._lines.append(_Line(_LD | _LENGTH))

    def load_x(self, value: int) -> None:
        self._lines.append(_Line(_LDX | _IMMEDIATE, value))

    def load_x_header_length(self, offset: int) -> None:
        """Load X = 4 * the low nibble of the packet's byte at `offset` (IPv4's header length)."""
        self._lines.append(_Line(_LDX | _SIZES[1] | _FOUR_TIMES_LOW_NIBBLE, offset))

    def save(self, slot: int) -> None:
        """Store A in memory `slot` (0 to 15)."""
        self._lines.append(_Line(_ST, slot))

    def recall(self, slot: int) -> None:
        self._lines.append(_Line(_LD | _MEMORY, slot))

    def add(self, value: int) -> None:
        self._lines.append(_Line(_ALU | _ADD, value))

    def add_x(self) -> None:
        self._lines.append(_Line(_ALU | _ADD | _BY_X))

    def subtract_x(self) -> None:
        self._lines.append(_Line(_ALU | _SUBTRACT | _BY_X))

    def mask(self, value: int) -> None:
        self._lines.append(_Line(_ALU | _AND, value))

    def shift_left(self, bits: int) -> None:
        self._lines.append(_Line(_ALU | _LEFT, bits))

    def shift_right(self, bits: int) -> None:
        self._lines.append(_Line(_ALU | _RIGHT, bits))

    def to_x(self) -> None:
        self._lines.append(_Line(_MISC | _TAX))

    def jump(self, to: str) -> None:
        self._lines.append(_Line(_JMP | _JUMP, if_true=to))

    def if_equal(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        self._lines.append(_Line(_JMP | _JUMP_EQUAL, value, then, otherwise))

    def if_greater(self, value: int, then: str | None = None, otherwise: str | None = None) -> None:
        self._lines.append(_Line(_JMP | _JUMP_GREATER, value, then, otherwise))

    def if_any_bit(self, bits: int, then: str | None = None, otherwise: str | None = None) -> None:
        self._lines.append(_Line(_JMP | _JUMP_ANY_BIT, bits, then, otherwise))

    def give(self, length: int) -> None:
        """End the program: the packet's first `length` bytes pass, 0 drops it."""
        self._lines.append(_Line(_RET, length))

    def assemble(self) -> bytes:
        """Return an array of `struct sock_filter`.

        ValueError: an unknown label, or an impossible jump.
        """
        return b"".join(self._encode(at, line) for at, line in enumerate(self._lines))

    def _encode(self, at: int, line: _Line) -> bytes:
        if_true, if_false = self._distance(at, line.if_true), self._distance(at, line.if_false)
        # An unconditional jump has its distance in k, a condition has two distances of a byte each.
        if line.code == _JMP | _JUMP:
            return struct.pack("HBBI", line.code, 0, 0, if_true)
        return struct.pack("HBBI", line.code, if_true, if_false, line.k)

    def _distance(self, at: int, label: str | None) -> int:
        if label is None:
            return 0
        if label not in self._labels:
            raise ValueError(f"no label {label!r}")
        distance = self._labels[label] - at - 1
        if not 0 <= distance <= _FARTHEST:
            raise ValueError(f"jump to {label!r} over {distance} instructions")
        return distance
