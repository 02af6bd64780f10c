"""The vectors of docs/session-handshake.md, and its bounds, computed again."""

import hashlib
import re

from cedos.session.protocol.channel import Acceptor, resume, set_up
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.messages import MessageKind, Notice, pack_notice, pack_stale
from cedos.session.protocol.handshake.outcome import ConnectionKind
from cedos.session.protocol.handshake.set_up import SetUpOptions
from emu import ROOT
from tests.unit.session.conftest import Book

DOCUMENT = (ROOT / "docs" / "session-handshake.md").read_text()


class Values:
    """The random values of one end."""

    def __init__(self, name):
        self.name, self.count = name, 0

    def __call__(self, size):
        value = hashlib.sha256(f"{self.name} {self.count}".encode()).digest()[:size]
        self.count += 1
        return value


def documented():
    block = DOCUMENT.rpartition("## Vectors")[2].split("```\n")[1]
    return {
        name.strip(): value
        for name, value in (line.rsplit(" ", 1) for line in block.splitlines() if line)
    }


def test_the_documents_vectors_are_what_is_sent():
    client, server = Values("client"), Values("server")
    ours, theirs = KeyPair(client(32)), KeyPair(server(32))
    book = Book()
    acceptor = Acceptor(theirs, book, random=server, hardware_aes=True, now=0.0)
    got = {
        "client private": ours.private,
        "client public": ours.public,
        "server private": theirs.private,
        "server public": theirs.public,
    }

    def accepted():
        return acceptor.channel("192.0.2.1", 0.0)

    def step(name, sender, receiver):
        (got[name],) = sender.outgoing()
        assert receiver.receive(got[name], 0.0) == []

    def record(name, sender, receiver, text):
        got[name] = b"".join(sender.send([text]))
        assert receiver.receive(got[name], 0.0) == [text]

    near = set_up(ours, theirs.public, SetUpOptions(deadline_s=3600), random=client)
    far = accepted()
    step("SET_UP", near, far)
    step("SET_UP_ANSWER", far, near)
    step("CONFIRM", near, far)
    record('RECORD up "hello"', near, far, b"hello")
    record('RECORD down "world"', far, near, b"world")
    credentials = near.opened.credentials
    book.flows[credentials.flow_id] = far.opened.credentials
    got["flow id"] = credentials.flow_id
    got["flow secret"] = credentials.secret
    got["credentials"] = credentials.to_bytes()
    near = resume(ours, credentials, ConnectionKind.JOIN, random=client)
    far = accepted()
    step("RESUME", near, far)
    step("RESUME_ANSWER", far, near)
    step("CONFIRM again", near, far)
    record("RECORD down again", far, near, b"world")
    assert {name: value.hex() for name, value in got.items()} == documented()


def test_the_documents_lengths_are_those_of_the_messages():
    table = {
        name: int(size)
        for name, size in re.findall(r"^\| \d+ \| (\w+) \| \w+ \| (\d+)", DOCUMENT, re.MULTILINE)
    }
    vectors = documented()
    for name in ("SET_UP", "SET_UP_ANSWER", "RESUME", "RESUME_ANSWER", "CONFIRM"):
        assert len(vectors[name]) // 2 - 4 == table[name], name
        assert int(vectors[name][:6], 16) == table[name]
        assert int(vectors[name][6:8], 16) == MessageKind[name]
    assert table["STALE"] == len(pack_stale(1, bytes(32)))
    assert table["NOTICE"] == len(pack_notice(Notice.BUSY, 1.0))
    kinds = re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", DOCUMENT, re.MULTILINE)
    assert {name: int(number) for number, name in kinds} == {m.name: m.value for m in MessageKind}
