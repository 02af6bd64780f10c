"""Sessions as BSD sockets: blocking, with time-outs, with select, with messages."""

import contextlib
import errno
import os
import select
import socket as bsd
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cedos.errors import ConfigError, SessionRefusedError
from cedos.model import Bulk, Label, Urgency
from cedos.session import blocking
from cedos.session.protocol.crypto import KeyPair

BACKGROUND = Label(Urgency.BACKGROUND, Bulk.LARGE)


@pytest.fixture
def pair() -> Iterator[tuple[blocking.socket, blocking.socket]]:
    """A client and the accepted socket, on this host's loopback."""
    key = KeyPair(os.urandom(32))
    listening = blocking.socket()
    listening.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, key)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    client = blocking.socket()
    for option, value in (
        (blocking.SO_KEY, KeyPair(os.urandom(32))),
        (blocking.SO_SERVER_KEY, key.public),
    ):
        client.setsockopt(blocking.SOL_SESSION, option, value)
    client.connect(listening.getsockname())
    server, (host, port) = listening.accept()
    assert host == "127.0.0.1"
    (path,) = client.session.flow.paths.values()
    assert port == path.connection.getsockname()[1]
    yield client, server
    for each in (client, server, listening):
        each.close()


def test_bytes_both_ways_and_the_end(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    data = os.urandom(5_000_000)
    sending = threading.Thread(target=client.sendall, args=(data,))
    sending.start()
    got = bytearray()
    while len(got) < len(data):
        got += server.recv(100_000)
    sending.join()
    assert bytes(got) == data
    server.sendall(b"done")
    buffer = bytearray(10)
    assert client.recv_into(buffer) == 4
    client.shutdown(blocking.SHUT_WR)
    assert server.recv(10) == b""
    ending = threading.Thread(target=server.close_wait)
    ending.start()
    client.close_wait(20)
    ending.join(20)
    assert not ending.is_alive()


def test_time_outs_and_no_blocking(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    client.settimeout(0.05)
    with pytest.raises(TimeoutError):
        client.recv(1)
    client.setblocking(False)
    with pytest.raises(BlockingIOError):
        client.recv(1)
    with pytest.raises(BlockingIOError):
        client.ms_recv()
    server.sendall(b"x")
    assert select.select([client], [], [], 20)[0]
    assert client.recv(5) == b"x"
    assert not select.select([client], [], [], 0)[0]


def test_select_finds_room_and_its_want(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    assert select.select([], [client], [], 20)[1]
    client.setblocking(False)
    sent = 0
    while select.select([], [client], [], 1)[1]:
        with contextlib.suppress(BlockingIOError):
            sent += client.send(bytes(1 << 20))
        assert sent < 1 << 30
    left = sent
    while left:
        left -= len(server.recv(1 << 20))
    assert select.select([], [client], [], 20)[1]


def test_what_happens_while_a_descriptor_is_made_is_told_once(
    pair: tuple[blocking.socket, blocking.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, server = pair
    makes = bsd.socketpair

    class Slow(bsd.socket):
        def setsockopt(self, *arguments: object) -> None:
            server.sendall(b"a")
            time.sleep(0.1)
            super().setsockopt(*arguments)

    def slow() -> tuple[bsd.socket, bsd.socket]:
        shown, hidden = makes()
        return Slow(shown.family, shown.type, shown.proto, shown.detach()), hidden

    monkeypatch.setattr(bsd, "socketpair", slow)
    client.fileno()
    assert select.select([client], [], [], 20)[0]
    assert client.recv(10) == b"a"
    assert not select.select([client], [], [], 0)[0]


def test_messages_with_labels(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    irob = client.begin_irob(BACKGROUND, after=())
    client.irob_send(irob, b"in ")
    client.ms_send(b"urgent", after=())
    first = server.ms_recv()
    assert first is not None
    assert (first.data, first.label) == (b"urgent", Label())
    client.irob_send(irob, b"pieces")
    client.end_irob(irob)
    second = server.ms_recv()
    assert second is not None
    assert (second.data, second.label) == (b"in pieces", BACKGROUND)


def test_the_other_end_gives_up(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    blocking.background.loop().call_soon_threadsafe(server.session.abort, "enough")
    with pytest.raises(ConnectionResetError, match="enough"):
        client.recv(1)
    deadline_s = time.monotonic() + 20
    while not client.session.ended:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    with pytest.raises(ConnectionResetError, match="enough"):
        client.send(b"x")


def test_options(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    client.setsockopt(blocking.SOL_SESSION, blocking.SO_RCVBUFTH, (1000, 2000))
    assert client.getsockopt(blocking.SOL_SESSION, blocking.SO_RCVBUFTH) == (1000, 2000)
    client.setsockopt(blocking.SOL_SESSION, blocking.SO_ESIZE, 10_000)
    client.setsockopt(blocking.SOL_SESSION, blocking.SO_DEADLINE, 30)
    client.setsockopt(blocking.SOL_SESSION, blocking.SO_LABEL, BACKGROUND)
    assert client.session.label == BACKGROUND
    with pytest.raises(OSError, match="option 1 of level 1"):
        client.setsockopt(1, 1, 3)
    deadline_s = time.monotonic() + 20
    while server.session.peer_wishes is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert server.session.peer_wishes.expected_bytes == 10_000


def test_without_a_key_or_a_connection(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    alone = blocking.socket()
    with pytest.raises(OSError, match=r"no key is known for 127\.0\.0\.1:9 "):
        alone.connect(("127.0.0.1", 9))
    with pytest.raises(OSError, match="not connected"):
        alone.sendall(b"x")
    alone.close()


def dial(port: int, server_key: bytes, seconds: float | None = None) -> None:
    with blocking.socket() as client:
        client.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, KeyPair(os.urandom(32)))
        client.setsockopt(blocking.SOL_SESSION, blocking.SO_SERVER_KEY, server_key)
        client.settimeout(seconds)
        client.connect(("127.0.0.1", port))


def test_a_connect_that_fails_is_an_os_error() -> None:
    with blocking.socket() as listening:
        listening.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, KeyPair(os.urandom(32)))
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        with pytest.raises(ConnectionRefusedError, match="another key") as refused:
            dial(port, KeyPair(os.urandom(32)).public)
        assert isinstance(refused.value.__cause__, SessionRefusedError)
        with blocking.socket() as second:
            second.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, KeyPair(os.urandom(32)))
            with pytest.raises(OSError, match="cannot listen") as taken:
                second.bind(("127.0.0.1", port))
        assert taken.value.errno == errno.EADDRINUSE
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        dial(port, bytes(range(32)), 0.5)
    with pytest.raises(OSError, match="32 bytes, not 1") as short:
        dial(port, b"x")
    assert short.value.errno == errno.EINVAL
    assert isinstance(short.value.__cause__, ConfigError)


def test_nobody_answers_in_time() -> None:
    with bsd.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError) as late:
        dial(silent.getsockname()[1], bytes(range(32)), 0.3)
    assert late.value.errno == errno.ETIMEDOUT


def test_calls_that_a_socket_cannot_serve_do_not_wait() -> None:
    alone = blocking.socket()
    for call, number in (
        (lambda: alone.recv(1), errno.ENOTCONN),
        (lambda: alone.send(b"x"), errno.ENOTCONN),
        (alone.ms_recv, errno.ENOTCONN),
        (alone.accept, errno.EINVAL),
        (lambda: alone.setsockopt(blocking.SOL_SESSION, 99, 1), errno.ENOPROTOOPT),
        (lambda: alone.getsockopt(blocking.SOL_SESSION, 99), errno.ENOPROTOOPT),
        (lambda: alone.setsockopt(1, 1, 1), errno.ENOPROTOOPT),
    ):
        with pytest.raises(OSError, match=f"Errno {number}"):
            call()
    alone.close()
    alone.close()
    for call in (lambda: alone.recv(1), alone.accept, lambda: alone.connect(("127.0.0.1", 9))):
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            call()


def test_closing_wakes_who_waits_and_nothing_goes_wrong_in_the_loop(
    pair: tuple[blocking.socket, blocking.socket],
) -> None:
    client, server = pair
    loop = blocking.background.loop()
    wrong: list[object] = []
    loop.call_soon_threadsafe(loop.set_exception_handler, lambda _loop, what: wrong.append(what))
    numbers: list[int | None] = []

    def wait() -> None:
        try:
            server.recv(1)
        except OSError as error:
            numbers.append(error.errno)

    waiting = threading.Thread(target=wait)
    waiting.start()
    held = threading.Event()
    loop.call_soon_threadsafe(held.wait, 20)
    # What a `recv` has left to do in the loop comes there after the socket is closed.
    loop.call_soon_threadsafe(client._update)
    loop.call_soon_threadsafe(server._update)
    client.close()
    server.close()
    held.set()
    waiting.join(20)
    assert not waiting.is_alive()
    done = threading.Event()
    loop.call_soon_threadsafe(done.set)
    assert done.wait(20)
    loop.call_soon_threadsafe(loop.set_exception_handler, None)
    assert numbers == [errno.EBADF]
    assert not wrong


def test_several_threads_wait_at_once(pair: tuple[blocking.socket, blocking.socket]) -> None:
    client, server = pair
    size = 3_000_000

    def echo() -> None:
        left = size
        while left:
            data = server.recv(65_536)
            server.sendall(data)
            left -= len(data)

    def messages() -> None:
        for _ in range(200):
            message = server.ms_recv()
            assert message is not None
            server.ms_send(message.data)

    def ask() -> None:
        for number in range(200):
            client.ms_send(b"%d" % number)
            message = client.ms_recv()
            assert message is not None
            assert message.data == b"%d" % number

    failed: list[BaseException] = []

    def guarded(what: Callable[[], None]) -> None:
        try:
            what()
        except BaseException as error:
            failed.append(error)

    def write() -> None:
        client.sendall(bytes(size))

    def read() -> None:
        left = size
        while left:
            left -= len(client.recv(65_536))

    threads = [
        threading.Thread(target=guarded, args=(each,))
        for each in (echo, messages, ask, write, read)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert not failed
    assert not any(each.is_alive() for each in threads)


FORGETFUL = """
import os, sys
import cedos.session.blocking as socket
from cedos.session.protocol.crypto import KeyPair

one = socket.socket()
one.setsockopt(socket.SOL_SESSION, socket.SO_KEY, KeyPair(os.urandom(32)))
one.setsockopt(socket.SOL_SESSION, socket.SO_SERVER_KEY, bytes.fromhex(sys.argv[2]))
one.connect(("127.0.0.1", int(sys.argv[1])))
kept = [one, one.makefile("rb")]
one.sendall(bytes(3_000_000))
if (child := os.fork()) == 0:
    sys.exit()  # its parent's session goes on
os.waitpid(child, 0)
one.sendall(b"x")
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "one.close()", "raise RuntimeError"])
def test_a_program_that_ends_has_said_what_it_sent_and_that_it_ends(end: str) -> None:
    key = KeyPair(os.urandom(32))
    listening = blocking.socket()
    listening.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, key)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    port = listening.getsockname()[1]
    program = [sys.executable, "-c", FORGETFUL.format(end=end), str(port), key.public.hex()]
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as client:
        server, _ = listening.accept()
        try:
            server.settimeout(20)
            got = 0
            while data := server.recv(1 << 20):
                got += len(data)
            assert got == 3_000_001
            assert client.wait(2) == {"": 0, "sys.exit(3)": 3, "one.close()": 0}.get(end, 1)
        finally:
            client.kill()
            server.close()
            listening.close()
