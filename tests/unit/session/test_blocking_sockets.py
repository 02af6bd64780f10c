"""Sessions as BSD sockets: blocking, with time-outs, with select, with messages."""

import os
import select
import threading
import time
from collections.abc import Iterator

import pytest

from cedos.model import Bulk, Label, Urgency
from cedos.session import blocking
from cedos.session.crypto import KeyPair

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
    server, (host, _) = listening.accept()
    assert host == "127.0.0.1"
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
    for _ in range(1000):
        try:
            sent += client.send(bytes(1 << 20))
        except BlockingIOError:
            break
    else:
        raise AssertionError("everything is taken")
    assert not select.select([], [client], [], 0)[1]
    left = sent
    while left:
        left -= len(server.recv(1 << 20))
    assert select.select([], [client], [], 20)[1]


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
    with pytest.raises(OSError, match="level 1"):
        client.setsockopt(1, 2, 3)
    deadline_s = time.monotonic() + 20
    while server.session.peer_wishes is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert server.session.peer_wishes.expected_bytes == 10_000


def test_without_a_key_or_a_connection() -> None:
    alone = blocking.socket()
    with pytest.raises(OSError, match="SO_SERVER_KEY"):
        alone.connect(("127.0.0.1", 9))
    with pytest.raises(OSError, match="not connected"):
        alone.sendall(b"x")
    alone.close()
