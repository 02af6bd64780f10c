"""Instructions put together: where jumps lead, and what cannot be."""

import struct

import pytest

from cedos.kernel.bpf.assembly import EXIT, Assembly, Opcode

_RETURN = (Opcode.RETURN, 0, 0, 0)


def instructions(code: bytes) -> list[tuple[int, int, int, int]]:
    return [(op, registers, over, number) for op, registers, over, number in
            struct.iter_unpack("=BBhi", code)]  # fmt: skip


def test_jumps_lead_to_their_labels_over_wide_instructions() -> None:
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
def test_a_label_that_is_not_ahead(label: str) -> None:
    code = Assembly()
    code.label("behind")
    code.put(Opcode.SET, 2, immediate=5)
    code.jump(Opcode.JUMP, label)
    with pytest.raises(ValueError, match=label):
        code.code()
