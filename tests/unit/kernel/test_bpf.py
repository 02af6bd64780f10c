"""Instructions put together: where jumps lead, and what cannot be."""

import struct

import pytest
from kit.classic_bpf import run_bpf

from cedos.kernel.bpf import EXIT, Assembly, Opcode
from cedos.kernel.classic_bpf import Assembler

_RETURN = (Opcode.RETURN, 0, 0, 0)


def instructions(code):
    return [(op, registers, over, number) for op, registers, over, number in
            struct.iter_unpack("=BBhi", code)]  # fmt: skip


def test_jumps_lead_to_their_labels_over_wide_instructions():
    code = Assembly()
    code.jump(Opcode.IF_EQUAL, "ahead", 2, immediate=7)
    code.set_wide(3, 1 << 40)
    code.jump(Opcode.JUMP, EXIT)
    code.label("ahead")
    code.put(Opcode.SET, 2, immediate=5)
    found = instructions(code.code())
    # The context is kept first; a wide instruction takes the room of two.
    assert found[0][0] == Opcode.COPY
    assert found[1] == (Opcode.IF_EQUAL, 2, 3, 7)
    assert found[4] == (Opcode.JUMP, 0, 1, 0)
    assert found[5] == (Opcode.SET, 2, 0, 5)
    assert found[6:] == [(Opcode.SET, 0, 0, 1), _RETURN]


@pytest.mark.parametrize("label", ["nowhere", "behind"])
def test_a_label_that_is_not_ahead(label):
    code = Assembly()
    code.label("behind")
    code.put(Opcode.SET, 2, immediate=5)
    code.jump(Opcode.JUMP, label)
    with pytest.raises(ValueError, match=label):
        code.code()


def test_jumps_are_resolved_over_labels():
    code = Assembler()
    code.load(0, 1)
    code.if_equal(7, then="seven")
    code.if_any_bit(0x80, then="high", otherwise="other")
    code.label("seven")
    code.give(7)
    code.label("high")
    code.give(80)
    code.label("other")
    code.jump("end")
    code.give(99)
    code.label("end")
    code.give(1)
    program = code.assemble()
    assert len(program) == 8 * 8
    assert [run_bpf(program, bytes([first])) for first in (7, 0x90, 3)] == [7, 80, 1]


def test_encoding_is_the_kernels():
    code = Assembler()
    code.load(12, 2)
    code.if_equal(0x800, otherwise="drop")
    code.give(64)
    code.label("drop")
    code.give(0)
    # As tcpdump prints the program for "ip".
    known = [(40, 0, 0, 12), (21, 0, 1, 2048), (6, 0, 0, 64), (6, 0, 0, 0)]
    assert code.assemble() == b"".join(struct.pack("HBBI", *one) for one in known)


def test_bad_jumps_are_refused():
    code = Assembler()
    code.if_equal(1, then="nowhere")
    with pytest.raises(ValueError, match="nowhere"):
        code.assemble()

    code = Assembler()
    code.label("back")
    code.give(0)
    code.if_equal(1, then="back")
    with pytest.raises(ValueError, match="back"):
        code.assemble()

    code = Assembler()
    code.if_equal(1, then="far")
    for _ in range(256):
        code.add(1)
    code.label("far")
    with pytest.raises(ValueError, match="far"):
        code.assemble()

    code.give(0)
    with pytest.raises(ValueError, match="twice"):
        code.label("far")
