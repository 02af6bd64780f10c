"""Feeds a channel whatever a coverage-guided fuzzer comes up with; run by `test_session_fuzz`.

Either any bytes, or a real handshake and records with a few bytes changed, cut into any pieces. A channel
may refuse, never raise, never believe what was changed, never keep more than a message.
"""

import random
import sys

import atheris

with atheris.instrument_imports(include=["cedos.session"]):
    from cedos.session.protocol.channel import RECORD_BYTES, Acceptor, resume, set_up
    from cedos.session.protocol.crypto import KeyPair
    from cedos.session.protocol.handshake.accepting import FlowGrant
    from cedos.session.protocol.handshake.outcome import ConnectionKind
    from cedos.session.protocol.handshake.set_up import SetUpOptions

RANDOM = random.Random(1).randbytes
CLIENT, SERVER = KeyPair(RANDOM(32)), KeyPair(RANDOM(32))


class Book:
    def __init__(self):
        self.flows = {}

    def find(self, flow_id):
        return self.flows.get(flow_id)

    def admit(self, request):
        return FlowGrant(request.deadline_s)


def accepted(book, now):
    acceptor = Acceptor(SERVER, book, random=RANDOM, hardware_aes=True, now=now)
    return acceptor.channel("192.0.2.1", now)


def feed(channel, data, sizes):
    records = []
    while data:
        size = sizes.ConsumeIntInRange(1, len(data))
        records += [bytes(record) for record in channel.receive(data[:size], 0.0)]
        data = data[size:]
        assert len(channel._partial) <= 4 + RECORD_BYTES + 16
    return records


def one(data):
    choices = atheris.FuzzedDataProvider(data)
    book = Book()
    client = set_up(CLIENT, SERVER.public, SetUpOptions(), random=RANDOM)
    server = accepted(book, 0.0)
    resuming = choices.ConsumeBool()
    if resuming:
        for _ in range(2):
            for sender, receiver in ((client, server), (server, client)):
                receiver.receive(b"".join(sender.outgoing()), 0.0)
        book.flows[client.opened.credentials.flow_id] = server.opened.credentials
        client = resume(CLIENT, client.opened.credentials, ConnectionKind.JOIN, random=RANDOM)
        server = accepted(book, 0.0)
    if choices.ConsumeBool():
        victim = choices.PickValueInList([client, server])
        assert feed(victim, choices.ConsumeBytes(2000), choices) == []
        assert victim.opened is None
        return
    at_step = choices.ConsumeIntInRange(0, 4)
    for step in range(5):
        sender, receiver = (client, server) if step % 2 == 0 else (server, client)
        message = b"".join(sender.outgoing())
        sent = []
        if step >= 3:
            assert sender.opened is not None
            sent = [b"some words"]
            message += b"".join(sender.send(sent))
        altered = bytearray(message)
        if step == at_step and message:
            for _ in range(choices.ConsumeIntInRange(1, 3)):
                altered[choices.ConsumeIntInRange(0, len(altered) - 1)] = choices.ConsumeIntInRange(
                    0, 255
                )
            if choices.ConsumeBool():
                del altered[choices.ConsumeIntInRange(0, len(altered) - 1) :]
        got = feed(receiver, bytes(altered), choices)
        if altered != message:
            assert not got or got == sent[: len(got)]
            if step < 3 and step != 1:
                assert not receiver.confirmed
            return
        assert got == sent


if __name__ == "__main__":
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
