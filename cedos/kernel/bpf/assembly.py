"""Instructions of a BPF program put together, with labels to jump to (linux/bpf.h)."""

from enum import IntEnum
from typing import Final

from cedos.kernel.bpf.programs import instruction, wide

EXIT: Final = "exit"
"""The label of the program's end: it returns 1, which lets go on what the kernel asked about."""

CONTEXT: Final = 6
"""The register that keeps what the kernel handed over; calls leave it alone."""

STACK: Final = 10


class Opcode(IntEnum):
    """Those that are used: loads and stores of 4 and 8 bytes, moves, jumps."""

    LOAD = 0x61
    LOAD_WIDE = 0x79
    STORE = 0x63
    STORE_WIDE = 0x7B
    STORE_NUMBER = 0x62
    COPY = 0xBF
    SET = 0xB7
    ADD = 0x07
    AND = 0x57
    OR = 0x47
    SHIFT_RIGHT = 0x77
    JUMP = 0x05
    IF_EQUAL = 0x15
    IF_NOT = 0x55
    IF_EQUAL_REGISTER = 0x1D
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
    NETNS_COOKIE = 122
    ANCESTOR_CGROUP = 123


class Assembly:
    """Instructions in order; `code` gives them with every jump in place.

    It begins by keeping the context, and ends by returning 1 at `EXIT`.
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
        """Jumps to a label further on, if what the opcode says holds."""
        self._slots.append((opcode, target, source, immediate, to))

    def label(self, name: str) -> None:
        self._labels[name] = len(self._slots)

    def set_wide(self, target: int, number: int) -> None:
        """A register gets a number of 64 bits."""
        self._put_wide(wide(target, number))

    def set_map(self, target: int, file: int) -> None:
        """A register gets a map that is open here as `file`."""
        self._put_wide(wide(target, file, 1))

    def set_stack(self, target: int, offset: int) -> None:
        """A register gets an address on the stack."""
        self.put(Opcode.COPY, target, STACK)
        self.put(Opcode.ADD, target, immediate=offset)

    def call(self, helper: Helper) -> None:
        """Registers 1 to 5 are its arguments and lost behind it; 0 has the result."""
        self.put(Opcode.CALL, immediate=helper)

    def call_on_context(self, helper: Helper) -> None:
        self.put(Opcode.COPY, 1, CONTEXT)
        self.call(helper)

    def look_up(self, file: int, key_offset: int, otherwise: str = EXIT) -> None:
        """Register 0 gets the address of a map's value; jumps where there is none."""
        self.set_map(1, file)
        self.set_stack(2, key_offset)
        self.call(Helper.MAP_LOOKUP)
        self.jump(Opcode.IF_EQUAL, otherwise, 0)

    def unless(self, field: int, wanted: int, otherwise: str = EXIT) -> None:
        """Jumps unless a field of the context has a value."""
        self.put(Opcode.LOAD, 2, CONTEXT, field)
        self.jump(Opcode.IF_NOT, otherwise, 2, immediate=wanted)

    def unless_here(self, netns_cookie: int) -> None:
        """Ends it for sockets of other network namespaces."""
        self.call_on_context(Helper.NETNS_COOKIE)
        self.set_wide(7, netns_cookie)
        self.jump(Opcode.IF_NOT_REGISTER, EXIT, 0, 7)

    def code(self) -> bytes:
        """The whole program. ValueError: a jump back, or to a label that is not there."""
        end = len(self._slots)
        labels = self._labels | {EXIT: end}
        parts = []
        for at, slot in enumerate(self._slots):
            if isinstance(slot, bytes):
                parts.append(slot)
                continue
            opcode, target, source, immediate, to = slot
            over = labels.get(to, -1) - at - 1
            if over < 0:
                raise ValueError(f"no label {to} ahead")
            parts.append(instruction(opcode, target, source, over, immediate))
        return (
            b"".join(parts) + instruction(Opcode.SET, 0, immediate=1) + instruction(Opcode.RETURN)
        )

    def _put_wide(self, two: bytes) -> None:
        # It takes the room of two instructions.
        self._slots += [two[:8], two[8:]]
