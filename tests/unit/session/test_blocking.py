"""Sessions as BSD sockets: blocking, with time-outs, with select."""

import contextlib
import errno
import os
import random
import resource
import select
import socket as bsd
import subprocess
import sys
import threading

import pytest

from cedos.errors import ConfigError, SessionRefusedError
from cedos.model import Bulk, Label, Urgency
from cedos.session import blocking
from cedos.session.known_hosts import KnownHosts, KnownServer
from cedos.session.protocol.crypto import KeyPair

BACKGROUND = Label(Urgency.BACKGROUND, Bulk.LARGE)
LONG_S = 20.0


def listening_with(key):
    made = blocking.socket()
    made.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, key)
    made.bind(("127.0.0.1", 0))
    made.listen()
    made.settimeout(LONG_S)
    return made


def dial(address, server_key, seconds=LONG_S):
    made = blocking.socket()
    made.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, KeyPair(os.urandom(32)))
    made.setsockopt(blocking.SOL_SESSION, blocking.SO_SERVER_KEY, server_key)
    made.settimeout(seconds)
    try:
        made.connect(address)
    except OSError:
        made.close()
        raise
    return made


@pytest.fixture
def ends():
    """A client and the accepted socket, on this host's loopback."""
    key = KeyPair(os.urandom(32))
    with listening_with(key) as listening:
        near = dial(listening.getsockname(), key.public)
        far, address = listening.accept()
        far.settimeout(LONG_S)
        assert far.getpeername() == address == near.getsockname()
        assert near.getpeername() == listening.getsockname() == far.getsockname()
        with near, far:
            yield near, far


def read_all(of):
    parts = []
    while part := of.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def test_bytes_both_ways_and_the_end(ends):
    near, far = ends
    data = random.Random(1).randbytes(5_000_000)  # more than is read ahead
    sending = threading.Thread(target=lambda: (near.sendall(data), near.shutdown(bsd.SHUT_WR)))
    sending.start()
    assert far.recv(3) == data[:3]
    assert read_all(far) == data[3:]
    assert far.recv(10) == b""
    sending.join()
    far.sendall(bytearray(b"still"))
    far.close()  # what was sent arrives
    assert read_all(near) == b"still"
    with pytest.raises(BrokenPipeError):
        near.send(b"x")


def test_the_end_of_a_session_is_an_error_of_all_calls(ends):
    near, far = ends
    far.sendall(b"before")
    assert near.recv(10) == b"before"
    far.session.flow.driver.loop.call_soon_threadsafe(far.session.abort)
    for call in (lambda: near.recv(1), lambda: near.send(b"x"), lambda: near.recv(1)):
        with pytest.raises(ConnectionResetError, match="the session has ended"):
            call()
    assert select.select([near], [near], [], 0)[:2] == ([near], [near])


def test_time_outs_and_no_blocking(ends):
    near, far = ends
    near.settimeout(0.05)
    with pytest.raises(TimeoutError):
        near.recv(1)
    with pytest.raises(TimeoutError):
        near.sendall(bytes(64_000_000))
    near.setblocking(False)
    with pytest.raises(BlockingIOError):
        near.recv(1)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match=r"[Vv]alue"):
            near.settimeout(wrong)
    far.sendall(b"x")
    assert select.select([near], [], [], LONG_S)[0]
    assert near.recv(5) == b"x"
    assert not select.select([near], [], [], 0)[0]


def test_select_waits_for_sessions_room_and_new_sessions():
    key = KeyPair(os.urandom(32))
    with listening_with(key) as listening:
        assert not select.select([listening], [], [], 0)[0]
        with dial(listening.getsockname(), key.public) as near:
            assert select.select([listening], [], [], LONG_S)[0]
            far, _ = listening.accept()
            assert not select.select([listening], [], [], 0)[0]
            near.setblocking(False)
            sent = 0
            while select.select([], [near], [], 1)[
                1
            ]:  # a second without room: the peer takes nothing
                with contextlib.suppress(BlockingIOError):
                    sent += near.send(bytes(1 << 20))
            while sent:
                sent -= len(far.recv(1 << 20))
            assert select.select([], [near], [], LONG_S)[1]
            far.close()
            assert select.select([near], [], [], LONG_S)[0]
            assert near.recv(1) == b""


def test_options(ends):
    near, far = ends
    for option, value in (
        (blocking.SO_RCVBUFTH, (1000, 2000)),
        (blocking.SO_ESIZE, 10_000),
        (blocking.SO_DEADLINE, 30),
        (blocking.SO_LABEL, BACKGROUND),
    ):
        near.setsockopt(blocking.SOL_SESSION, option, value)
        assert near.getsockopt(blocking.SOL_SESSION, option) == value
    assert near.session.label == BACKGROUND
    near.sendall(b"x")
    assert far.recv(1) == b"x"


def test_a_server_from_the_users_file(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    key = KeyPair(os.urandom(32))
    with listening_with(key) as listening, blocking.socket() as named, blocking.socket() as unknown:
        KnownHosts().save(KnownServer(*listening.getsockname(), key.public), "here")
        named.connect("here")
        assert named.getpeername() == listening.getsockname()
        with pytest.raises(OSError, match=f"Errno {errno.EISCONN}"):
            named.connect("here")
        with pytest.raises(OSError, match="no key is known") as error:
            unknown.connect("there")
    assert error.value.errno == errno.EINVAL


def test_a_connect_that_fails_is_an_os_error():
    with listening_with(KeyPair(os.urandom(32))) as listening:
        address = listening.getsockname()
        with pytest.raises(ConnectionRefusedError, match="another key") as refused:
            dial(address, KeyPair(os.urandom(32)).public)
        assert isinstance(refused.value.__cause__, SessionRefusedError)
        with blocking.socket() as second, pytest.raises(OSError, match="cannot listen") as taken:
            second.bind(address)
        assert taken.value.errno == errno.EADDRINUSE
    with pytest.raises(ConnectionRefusedError, match="Connection refused"):
        dial(address, bytes(range(32)), 0.5)
    with pytest.raises(OSError, match="32 bytes, not 1") as short:
        dial(address, b"x")
    assert short.value.errno == errno.EINVAL
    assert isinstance(short.value.__cause__, ConfigError)
    with bsd.create_server(("127.0.0.1", 0)) as silent, pytest.raises(TimeoutError) as late:
        dial(silent.getsockname(), bytes(range(32)), 0.3)
    assert late.value.errno == errno.ETIMEDOUT


def test_calls_that_a_socket_cannot_serve_do_not_wait(ends):
    alone = blocking.socket()
    for call, number in (
        (lambda: alone.recv(1), errno.ENOTCONN),
        (lambda: alone.send(b"x"), errno.ENOTCONN),
        (lambda: alone.shutdown(bsd.SHUT_WR), errno.ENOTCONN),
        (alone.accept, errno.EINVAL),
        (lambda: ends[0].bind(("127.0.0.1", 0)), errno.EINVAL),
        (lambda: ends[0].shutdown(bsd.SHUT_RD), errno.EINVAL),
        (lambda: alone.setsockopt(blocking.SOL_SESSION, 99, 1), errno.ENOPROTOOPT),
        (lambda: alone.getsockopt(bsd.SOL_SOCKET, bsd.SO_ERROR), errno.ENOPROTOOPT),
    ):
        with pytest.raises(OSError, match=f"Errno {number}"):
            call()
    alone.close()
    alone.close()
    assert alone.fileno() == -1
    for call in (lambda: alone.recv(1), alone.accept, lambda: alone.connect(("127.0.0.1", 9))):
        with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
            call()


def test_closing_wakes_a_waiting_thread(ends):
    _, far = ends
    numbers = []
    begun = threading.Event()

    def wait():
        begun.set()
        try:
            far.recv(1)
        except OSError as error:
            numbers.append(error.errno)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert begun.wait(LONG_S)
    far.close()
    waiting.join(LONG_S)
    assert numbers == [errno.EBADF]


FORGETFUL = """
import os, sys
from cedos.session import blocking
from cedos.session.protocol.crypto import KeyPair

one = blocking.socket()
one.setsockopt(blocking.SOL_SESSION, blocking.SO_KEY, KeyPair(os.urandom(32)))
one.setsockopt(blocking.SOL_SESSION, blocking.SO_SERVER_KEY, bytes.fromhex(sys.argv[2]))
one.connect(("127.0.0.1", int(sys.argv[1])))
one.sendall(bytes(3_000_000))
if (child := os.fork()) == 0:
    sys.exit()  # its parent's session goes on
os.waitpid(child, 0)
one.sendall(b"x")
{end}
"""


@pytest.mark.parametrize("end", ["", "one.close()", "raise RuntimeError"])
def test_what_a_program_has_sent_arrives_after_its_end(end):
    key = KeyPair(os.urandom(32))
    with listening_with(key) as listening:
        port = str(listening.getsockname()[1])
        program = [sys.executable, "-c", FORGETFUL.format(end=end), port, key.public.hex()]
        with subprocess.Popen(program, stderr=subprocess.DEVNULL) as client:
            try:
                far, _ = listening.accept()
                with far:
                    far.settimeout(LONG_S)
                    assert len(read_all(far)) == 3_000_001
                assert client.wait(LONG_S) == ("raise" in end)
            finally:
                client.kill()


def test_an_accept_without_descriptors_loses_no_session():
    """The session was taken from the queue, and its client waited in vain."""
    key = KeyPair(os.urandom(32))
    with listening_with(key) as listening, dial(listening.getsockname(), key.public) as near:
        assert select.select([listening], [], [], LONG_S)[0]
        own = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, own[1]))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                listening.accept()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, own)
        far, _ = listening.accept()
        with far:
            near.sendall(b"x")
            assert far.recv(1) == b"x"


@pytest.mark.parametrize(("files", "sessions"), [(1_024, 170), (20_000, 2_000)])
def test_one_address_leaves_most_descriptors_to_others(monkeypatch, files, sessions):
    """Three descriptors belong to a session: of its connection, and of the pair."""
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (files, files))
    with listening_with(KeyPair(os.urandom(32))) as listening:
        limits = listening._listener._flows._ledger.limits
    assert limits.connections_per_peer == sessions
    assert limits.absent == min(files // 8, 4_096)


def test_a_close_with_bytes_that_were_not_read_sends_all_and_fails_silently(ends, caplog):
    near, far = ends
    far.sendall(bytes(1_000))
    assert select.select([near], [], [], LONG_S)[0]
    sent = random.Random(2).randbytes(100_000)
    near.sendall(sent)
    sending = near._tasks[1]
    near.close()
    assert read_all(far) == sent
    assert sending.exception() is None
    assert not caplog.records
