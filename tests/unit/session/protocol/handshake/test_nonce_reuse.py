"""No key ever protects two messages under one nonce, whatever hosts and networks do.

All AEADs of a session are made by `crypto.aead`; here they write down every (key, nonce) they encrypt
under, while random schedules of set-ups, resumptions, joins, losses, replays and crashes are played.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol import crypto
from cedos.session.protocol.handshake import noise, resume
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.outcome import ConnectionKind
from cedos.session.protocol.handshake.set_up import SetUpOptions


class Watched:
    """An AEAD that remembers under what it encrypted."""

    used: dict[tuple[bytes, bytes], bytes]

    def __init__(self, key, real):
        self.key, self.real = key, real

    def encrypt(self, nonce, data, associated_data):
        where = (self.key, bytes(nonce))
        sealed = self.real.encrypt(nonce, data, associated_data)
        assert where not in Watched.used, "a nonce was used twice under one key"
        Watched.used[where] = sealed
        return sealed

    def decrypt(self, nonce, data, associated_data):
        return self.real.decrypt(nonce, data, associated_data)


@pytest.fixture(scope="module", autouse=True)
def watched():
    made = crypto.aead
    with pytest.MonkeyPatch.context() as patch:
        for module in (crypto, noise, resume):
            patch.setattr(
                module, "aead", lambda key, *, chacha: Watched(key, made(key, chacha=chacha))
            )
        patch.setattr(crypto, "RECORDS_PER_KEY", 4)
        yield


ACTIONS = [
    "set_up", "resume", "join", "talk", "lose", "replay", "cross", "restart", "forget", "dial_back",
]  # fmt: skip


@given(
    seed=st.integers(0, 2**32),
    actions=st.lists(st.sampled_from(ACTIONS), min_size=4, max_size=40),
    aes=st.booleans(),
)
def test_no_key_and_nonce_is_used_twice(make_hosts, seed, actions, aes):
    Watched.used = {}
    choose = random.Random(seed)
    hosts = make_hosts(seed=seed)
    ours = {}
    stored = {}
    living = []

    def connect(client, rounds):
        server = hosts.accept()
        # The connection may break at any message.
        for _ in range(rounds):
            hosts.carry(client, server)
            hosts.carry(server, client)
            if server.opened is not None:
                credentials = server.opened.credentials
                hosts.book.flows[credentials.flow_id] = credentials
                living.append((client, server))
        if client.opened is not None:
            ours[client.opened.credentials.flow_id] = client.opened.credentials
        server.abandon()

    connect(hosts.set_up(SetUpOptions(hardware_aes=aes)), rounds=20)
    for action in actions:
        hosts.now += 1
        rounds = choose.choice([1, 2, 20])
        known = sorted(ours.keys() & hosts.book.flows.keys())
        flow = choose.choice(known) if known else None
        if action == "set_up":
            connect(hosts.set_up(SetUpOptions(hardware_aes=aes)), rounds)
        elif action in {"resume", "join"} and flow is not None:
            kind = ConnectionKind.RESUME if action == "resume" else ConnectionKind.JOIN
            connect(hosts.resume(ours[flow], kind), rounds)
        elif action == "talk" and living:
            client, server = choose.choice(living)
            for _ in range(choose.randint(1, 9)):
                for sender, receiver in ((client, server), (server, client)):
                    if sender.opened is not None and sender.failure is None:
                        receiver.receive(b"".join(sender.send([choose.randbytes(5)])), hosts.now)
        elif action == "lose" and living:
            living.pop(choose.randrange(len(living)))
        elif action in {"replay", "cross"} and hosts.wire:
            # Somebody sends again what was sent before, to the server or into a living connection.
            victim = (
                choose.choice(choose.choice(living))
                if action == "cross" and living
                else hosts.accept()
            )
            for message in choose.sample(hosts.wire, min(3, len(hosts.wire))):
                victim.receive(message, hosts.now)
            hosts.carry(victim, hosts.accept())
        elif action == "restart":
            # The server crashes: what it kept of flows may be older than what it did with them.
            for flow_id, packed in stored.items():
                if flow_id in hosts.book.flows and choose.random() < 0.5:
                    hosts.book.flows[flow_id] = Credentials.from_bytes(packed)
            stored = {f: c.to_bytes() for f, c in hosts.book.flows.items()}
            hosts.restart()
            living.clear()
        elif action == "forget" and flow is not None:
            # The client restores an old copy of its credentials.
            copy = Credentials.from_bytes(ours[flow].to_bytes())
            copy.attempt = choose.randint(0, copy.attempt)
            ours[flow] = copy
        elif action == "dial_back" and flow is not None:
            hosts.client, hosts.server = hosts.server, hosts.client
            ours, hosts.book.flows = hosts.book.flows, ours
            hosts.restart()
    assert len(Watched.used) >= 3


def test_the_watch_notices_a_reuse():
    Watched.used = {}
    for expectation in (None, "used twice"):
        key = crypto.RecordKey(crypto.Suite.AES_128_GCM, bytes(32))
        if expectation is None:
            key.seal(b"", [b"x"])
        else:
            with pytest.raises(AssertionError, match=expectation):
                key.seal(b"", [b"y"])
