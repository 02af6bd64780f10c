"""Questions and answers of DNS of all programs, as they pass the interfaces; of TCP the answers only."""

from typing import Final

from cedos.host.profiler.capture import Capture, open_capture
from cedos.kernel.classic_bpf import Assembler

PORT: Final = 53
_SNAP_BYTES: Final = 2048
_TCP, _UDP = 6, 17
_FRAGMENT: Final = 0x1FFF


def program() -> bytes:
    """Let through UDP from or to port 53 and TCP from there, and no fragment's rest."""
    code = Assembler()
    code.load(0, 1)
    code.mask(0xF0)
    code.if_equal(0x40, "v4")
    code.if_equal(0x60, "v6", "drop")
    code.label("v4")
    code.load(6, 2)
    code.if_any_bit(_FRAGMENT, "drop")
    code.load_x_header_length(0)
    code.load(9, 1)
    code.if_equal(_TCP, "tcp")
    code.if_equal(_UDP, None, "drop")
    code.load(0, 2, indexed=True)
    code.if_equal(PORT, "take")
    code.load(2, 2, indexed=True)
    code.if_equal(PORT, "take", "drop")
    code.label("v6")
    code.load_x(40)
    code.load(6, 1)
    code.if_equal(_TCP, "tcp")
    code.if_equal(_UDP, None, "drop")
    code.load(40, 2)
    code.if_equal(PORT, "take")
    code.load(42, 2)
    code.if_equal(PORT, "take", "drop")
    code.label("tcp")
    code.load(0, 2, indexed=True)
    code.if_equal(PORT, "take", "drop")
    code.label("take")
    code.give(_SNAP_BYTES)
    code.label("drop")
    code.give(0)
    return code.assemble()


def open_lookups() -> Capture:
    """Open the capture of look-ups. Errors: PrivilegeError, HostError."""
    return open_capture(code=program())
