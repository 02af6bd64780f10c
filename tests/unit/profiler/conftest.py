"""A machine that runs classic BPF, TLS hellos, and HTTP that is played to the profiler."""

import operator
import struct
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address

import pytest

from cedos.model import Direction, FlowKey, SizeEstimate
from cedos.profiler.frame import CapturedPacket
from cedos.profiler.profiler import Profiler, SizeLearned

ANCILLARY = 0xFFFFF000
ALU = {
    0x00: operator.add,
    0x10: operator.sub,
    0x50: operator.and_,
    0x60: operator.lshift,
    0x70: operator.rshift,
}
ETHERTYPES = {4: 0x0800, 6: 0x86DD}


def run_bpf(
    code: bytes,
    packet: bytes,
    packet_type: int = 0,
    ethertype: int | None = None,
    tagged: int = 0,
) -> int:
    """What the program gives for the packet: how many bytes get through. As the kernel does it."""
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
            if where in facts:
                a = facts[where]
            elif where + size > len(packet):
                return 0
            else:
                a = int.from_bytes(packet[where : where + size], "big")
        elif kind == 0x01 and op & 0xE0 == 0xA0:
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


@pytest.fixture(name="run_bpf", scope="session")
def _run_bpf() -> Callable[..., int]:
    return run_bpf


def hello(name: str) -> bytes:
    raw = name.encode()
    body = (len(raw) + 3).to_bytes(2, "big") + b"\x00" + len(raw).to_bytes(2, "big") + raw
    extension = b"\x00\x00" + len(body).to_bytes(2, "big") + body
    rest = b"\x03\x03" + bytes(32) + b"\x00\x00\x02\x13\x01\x01\x00"
    rest += len(extension).to_bytes(2, "big") + extension
    handshake = b"\x01" + len(rest).to_bytes(3, "big") + rest
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake


@pytest.fixture(name="hello", scope="session")
def _hello() -> Callable[[str], bytes]:
    """A ClientHello for a server's name."""
    return hello


class Talk:
    """A TCP connection that is played to the profiler; sequence numbers wrap on the way."""

    def __init__(self, profiler: Profiler, key: FlowKey, *, mptcp: bool = False) -> None:
        self.profiler, self.key, self.mptcp = profiler, key, mptcp
        self.bytes = {Direction.UP: 0, Direction.DOWN: 0}
        self.now_s = 1.0

    def packet(self, way: Direction, payload: bytes) -> CapturedPacket:
        start = {Direction.UP: 4_294_900_000, Direction.DOWN: 77}
        sequence = {one: (start[one] + self.bytes[one]) % (1 << 32) for one in Direction}
        outgoing = way is Direction.UP
        other = Direction.DOWN if outgoing else Direction.UP
        return CapturedPacket(
            self.key, outgoing, payload, sequence[way], sequence[other], self.mptcp, "wlan0"
        )

    def send(
        self, payload: str | bytes, body: int = 0, way: Direction = Direction.UP
    ) -> list[SizeLearned]:
        raw = payload if isinstance(payload, bytes) else payload.encode()
        told = self.profiler.observe(self.packet(way, raw), self.now_s)
        self.bytes[way] += len(raw) + body
        return told

    def receive(self, payload: str | bytes, body: int = 0) -> list[SizeLearned]:
        return self.send(payload, body, Direction.DOWN)

    def progress(self) -> list[SizeLearned]:
        down, up = self.bytes[Direction.DOWN], self.bytes[Direction.UP]
        return self.profiler.progressed(self.key, down, up, self.now_s)

    def close(self) -> None:
        self.profiler.closed(self.key, self.bytes[Direction.DOWN], self.bytes[Direction.UP])


class Web:
    """A server, and what a client and it say to each other."""

    server = "198.51.100.1"
    key = FlowKey(ip_address("192.168.43.2"), 40000, ip_address(server), 80)
    tls_key = replace(key, remote_port=443)
    get = "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
    chunked_answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    def answer(self, length: int) -> str:
        return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"

    def talk(
        self, profiler: Profiler | None = None, key: FlowKey = key, *, mptcp: bool = False
    ) -> Talk:
        """A connection, of a profiler of its own where none is given."""
        return Talk(Profiler() if profiler is None else profiler, key, mptcp=mptcp)

    def exactly(self, size: int, source: str = "content-length") -> SizeEstimate:
        return SizeEstimate(size, size, size, source)


@pytest.fixture(scope="session")
def web() -> Web:
    return Web()
