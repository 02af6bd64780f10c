"""Two hosts that talk in memory: keys from a seed, a book of flows, and a wire to tamper with."""

import random
from dataclasses import dataclass, field

import pytest

from cedos.session.protocol.channel import Acceptor, resume, set_up
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.accepting import FlowGrant, FlowRefusal, FlowRefusalReason
from cedos.session.protocol.handshake.limits import HandshakeLimits
from cedos.session.protocol.handshake.outcome import ConnectionKind
from cedos.session.protocol.handshake.set_up import SetUpOptions


class Book:
    """The flows of a host, and what it does with requests for new ones."""

    def __init__(self):
        self.flows = {}
        self.verdict = lambda asked: FlowGrant(asked.deadline_s)

    def find(self, flow_id):
        return self.flows.get(flow_id)

    def admit(self, request):
        if request.flow_id in self.flows:
            return FlowRefusal(FlowRefusalReason.DUPLICATE)
        return self.verdict(request)


@dataclass
class Hosts:
    """A client, a server, and all that passed between them."""

    seed: int = 0
    limits: HandshakeLimits = field(default_factory=HandshakeLimits)
    server_aes: bool = True
    allow_clear: bool = False

    def __post_init__(self):
        self.random = random.Random(self.seed).randbytes
        self.client = KeyPair(self.random(32))
        self.server = KeyPair(self.random(32))
        self.book = Book()
        self.now = 1000.0
        self.wire = []
        self.restart()

    def restart(self):
        """The server forgets what it had in memory but its flows."""
        self.acceptor = Acceptor(
            self.server,
            self.book,
            random=self.random,
            hardware_aes=self.server_aes,
            now=self.now,
            allow_clear=self.allow_clear,
            limits=self.limits,
        )

    def accept(self, address="192.0.2.1"):
        return self.acceptor.channel(address, self.now)

    def set_up(self, ask=None, key=None):
        return set_up(
            self.client,
            key or self.server.public,
            ask or SetUpOptions(),
            random=self.random,
        )

    def resume(self, credentials, kind=ConnectionKind.RESUME):
        return resume(self.client, credentials, kind, random=self.random)

    def carry(self, sender, receiver):
        """Carry the records of one end to the other."""
        records = []
        for message in sender.outgoing():
            self.wire.append(message)
            records += receiver.receive(message, self.now)
        return records

    def talk(self, dialler, acceptor):
        """Until both have nothing more to say; the server keeps the flows that are opened."""
        for _ in range(20):
            self.carry(dialler, acceptor)
            self.carry(acceptor, dialler)
        if acceptor.opened is not None:
            credentials = acceptor.opened.credentials
            self.book.flows[credentials.flow_id] = credentials

    def connected(self, ask=None):
        """A new flow's first connection, both ends."""
        client, server = self.set_up(ask), self.accept()
        self.talk(client, server)
        assert client.opened is not None
        assert server.opened is not None
        return client, server

    def resumed(self, credentials, kind=ConnectionKind.RESUME):
        client, server = self.resume(credentials, kind), self.accept()
        self.talk(client, server)
        return client, server


@pytest.fixture
def hosts():
    return Hosts()


@pytest.fixture(scope="session")
def make_hosts():
    return Hosts
