"""`cedos relay` with real clients: what it carries, what it refuses, what it survives."""

import hashlib
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cedos.commands.example import PLAIN
from emu.testbed.netns import Namespace

RELAY_PORT = 3128
SERVER = {4: "203.0.113.2", 6: "2001:db8:9::2"}
RELAY = {4: "10.0.1.1", 6: "fd00:1::1"}
OUTSIDE = {4: "203.0.113.1", 6: "2001:db8:9::1"}
PROXY = ("--proxy", f"http://{RELAY[4]}:{RELAY_PORT}")
BODY = os.urandom(300_000)
RESET = struct.pack("ii", 1, 0)


def answering(body: bytes = BODY) -> Callable[[socket.socket], None]:
    """An HTTP server of one request: echoes a body it is sent, else says `body`."""

    def handle(connection: socket.socket) -> None:
        data = b""
        while b"\r\n\r\n" not in data:
            block = connection.recv(65536)
            if not block:
                return
            data += block
        head, _, got = data.partition(b"\r\n\r\n")
        wanted = 0
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                wanted = int(line.partition(b":")[2])
        if b"xpect: 100" in head:
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        while len(got) < wanted:
            got += connection.recv(65536)
        reply = got if wanted else body
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(reply) + reply)

    return handle


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("tunnel", [(), ("--proxytunnel",)])
def test_curl_gets_and_puts_through_it(
    world: Any, tmp_path: Path, version: int, tunnel: tuple[str, ...]
) -> None:
    host = SERVER[4] if version == 4 else f"[{SERVER[6]}]"
    proxy = RELAY[4] if version == 4 else f"[{RELAY[6]}]"
    file = tmp_path / "up"
    file.write_bytes(os.urandom(2_000_000))
    with world.serving(answering()) as port, world.relaying() as relay:
        url = f"http://{host}:{port}/x"
        options = ("--proxy", f"http://{proxy}:{RELAY_PORT}", *tunnel, url)
        down = world.curl(*options)
        up = world.curl("--data-binary", f"@{file}", *options)
        assert (down["http_code"], down["body"]) == (200, BODY)
        assert (up["http_code"], up["body"]) == (200, file.read_bytes())
        result = relay.event("relayed", 2)
        assert result["ended"] == "complete"
        assert result["up_bytes"] > 2_000_000
        assert result["down_bytes"] > 2_000_000
        assert result["subflows"] is None  # curl speaks plain TCP


def test_a_download_moves_between_networks_and_the_server_never_knows(world: Any) -> None:
    with (
        world.serving(endless) as port,
        world.relaying() as relay,
        world.connect(f"{SERVER[4]}:{port}", mptcp=True) as connection,
    ):
        digest = hashlib.sha256()
        digest.update(take(connection, 3_000_000))
        before = received(world.client, "net2")
        # net1 is gone: from one moment to the next nothing comes through any more.
        world.relay.ip("link", "set", "net1", "down")
        world.client.ip("link", "set", "net1", "down")
        digest.update(take(connection, 30_000_000))
        assert received(world.client, "net2") - before > 20_000_000
        expected = hashlib.sha256()
        for n in range(33_000_000 // 10_000):
            expected.update(b"%09d\n" % n * 1000)
        assert digest.digest() == expected.digest()
        connection.close()
        assert relay.event("relayed")["subflows"] is not None


def received(namespace: Namespace, interface: str) -> int:
    for line in namespace.run("cat", "/proc/self/net/dev").stdout.splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            return int(counters.split()[0])
    raise AssertionError(interface)


def endless(connection: socket.socket) -> None:
    n = 0
    while True:
        connection.sendall(b"%09d\n" % n * 1000)
        n += 1


def take(connection: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        block = connection.recv(min(1 << 18, size - len(got)))
        assert block
        got += block
    return bytes(got)


def test_an_end_is_handed_on_and_the_other_way_goes_on(world: Any) -> None:
    def sum_up(connection: socket.socket) -> None:
        total = 0
        while block := connection.recv(65536):
            total += len(block)
        connection.sendall(b"%d" % total)

    with (
        world.serving(sum_up) as port,
        world.relaying(),
        world.connect(f"{SERVER[4]}:{port}", mptcp=True) as connection,
    ):
        connection.sendall(bytes(1_234_567))
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(99) == b"1234567"
        assert connection.recv(99) == b""


def test_a_server_that_resets_in_the_middle_is_no_whole_answer(world: Any) -> None:
    def half(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1000))  # an end would complete it
        time.sleep(0.2)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    with world.serving(half) as port, world.relaying() as relay:
        result = world.curl(*PROXY, f"http://{SERVER[4]}:{port}/")
        assert result["exitcode"] == 56  # failure in receiving network data
        assert relay.event("relayed")["ended"].startswith("origin: ")


LOOP, ADDRESS = "proxy_loop_detected", "destination_ip_prohibited"


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        (
            (),
            {
                "http://203.0.113.2:1/": (502, "connection_refused"),
                "http://nowhere.invalid/": (502, "dns_error"),
                "http://10.0.1.1:3128/": (403, LOOP),
                "http://203.0.113.1:22/": (403, ADDRESS),
                "http://127.0.0.1:22/": (403, ADDRESS),
                "http://localhost:22/": (403, ADDRESS),
                "http://[::1]:22/": (403, ADDRESS),
                "http://169.254.169.254/latest": (403, ADDRESS),
                "http://2130706433/": (403, ADDRESS),
            },
        ),
        (
            ("--connect-timeout", "500ms", "--deny", "203.0.113.2", "--allow-local"),
            {
                "http://203.0.113.77/": (504, "connection_timeout"),
                "http://203.0.113.2:8000/": (403, ADDRESS),
                "http://127.0.0.1:3128/": (403, LOOP),
                "http://127.0.0.1:1/": (502, "connection_refused"),
            },
        ),
        (("--allow", "10.0.2.0/24"), {"http://203.0.113.2:8000/": (403, "http_request_denied")}),
    ],
)
def test_what_it_does_not_do_it_says(
    world: Any, options: tuple[str, ...], answers: dict[str, tuple[int, str]]
) -> None:
    with world.relaying(*options) as relay:
        for number, (url, (status, kind)) in enumerate(answers.items(), 1):
            result = world.curl("--include", *PROXY, url)
            assert result["http_code"] == status, (url, result)
            assert f"error={kind};".encode() in result["body"], (url, result["body"])
            assert relay.event("refused", number)["status"] == status


def test_a_token_is_asked_for(world: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef\n")
    tokens.chmod(0o600)
    with world.serving(answering()) as port, world.relaying("--token-file", str(tokens)):
        url = f"http://{SERVER[4]}:{port}/"
        assert world.curl(*PROXY, url)["http_code"] == 407
        assert world.curl(*PROXY, "--proxy-user", "me:wrong", url)["http_code"] == 407
        known = ("--proxy-user", "me:0123456789abcdef")
        assert world.curl(*PROXY, *known, url)["body"] == BODY
        assert world.curl(*PROXY, *known, "--proxytunnel", url)["body"] == BODY


def test_two_hundred_clients_at_once_each_get_their_own(world: Any) -> None:
    def echo(connection: socket.socket) -> None:
        while block := connection.recv(65536):
            connection.sendall(block)

    with ExitStack() as stack:
        port = stack.enter_context(world.serving(echo))
        relay = stack.enter_context(world.relaying())
        clients = [
            stack.enter_context(world.connect(f"{SERVER[4]}:{port}", mptcp=bool(n % 2)))
            for n in range(200)
        ]
        chunks = [b"%04d" % n * 5000 for n in range(200)]
        for client, words in zip(clients, chunks, strict=True):
            client.sendall(words)
        for client, words in zip(clients, chunks, strict=True):
            assert take(client, len(words)) == words
        for client in clients:
            client.close()
        relay.event("relayed", 200)


def test_a_slow_client_holds_its_server_back_and_nobody_else(world: Any) -> None:
    sent = [0]

    def flood(connection: socket.socket) -> None:
        block = bytes(100_000)
        for _ in range(3000):
            connection.sendall(block)
            sent[0] += len(block)

    with (
        world.serving(flood) as port,
        world.relaying() as relay,
        world.connect(f"{SERVER[4]}:{port}") as slow,
    ):
        deadline_s, before = time.monotonic() + 10, -1
        while sent[0] != before and time.monotonic() < deadline_s:
            before = sent[0]
            time.sleep(0.5)
        # The kernels' buffers are full, the relay holds no more than a block.
        assert sent[0] < 100_000_000
        memory = Path(f"/proc/{relay.process.pid}/status").read_text()
        rss_kb = int(memory.partition("VmRSS:")[2].split()[0])
        assert rss_kb < 120_000
        with world.connect(f"{SERVER[4]}:{port}") as quick:
            take(quick, 50_000_000)
        take(slow, 1_000_000)


def test_limits_are_kept_and_said(world: Any) -> None:
    def wait(connection: socket.socket) -> None:
        connection.recv(1)

    with (
        world.serving(wait) as port,
        world.relaying("--max-per-client", "2"),
        world.connect(f"{SERVER[4]}:{port}"),
        world.connect(f"{SERVER[4]}:{port}") as second,
    ):
        refused = world.curl(*PROXY, f"http://{SERVER[4]}:{port}/")
        assert refused["http_code"] == 503
        second.close()
        time.sleep(0.2)
        world.connect(f"{SERVER[4]}:{port}").close()


def test_idle_ones_end(world: Any) -> None:
    with (
        world.serving(lambda connection: connection.recv(1)) as port,
        world.relaying("--idle", "500ms") as relay,
        world.connect(f"{SERVER[4]}:{port}") as idle,
    ):
        with pytest.raises(ConnectionResetError):
            idle.recv(1)
        assert relay.event("relayed")["ended"] == "idle"


def test_it_lets_living_connections_end(world: Any) -> None:
    go_on = threading.Event()

    def late(connection: socket.socket) -> None:
        connection.recv(1)
        go_on.wait(10)
        connection.sendall(b"done")

    with (
        world.serving(late) as port,
        world.relaying("--drain", "10s") as relay,
        world.connect(f"{SERVER[4]}:{port}") as connection,
        world.connect(None) as without_a_word,
    ):
        connection.sendall(b"x")
        relay.process.send_signal(signal.SIGTERM)
        relay.event("draining")
        assert without_a_word.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            world.connect(None)
        go_on.set()
        assert connection.recv(9) == b"done"
        assert connection.recv(9) == b""
        connection.close()
        assert relay.process.wait(5) == 0
        relay.event("ended")


def test_a_second_signal_does_not_wait(world: Any) -> None:
    with (
        world.serving(endless) as port,
        world.relaying("--drain", "60s") as relay,
        world.connect(f"{SERVER[4]}:{port}") as connection,
    ):
        relay.process.send_signal(signal.SIGINT)
        relay.event("draining")
        relay.process.send_signal(signal.SIGINT)
        assert relay.process.wait(5) == 0
        with pytest.raises(ConnectionResetError):
            take(connection, 1 << 40)


def test_a_request_that_never_comes_whole_harms_nobody(world: Any) -> None:
    with world.serving(answering()) as port, world.relaying():
        hanging = [world.connect(None) for _ in range(20)]
        for one in hanging:
            one.sendall(b"GET http://a")
        assert world.curl(*PROXY, f"http://{SERVER[4]}:{port}/")["body"] == BODY
        hanging[0].sendall(b"\r\n\r\n")
        assert b" 400 " in hanging[0].recv(4096)
        for one in hanging:
            one.close()


@pytest.mark.parametrize("version", [4, 6])
def test_diverted_clients_know_nothing_of_it(world: Any, tmp_path: Path, version: int) -> None:
    rules = tmp_path / "rules"
    rules.write_text(PLAIN["relay-rules"].read_text())
    before = world.relay.run("iptables-save").stdout.splitlines()[1:-1]
    for interface in ("net1", "net2"):
        world.relay.run("sh", str(rules), "up", interface, "8000")
    with world.serving(answering()) as port, world.relaying("--transparent", "8000") as relay:
        host = SERVER[4] if version == 4 else f"[{SERVER[6]}]"
        result = world.curl(f"http://{host}:{port}/", prefix=("mptcpize", "run"))
        assert result["body"] == BODY
        relayed = relay.event("relayed")
        assert relayed["subflows"] is not None
        assert relayed["origin"] == f"{SERVER[version]}:{port}"
        # Who connects to the port itself gets nothing from it, be it told so while it still connects.
        with (
            world.client.entered(),
            pytest.raises(ConnectionResetError),
            socket.create_connection((RELAY[4], 8000), 5) as direct,
        ):
            direct.recv(1)
    for interface in ("net1", "net2"):
        world.relay.run("sh", str(rules), "down", interface, "8000")
    after = world.relay.run("iptables-save").stdout.splitlines()[1:-1]
    assert [line for line in after if line.startswith("-A")] == [
        line for line in before if line.startswith("-A")
    ]
    assert "11532" not in world.relay.ip("rule", "show")
