"""Hostile peers, live: recorded bytes are sent again, answers are forged, a gateway talks nonsense."""

import hashlib
import itertools
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cedos.proxy.gateway.gateway import PORT
from tests.netns.gateway.conftest import GATEWAY, ORIGIN
from tests.netns.gateway.test_datagrams import ASK, NEAR_RESOLVER, NOBODY, Names

PROXY = "socks5h://127.0.0.1:1080"
SIZE = 4_000_000
RECORDED = 1 << 16  # of each connection
REST_S = 0.4
MOST_MB = 90


class Wire:
    """The first bytes of the laptop's connections with the gateway, by the laptop's address and port."""

    def __init__(self, laptop):
        with laptop.near.entered():
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        self._open = True
        self._first = {}
        self._said = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        self._socket.settimeout(0.2)
        while self._open:
            with suppress(TimeoutError):
                self._take(self._socket.recv(1 << 16))

    def _take(self, packet):
        if packet[0] >> 4 != 4 or packet[9] != socket.IPPROTO_TCP:
            return
        at = 4 * (packet[0] & 15)
        source, to, sequence = struct.unpack_from("!HHI", packet, at)
        data = packet[at + 4 * (packet[at + 12] >> 4) : int.from_bytes(packet[2:4])]
        outward = to == PORT
        key = (packet[12:16], source, True) if outward else (packet[16:20], to, False)
        if PORT not in (source, to):
            return
        if packet[at + 13] & 2:
            self._first[key] = sequence + 1
        elif data and key in self._first and sequence - self._first[key] < RECORDED:
            self._said.setdefault(key, {})[sequence - self._first[key]] = data

    def said(self, *, outward):
        """By connection, as far as nothing is missing."""
        found = []
        for (_, _, kept_outward), pieces in list(self._said.items()):
            if kept_outward == outward:
                whole = bytearray()
                for offset, data in sorted(pieces.items()):
                    if offset <= len(whole):
                        whole[offset:] = data
                found.append(bytes(whole))
        return found

    def close(self):
        self._open = False
        self._thread.join()
        self._socket.close()


@pytest.fixture
def wire(laptop):
    made = Wire(laptop)
    yield made
    made.close()


def memory_mb(process):
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def answered(laptop, data, end):
    """Bytes that the gateway says to somebody who says just that."""
    with laptop.near.entered():
        one = socket.socket()
    got = 0
    with one, suppress(OSError):
        one.bind((end, 0))
        one.connect((GATEWAY, PORT))
        one.sendall(data)
        one.settimeout(REST_S)
        while chunk := one.recv(1 << 16):
            got += len(chunk)
    return got


def test_what_was_recorded_changes_nothing_when_it_is_sent_again(laptop, wire):
    """The set-up of a session, its join over the other network, and what followed them."""
    laptop.world.shape("20mbit")
    data = os.urandom(SIZE)
    laptop.serve_file(data)
    forward = laptop.forward("-D", "1080", "--fail", "closed", "-n", "wlan0", "-n", "lte0")
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    got = bytearray(curl.stdout.read(SIZE // 8))
    spoken = wire.said(outward=True)
    assert len(spoken) >= 2  # both networks
    assert all(len(each) > 200 for each in spoken)
    log = laptop.folder / "gateway.log"
    came = log.read_text().count("client came")
    replays = [
        (piece, end)
        for each in spoken
        for piece in (each, each[:200], each[:-1] + bytes([each[-1] ^ 1]))
        for end in ("10.9.1.2", "10.9.2.2")
    ]
    said = []
    threads = [
        threading.Thread(target=lambda each=each: said.append(answered(laptop, *each)))
        for each in replays
    ]
    for each in threads:
        each.start()
    while chunk := curl.stdout.read1(1 << 16):
        got += chunk
    for each in threads:
        each.join()
    print(f"{len(replays)} replays, answered with at most {max(said)} bytes")
    assert curl.wait(20) == 0, curl.stderr.read()
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    assert max(said) < 1_000  # a handshake's answer, and nothing of the session's
    assert log.read_text().count("client came") == came
    for process, name in ((laptop.gateway, "gateway"), (forward, "forward")):
        assert process.poll() is None
        assert "Traceback" not in (laptop.folder / f"{name}.log").read_text()


@contextmanager
def nonsense(laptop, spoken):
    """In place of the gateway; yields how often each kind of nonsense was said."""
    kinds = [
        *spoken, os.urandom(1 << 16), b"HTTP/1.1 200 OK\r\n\r\n", bytes(1 << 22),
        b"\xff" * (1 << 22), b"",
    ]  # fmt: skip
    times = [0] * len(kinds)
    with laptop.far.entered():
        listening = socket.create_server((GATEWAY, PORT), reuse_port=True)

    def talk(one, data):
        with one, suppress(OSError):
            one.settimeout(1)
            one.recv(1 << 16)
            one.sendall(data)
            one.recv(1 << 16)

    def serve():
        for number in itertools.count():
            try:
                one, _ = listening.accept()
            except OSError:
                return
            kind = number % len(kinds)
            times[kind] += 1
            threading.Thread(target=talk, args=(one, kinds[kind]), daemon=True).start()

    serving = threading.Thread(target=serve)
    serving.start()
    try:
        yield times
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        serving.join()


def test_a_gateway_that_talks_nonsense_harms_nobody(laptop, wire):
    folder = laptop.folder / "small"
    folder.mkdir()
    (folder / "small").write_bytes(b"small")
    laptop.serve(folder)
    forward = laptop.forward("-D", "1080")

    def small_file():
        began_s = time.monotonic()
        curl = laptop.curl("-m", "10", "-x", PROXY, f"http://{ORIGIN}:8080/small")
        assert curl.communicate(timeout=20)[0] == b"small"
        return time.monotonic() - began_s

    small_file()
    laptop.gateway.kill()
    laptop.gateway.wait()
    with nonsense(laptop, wire.said(outward=False)) as times:
        until_s = time.monotonic() + 2
        slowest_s = max(small_file() for _ in iter(lambda: time.monotonic() < until_s, False))
        ticks = Path(f"/proc/{forward.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        cpu_s = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        print(f"{sum(times)} times, {slowest_s:.2f} s, {memory_mb(forward):.0f} MB, {cpu_s:.2f} s")
        assert sum(times) >= 2
        assert slowest_s < 4.0  # the first waits for the gateway, then all go direct
        assert memory_mb(forward) < MOST_MB
    laptop.start_gateway_again()
    log = laptop.folder / "gateway.log"
    deadline_s = time.monotonic() + 20
    while "client came" not in log.read_text():
        assert time.monotonic() < deadline_s, (laptop.folder / "forward.log").read_text()
        small_file()
    assert forward.poll() is None
    assert "Traceback" not in (laptop.folder / "forward.log").read_text()


# Somebody who sees each question, but for its number, and answers before the resolver does: under all
# other numbers, from elsewhere under the right one, with another name, and with rubbish.
FORGING = """
import socket, struct, sys, time
here, right = sys.argv[1], socket.inet_aton(sys.argv[2])
evil = socket.inet_aton("192.0.2.66")
one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
one.bind((here, 53))
other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
other.bind((here, 0))
listening = socket.create_server((here, 53))
print("ready", flush=True)
def answer(asked, number, address, name=b""):
    end = asked.index(0, 12) + 5
    body = name or asked[12:end]
    return struct.pack("!6H", number, 0x8180, 1, 1, 0, 0) + body + struct.pack(
        "!3HIH", 0xc00c, 1, 1, 60, 4) + address
while True:
    asked, who = one.recvfrom(512)
    number = int.from_bytes(asked[:2])
    for wrong in range(1, 1500):
        one.sendto(answer(asked, number + wrong & 0xffff, evil), who)
        if wrong % 50 == 0:
            time.sleep(0.001)
    other.sendto(answer(asked, number, evil), who)
    one.sendto(answer(asked, number, evil, b"\\4evil\\4test\\0\\0\\1\\0\\1"), who)
    one.sendto(bytes(20), who)
    one.sendto(asked, who)
    time.sleep(0.05)
    one.sendto(answer(asked, number, right), who)
"""


def test_forged_answers_of_dns_reach_nobody(laptop, tmp_path):
    class Forged(Names):
        def _serve(self, where, address, *options):
            right = options[0].rpartition("/")[2]
            forging = where.popen(
                *(sys.executable, "-c", FORGING, address, right), stdout=subprocess.PIPE
            )
            self.laptop.keep(forging)
            assert forging.stdout.readline() == b"ready\n"

    names = Forged(laptop, tmp_path)
    names.forward("--dns", "127.0.0.1:5353", "--dns-direct", "lan", resolver=NEAR_RESOLVER)
    ask = ASK.partition("with socket")[0].replace(NOBODY, "127.0.0.1").replace(", 53)", ", 5353)")
    near = ask.replace(r"\3far\4test\0", r"\7printer\3lan\0")
    for _ in range(2):
        assert names.program(ask)[0] == f"127.0.0.1 5353 {ORIGIN}"
        assert names.program(near)[0] == "127.0.0.1 5353 192.168.77.1"
    # What says that it is an answer is no question to the stub, whoever sends it.
    with laptop.near.entered():
        flood = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with flood:
        for number in range(5_000):
            head = struct.pack("!6H", number, 0x8180, 1, 1, 0, 0)
            flood.sendto(head + b"\3far\4test\0\0\1\0\1" + bytes(16), ("127.0.0.1", 5353))
    assert names.program(ask)[0] == f"127.0.0.1 5353 {ORIGIN}"
