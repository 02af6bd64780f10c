"""Several processes accept on one port: a connection goes to the one that serves its host."""

import random
from collections.abc import Callable

import pytest

from cedos.session.protocol.channel.acceptor import Acceptor
from cedos.session.protocol.channel.channel import Channel
from cedos.session.protocol.handshake.locators import Locators, share_byte
from cedos.session.protocol.handshake.messages import LOCATOR_BYTES
from cedos.session.protocol.handshake.outcome import FailureKind
from cedos.session.sockets.sibling_processes import process_of
from tests.unit.session.conftest import Book, Hosts

COUNT = 4


class Processes:
    """`COUNT` acceptors with one key, each with flows of its own."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts
        self.books = [Book() for _ in range(COUNT)]
        self.acceptors = [
            Acceptor(
                hosts.server, book, random=hosts.random, hardware_aes=True, now=hosts.now,
                placement=self._placement(number),
            )
            for number, book in enumerate(self.books)
        ]  # fmt: skip
        self.owner = process_of(hosts.client.public, COUNT)

    def _placement(self, number: int) -> Callable[[int], int | None]:
        return lambda share: None if share % COUNT == number else share % COUNT

    def talk(self, dialler: Channel, first: int) -> Channel:
        """With whoever took the connection, and who it is handed to."""
        hosts, taker = self.hosts, self.acceptors[first].channel("192.0.2.1", self.hosts.now)
        hosts.carry(dialler, taker)
        if first != self.owner:
            assert taker.failure is not None
            assert taker.failure.kind is FailureKind.ELSEWHERE
            assert taker.elsewhere is not None
            assert taker.elsewhere.process == self.owner
            assert taker.outgoing() == []
            hello, taker = taker.elsewhere.hello, self.acceptors[self.owner].channel("", hosts.now)
            taker.receive(hello, hosts.now)
        for _ in range(4):
            hosts.carry(taker, dialler)
            hosts.carry(dialler, taker)
        assert taker.failure is None
        assert taker.opened is not None
        credentials = taker.opened.credentials
        self.books[self.owner].flows[credentials.flow_id] = credentials
        return taker


@pytest.mark.parametrize("seed", range(4))
def test_whoever_takes_it_the_hosts_own_process_serves_it(
    make_hosts: type[Hosts], seed: int
) -> None:
    hosts = make_hosts(seed=seed)
    processes = Processes(hosts)
    client = hosts.set_up()
    processes.talk(client, 0)
    assert client.opened is not None
    for first in range(COUNT):
        processes.talk(hosts.resume(client.opened.credentials), first)
    assert [len(each.flows) for each in processes.books].count(0) == COUNT - 1


def test_a_locator_says_whose_the_flow_is(hosts: Hosts) -> None:
    made = Locators(hosts.server)
    draw = random.Random(1).randbytes
    seen = set()
    for _ in range(300):
        flow_id = draw(16)
        locator = made.issue(flow_id, hosts.client.public, draw)
        assert len(locator) == LOCATOR_BYTES
        assert made.read(locator) == (flow_id, share_byte(hosts.client.public))
        seen.add(locator[11])
    assert len(seen) > 100, "it is not to be seen on the wire"
