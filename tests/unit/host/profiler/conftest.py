"""TLS hellos, HTTP that is played to the profiler, and a machine for its packet filters."""

from dataclasses import replace
from ipaddress import ip_address

import pytest
from kit.classic_bpf import run_bpf

from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.profiler import Profiler
from cedos.model import Direction, FlowKey, SizeEstimate


@pytest.fixture(name="run_bpf", scope="session")
def _run_bpf():
    return run_bpf


def crafted_hello(*extensions, session=b""):
    """A hello with these extensions, in this order."""
    listed = b"".join(
        kind.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body for kind, body in extensions
    )
    body = b"\x03\x03" + bytes(32) + bytes([len(session)]) + session + b"\x00\x02\x13\x01\x01\x00"
    body += len(listed).to_bytes(2, "big") + listed
    handshake = b"\x01" + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(handshake).to_bytes(2, "big") + handshake


def name_extension(name, kind=0):
    entry = bytes([kind]) + len(name).to_bytes(2, "big") + name
    return 0, len(entry).to_bytes(2, "big") + entry


def in_records(hello, size):
    """The same handshake, spread over records of `size` bytes."""
    handshake = hello[5:]
    parts = [handshake[at : at + size] for at in range(0, len(handshake), size)]
    return b"".join(b"\x16\x03\x01" + len(part).to_bytes(2, "big") + part for part in parts)


@pytest.fixture(name="hello", scope="session")
def _hello():
    """A ClientHello for a server's name."""
    return lambda name: crafted_hello(name_extension(name.encode()))


class Talk:
    """A TCP connection that is played to the profiler; sequence numbers wrap on the way."""

    def __init__(self, profiler, key, *, mptcp=False):
        self.profiler, self.key, self.mptcp = profiler, key, mptcp
        self.bytes = {Direction.UP: 0, Direction.DOWN: 0}
        self.now_s = 1.0

    def packet(self, way, payload):
        start = {Direction.UP: 4_294_900_000, Direction.DOWN: 77}
        sequence = {one: (start[one] + self.bytes[one]) % (1 << 32) for one in Direction}
        outgoing = way is Direction.UP
        other = Direction.DOWN if outgoing else Direction.UP
        return CapturedPacket(
            self.key, outgoing, payload, sequence[way], sequence[other], self.mptcp, "wlan0"
        )

    def send(self, payload, body=0, way=Direction.UP):
        raw = payload if isinstance(payload, bytes) else payload.encode()
        told = self.profiler.observe(self.packet(way, raw), self.now_s)
        self.bytes[way] += len(raw) + body
        return told

    def receive(self, payload, body=0):
        return self.send(payload, body, Direction.DOWN)

    def progress(self):
        down, up = self.bytes[Direction.DOWN], self.bytes[Direction.UP]
        return self.profiler.on_progress(self.key, down, up)

    def close(self):
        self.profiler.on_close(self.key, self.bytes[Direction.DOWN], self.bytes[Direction.UP])


class Web:
    """A server, and what a client and it say to each other."""

    server = "198.51.100.1"
    key = FlowKey(ip_address("192.168.43.2"), 40000, ip_address(server), 80)
    tls_key = replace(key, remote_port=443)
    get = "GET /x HTTP/1.1\r\nHost: a.example\r\n\r\n"
    chunked_answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    def answer(self, length):
        return f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"

    def talk(self, profiler=None, key=key, *, mptcp=False):
        """A connection, of a profiler of its own where none is given."""
        return Talk(Profiler() if profiler is None else profiler, key, mptcp=mptcp)

    def exactly(self, size, source="content-length"):
        return SizeEstimate(size, size, size, source)


@pytest.fixture(scope="session")
def web():
    return Web()
