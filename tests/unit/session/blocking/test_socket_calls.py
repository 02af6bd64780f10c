"""What `socket.socket` has, a session has, or says that it cannot."""

import contextlib
import errno
import gc
import io
import os
import random
import select
import socket as bsd
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cedos.session import blocking
from cedos.session.blocking import background
from cedos.session.known_hosts import KnownHosts, KnownServer
from cedos.session.protocol.crypto import KeyPair

Ends = tuple[blocking.socket, blocking.socket]


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[blocking.socket]:
    """Accepts sessions; its key is in the user's file."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = KeyPair(os.urandom(32))
    with blocking.create_server(("127.0.0.1", 0), key=key) as made:
        KnownHosts().save(KnownServer(*made.getsockname(), key.public), "here")
        yield made


@pytest.fixture
def ends(listening: blocking.socket) -> Iterator[Ends]:
    near = blocking.create_connection(listening.getsockname())
    far, _ = listening.accept()
    yield near, far
    near.close()
    far.close()


def read_all(of: Callable[[int], bytes]) -> bytes:
    parts = []
    while part := of(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_nothing_is_missing(ends: Ends) -> None:
    there = {each for each in dir(bsd.socket) if not each.startswith("_")}
    assert {each for each in there if not hasattr(ends[0], each)} == set()
    never = {"SocketType", "close", "dup", "fromfd", "recv_fds", "send_fds", "socketpair"}
    names = {each for each in dir(bsd) if not each.startswith("_")}
    assert {each for each in names if not hasattr(blocking, each)} == never
    assert blocking.__getattr__("timeout") is TimeoutError


def test_reading_in_every_way(ends: Ends) -> None:
    near, far = ends
    near.sendmsg([b"ab", memoryview(b"cdef"), bytearray(b"gh")], [], 0, ("elsewhere", 1))
    near.sendto(b"ij", ("elsewhere", 1))
    near.sendto(b"kl", bsd.MSG_NOSIGNAL, ("elsewhere", 1))
    assert far.recv(12, bsd.MSG_PEEK | bsd.MSG_WAITALL) == b"abcdefghijkl"
    buffer = bytearray(8)
    assert far.recv_into(buffer, 2, bsd.MSG_PEEK) == 2
    assert far.recv_into(memoryview(buffer)[4:], 2) == 2
    assert bytes(buffer) == b"ab\0\0ab\0\0"
    assert far.recvmsg(2, 100) == (b"cd", [], 0, far.getpeername())
    first, second = bytearray(3), bytearray(4)
    assert far.recvmsg_into([first, second], 0, bsd.MSG_WAITALL)[:3] == (7, [], 0)
    assert first + second == b"efghijk"
    assert far.recvfrom_into(buffer, 1) == (1, far.getpeername())
    assert buffer[:1] == b"l"
    for wrong in (lambda: far.recv(-1), lambda: far.recv_into(buffer, 9)):
        with pytest.raises(ValueError, match="buffer"):
            wrong()
    for wrong_data in (7, "text"):
        with pytest.raises(TypeError):
            near.send(wrong_data)


def test_what_was_read_is_not_lost_when_the_rest_is_late(ends: Ends) -> None:
    near, far = ends
    sent = random.Random(2).randbytes(1_100_000)  # more than is read ahead
    sending = threading.Thread(target=near.sendall, args=(sent,))
    sending.start()
    far.settimeout(1.0)
    got = far.recv(1_200_000, bsd.MSG_WAITALL)
    assert len(got) >= 1 << 20
    rest = b""
    with contextlib.suppress(TimeoutError):
        rest = far.recv(1_200_000)
    assert got + rest == sent
    sending.join()


def test_a_time_out_is_of_one_call(ends: Ends) -> None:
    near, _ = ends
    near.settimeout(0.4)
    seen: set[float | None] = set()

    def send() -> None:
        with pytest.raises(TimeoutError):
            near.sendall(bytes(64_000_000))

    sending = threading.Thread(target=send)
    sending.start()
    while sending.is_alive():
        seen.add(near.gettimeout())
        time.sleep(0.02)
    assert seen == {0.4}
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="time-out"):
            near.settimeout(wrong)
    assert near.gettimeout() == 0.4


def test_ends_that_are_shut_down(ends: Ends) -> None:
    near, far = ends
    near.shutdown(bsd.SHUT_WR)
    with pytest.raises(OSError, match="Errno") as broken:
        near.send(b"x")
    assert broken.value.errno == errno.EPIPE
    far.sendall(b"still")
    assert near.recv(10) == b"still"
    with pytest.raises(OSError, match=f"Errno {errno.EINVAL}"):
        near.shutdown(9)
    with blocking.socket() as alone, pytest.raises(OSError, match=f"Errno {errno.ENOTCONN}"):
        alone.shutdown(bsd.SHUT_RD)


def test_what_a_session_cannot_do_it_says(ends: Ends, listening: blocking.socket) -> None:
    near, _ = ends
    assert near.get_inheritable() is False
    near.set_inheritable(False)
    calls: list[Callable[[], Any]] = [
        near.dup,
        listening.detach,
        lambda: near.set_inheritable(True),
        lambda: near.sendmsg([b"x"], [(bsd.SOL_SOCKET, bsd.SCM_RIGHTS, b"")]),
        near.sendmsg_afalg,
        lambda: near.recv(1, bsd.MSG_OOB),
        lambda: blocking.socket(fileno=3),
        lambda: blocking.create_server(("127.0.0.1", 0), reuse_port=True),
    ]
    for call in calls:
        with pytest.raises(OSError, match=f"Errno {errno.EOPNOTSUPP}"):
            call()
    with pytest.raises(AttributeError, match="socketpair"):
        blocking.__getattr__("socketpair")


def test_options_are_numbers_or_bytes(ends: Ends, listening: blocking.socket) -> None:
    near, _ = ends
    assert near.getsockopt(bsd.SOL_SOCKET, bsd.SO_TYPE, 4) == b"\1\0\0\0"
    assert near.getsockopt(bsd.SOL_SOCKET, bsd.SO_DOMAIN) == near.family == bsd.AF_INET
    assert near.getsockopt(bsd.SOL_SOCKET, bsd.SO_PROTOCOL) == bsd.IPPROTO_TCP
    told = [each.getsockopt(bsd.SOL_SOCKET, bsd.SO_ACCEPTCONN) for each in (near, listening)]
    assert told == [0, 1]
    assert blocking.socket(-1, -1, -1).type == bsd.SOCK_STREAM
    with blocking.socket(bsd.AF_INET, bsd.SOCK_STREAM | bsd.SOCK_NONBLOCK) as made:
        assert made.getblocking() is False
    assert "raddr=('127.0.0.1'" in repr(near)


def test_an_address_is_taken_when_it_is_bound(listening: blocking.socket) -> None:
    with blocking.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
        assert port
        with pytest.raises(OSError, match=f"Errno {errno.EINVAL}"):
            made.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="SO_NETWORKS") as bound:
            made.connect(listening.getsockname())
        assert bound.value.errno == errno.EINVAL
        made.listen(5)
        assert made.getsockname() == ("127.0.0.1", port)
    with blocking.socket() as again, pytest.raises(OSError, match=f"Errno {errno.EADDRINUSE}"):
        again.bind(listening.getsockname())
    with blocking.socket() as anywhere:
        anywhere.bind(("", 0))
        anywhere.connect(listening.getsockname())


def test_connecting_without_waiting(listening: blocking.socket) -> None:
    with blocking.socket() as made:
        made.setblocking(False)
        assert made.connect_ex(listening.getsockname()) == errno.EINPROGRESS
        assert select.select([], [made], [], 20)[1]
        assert made.getsockopt(bsd.SOL_SOCKET, bsd.SO_ERROR) == 0
        assert made.connect_ex(listening.getsockname()) == errno.EISCONN
        made.send(b"hello")
        far, _ = listening.accept()
        assert far.recv(5) == b"hello"
        far.close()


def test_a_connection_that_fails_while_nobody_waits(listening: blocking.socket) -> None:
    with bsd.create_server(("127.0.0.1", 0)) as silent:  # it does not accept
        host, port = silent.getsockname()
        KnownHosts().save(KnownServer(host, port, bytes(range(32))), "silent")
        with blocking.socket() as made:
            made.setblocking(False)
            with pytest.raises(BlockingIOError) as begun:
                made.connect((host, port))
            assert begun.value.errno == errno.EINPROGRESS
            assert made.connect_ex((host, port)) == errno.EALREADY
    with blocking.socket() as made:  # nobody has the key that the file has
        made.setsockopt(blocking.SOL_SESSION, blocking.SO_SERVER_KEY, bytes(range(32)))
        made.setblocking(False)
        made.connect_ex(listening.getsockname())
        assert select.select([], [made], [], 20)[1]
        assert made.getsockopt(bsd.SOL_SOCKET, bsd.SO_ERROR) == errno.ECONNREFUSED
        assert made.getsockopt(bsd.SOL_SOCKET, bsd.SO_ERROR) == 0


def test_a_forgotten_socket_ends_its_session(listening: blocking.socket) -> None:
    near = blocking.create_connection(listening.getsockname())
    far, _ = listening.accept()
    near.sendall(b"last words")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del near
        gc.collect()
    assert [each.category for each in told if "unclosed" in str(each.message)] == [ResourceWarning]
    far.settimeout(20)
    assert read_all(far.recv) == b"last words"
    far.close()


def test_a_forgotten_listening_socket_is_there_for_its_sessions_further_paths() -> None:
    """`s, _ = s.accept()`: its sessions still come over other networks, and again after an outage."""
    key = KeyPair(os.urandom(32))
    here = blocking.socket()
    here.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, key)
    here.bind(("127.0.0.1", 0))
    here.listen()
    near = blocking.socket()
    near.setsockopt(blocking.SOL_SESSION, blocking.SO_SERVER_KEY, key.public)
    near.connect(here.getsockname())
    here, _ = here.accept()
    gc.collect()
    for path in list(here.session.flow.paths.values()):
        background.loop().call_soon_threadsafe(partial(path.close, "cut", reset=True))
    time.sleep(0.2)  # (it is cut by now)
    near.sendall(b"over another one")
    here.settimeout(20)
    assert here.recv(100) == b"over another one"
    near.close()
    here.close()
    with pytest.warns(ResourceWarning, match="unclosed"):  # noqa: PT031 - it may be a cycle
        del here
        gc.collect()


def test_a_session_behind_a_descriptor(ends: Ends) -> None:
    near, far = ends
    near.sendall(b"before ")
    assert select.select([far], [], [], 20)[0]  # it is read ahead
    number = far.fileno()
    with bsd.socket(fileno=far.detach()) as plain:
        assert plain.fileno() == number
        assert far.fileno() == -1
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            far.recv(1)
        big = random.Random(3).randbytes(3_000_000)
        sending = threading.Thread(target=lambda: (near.sendall(big), near.shutdown(bsd.SHUT_WR)))
        sending.start()
        assert read_all(plain.recv) == b"before " + big
        sending.join()
        plain.sendall(big)
        plain.shutdown(bsd.SHUT_WR)
        assert read_all(near.recv) == big


def test_closing_a_descriptor_ends_its_session(ends: Ends) -> None:
    near, far = ends
    plain = bsd.socket(fileno=far.detach())
    plain.sendall(b"done")
    plain.shutdown(bsd.SHUT_WR)
    assert read_all(near.recv) == b"done"
    plain.close()  # half closed before, and nothing comes that could tell
    began_s = time.monotonic()
    near.close_wait(20)
    assert time.monotonic() - began_s < 10


def test_a_session_that_fails_ends_its_descriptor(ends: Ends) -> None:
    near, far = ends
    with bsd.socket(fileno=far.detach()) as plain:
        plain.settimeout(20)
        loop = blocking.background.loop()
        loop.call_soon_threadsafe(near.session.abort, "given up")
        assert read_all(plain.recv) == b""

        def send_on() -> None:
            for _ in range(100):
                plain.sendall(bytes(10_000))
                time.sleep(0.02)

        with pytest.raises(BrokenPipeError):
            send_on()


def test_a_child_reads_and_writes_a_session(ends: Ends) -> None:
    near, far = ends
    number = far.detach()
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdout.write(sys.stdin.read().upper())"],
            stdin=number,
            stdout=number,
        )
    finally:
        os.close(number)
    near.sendall(b"to a child")
    near.shutdown(bsd.SHUT_WR)
    assert read_all(near.recv) == b"TO A CHILD"
    assert child.wait(20) == 0


def test_files_of_text_are_not_sent(ends: Ends, tmp_path: Path) -> None:
    near, far = ends
    (tmp_path / "text").write_text("words")
    with (tmp_path / "text").open() as text, pytest.raises(ValueError, match="binary"):
        near.sendfile(text)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        near.sendfile(io.BytesIO(b"x"), count=0)
    assert near.sendfile(io.BytesIO(b"0123456789"), 2, 3) == 3
    assert far.recv(9) == b"234"
