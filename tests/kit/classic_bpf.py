"""A machine that runs classic BPF."""

import operator
import struct

ANCILLARY = 0xFFFFF000
NETWORK_HEADER = 0xFFF00000
ALU = {
    0x00: operator.add,
    0x10: operator.sub,
    0x50: operator.and_,
    0x60: operator.lshift,
    0x70: operator.rshift,
}
ETHERTYPES = {4: 0x0800, 6: 0x86DD}


def run_bpf(
    code: bytes, packet: bytes, packet_type: int = 0, ethertype: int | None = None, tagged: int = 0
) -> int:
    """Run the program on the packet as the kernel does; return how many bytes it lets through."""
    program = [struct.unpack_from("HBBI", code, at) for at in range(0, len(code), 8)]
    if ethertype is None:
        ethertype = ETHERTYPES.get(packet[0] >> 4, 0) if packet else 0
    facts = {ANCILLARY: ethertype, ANCILLARY + 4: packet_type, ANCILLARY + 48: tagged}
    a = x = at = 0
    memory = [0] * 16
    while True:
        op, if_true, if_false, k = program[at]
        at += 1
        kind = op & 0x07
        if kind == 0x00 and op & 0xE0 == 0x60:
            a = memory[k]
        elif kind == 0x00 and op & 0xE0 == 0x80:
            a = len(packet)
        elif kind == 0x00:
            size = {0x00: 4, 0x08: 2, 0x10: 1}[op & 0x18]
            where = k + x if op & 0xE0 == 0x40 else k
            if where not in facts and where >= NETWORK_HEADER:  # the packet begins with it
                where -= NETWORK_HEADER
            if where in facts:
                a = facts[where]
            elif where + size > len(packet):
                return 0
            else:
                a = int.from_bytes(packet[where : where + size], "big")
        elif kind == 0x01 and op & 0xE0 == 0xA0:
            k -= NETWORK_HEADER if k >= NETWORK_HEADER else 0
            if k >= len(packet):
                return 0
            x = (packet[k] & 0x0F) * 4
        elif kind == 0x01:
            x = k
        elif kind == 0x02:
            memory[k] = a
        elif kind == 0x04:
            a = ALU[op & 0xF0](a, x if op & 0x08 else k) & 0xFFFFFFFF
        elif kind == 0x05:
            jump = op & 0xF0
            if jump == 0x00:
                at += k
            else:
                at += if_true if {0x10: a == k, 0x20: a > k, 0x40: a & k}[jump] else if_false
        elif kind == 0x06:
            return k
        elif kind == 0x07:
            x = a
        else:
            raise AssertionError(f"instruction {op:#x}")
