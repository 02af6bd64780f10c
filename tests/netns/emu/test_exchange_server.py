"""Requests and responses over real sockets, in a namespace: answered, cancelled, refused."""

import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from emu.experiments.meatballs.live import ExchangeConnection
from emu.testbed.netns import Namespace

pytestmark = pytest.mark.netns
PORT = 7411


@pytest.fixture
def host(make_namespace: Callable[[str], Namespace]) -> Iterator[Namespace]:
    namespace = make_namespace("exchange")
    with namespace.popen(
        *(sys.executable, "-m", "emu.workloads.exchange_server", str(PORT)),
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout.readline().strip() == "ready"
            yield namespace
        finally:
            server.terminate()


def answers(connection: ExchangeConnection, count: int, within_s: float = 20.0) -> list[int]:
    """What is answered until `count` are, or the time is over."""
    found: list[int] = []
    until_s = time.monotonic() + within_s
    with selectors.DefaultSelector() as selector:
        selector.register(connection.socket, selectors.EVENT_READ)
        while len(found) < count and time.monotonic() < until_s and not connection.failed:
            events = selectors.EVENT_READ
            if connection.wants_to_write:
                events |= selectors.EVENT_WRITE
            selector.modify(connection.socket, events)
            for _, happened in selector.select(0.2):
                if happened & selectors.EVENT_WRITE:
                    connection.writable()
                if happened & selectors.EVENT_READ:
                    found += connection.readable()
    return found


def test_requests_are_answered_on_one_connection(host: Namespace) -> None:
    connection = ExchangeConnection(host, "127.0.0.1", ("127.0.0.1", PORT))
    for number in range(5):
        connection.ask(number, 1000, 4000 * (number + 1))
    assert sorted(answers(connection, 5)) == [0, 1, 2, 3, 4]
    connection.abort()


def test_a_cancelled_request_leaves_the_others_alone(host: Namespace) -> None:
    connection = ExchangeConnection(host, "127.0.0.1", ("127.0.0.1", PORT))
    connection.ask(1, 20_000, 100)
    assert answers(connection, 1) == [1]
    connection.cancel(1)
    connection.ask(2, 1000, 100)
    assert answers(connection, 1) == [2]
    connection.abort()


def test_nobody_there_is_a_failure_and_no_exception(host: Namespace) -> None:
    connection = ExchangeConnection(host, "127.0.0.1", ("127.0.0.1", PORT + 1))
    connection.ask(1, 1000, 4000)
    assert answers(connection, 1, within_s=2.0) == []
    assert connection.failed
    connection.abort()


def test_nonsense_ends_the_connection_and_not_the_server(host: Namespace) -> None:
    bad = ExchangeConnection(host, "127.0.0.1", ("127.0.0.1", PORT))
    bad.ask(1, 1000, 100)
    assert answers(bad, 1) == [1]
    bad.socket.send(b"\xff" * 64)
    assert answers(bad, 1, within_s=2.0) == []
    assert bad.failed
    good = ExchangeConnection(host, "127.0.0.1", ("127.0.0.1", PORT))
    good.ask(7, 1000, 100)
    assert answers(good, 1) == [7]
    good.abort()
    bad.abort()
