"""The gateway's part of sharing: what members may make it hold, and a disk that is full."""

import asyncio
import contextlib
import os
import socket
import time
from hashlib import sha256
from types import SimpleNamespace

from kit.neighbours import GATEWAY, REACHES, START_S, Everyone, identity, key_of, trust

from cedos.apps.sharing.gateway_sharing import GatewaySharing
from cedos.apps.sharing.protocol.accounting import PERIOD_S
from cedos.apps.sharing.protocol.certificates import UntrustedError
from cedos.apps.sharing.protocol.messages import ConfirmMessage, JoinMessage, pack, unpack
from cedos.apps.sharing.questions import (
    AskFacts,
    AskWaiting,
    DeclarePath,
    GivenWaiting,
    PathDeclared,
    pack_question,
    read_answer,
)
from cedos.apps.sharing.store import SharingStore
from cedos.errors import SharingError
from cedos.selector.sharing import NetworkType
from cedos.session import connect, listen
from cedos.session.protocol.crypto import KeyPair

ANN, BOB = key_of("ann").public, key_of("bob").public
NO_FACTS = SimpleNamespace(rate_bps=None)


def core_with(sources):
    """A session's core with these paths, each from an address as the client says."""
    flights = {
        number: SimpleNamespace(
            state=SimpleNamespace(path_id=number, peer=SimpleNamespace(source=source)),
            heard_bytes=1,
            arrived_bytes=1,
        )
        for number, source in sources.items()
    }
    return SimpleNamespace(in_flight=SimpleNamespace(paths=flights))


class Session:
    def __init__(self, peer_key):
        self.peer_key = peer_key
        self.flow = SimpleNamespace()


def contract():
    """Return the datagrams of a Join of bob's and ann's Confirm."""
    now_us = int(START_S * 1e6)
    join = JoinMessage(
        now_us, bytes(16), ANN, bytes(16), 500_000, "EUR", 10**9, None,
        NetworkType.LTE, None, b"\x0a\0\0\1", REACHES,
    )  # fmt: skip
    joined = pack(identity("bob"), join)
    confirm = ConfirmMessage(
        now_us, bytes(16), BOB, join.nonce, unpack(joined).digest, b"\x0a\0\0\x64"
    )
    return joined, pack(identity("ann"), confirm)


def test_one_session_cannot_push_out_what_others_declared(tmp_path):
    now = [START_S]
    store = SharingStore(tmp_path / "s.db")
    gateway = GatewaySharing(GATEWAY, store, lambda: (), Everyone, lambda: now[0])

    def declare(session, address):
        now[0] += 0.5
        question = pack_question(DeclarePath(address.to_bytes(4, "big"), b"join", b"confirm"))
        answer = gateway.answer(Session(session), question)
        assert answer is not None
        assert read_answer(answer) == PathDeclared()

    declare(b"ann" * 10, 1)
    for address in range(5000):
        declare(b"eve" * 10, address)
    assert gateway._declared[b"ann" * 10, 1] == (b"join", b"confirm")
    assert len(gateway._declared) == 65
    assert (b"eve" * 10, 4999) in gateway._declared, "the newest stay"
    store.close()


def test_a_host_is_told_what_waits_for_its_own_paths_alone(tmp_path):
    store = SharingStore(tmp_path / "s.db")
    with socket.create_server(("127.0.0.1", 0)) as listening, contextlib.ExitStack() as stack:

        def path():
            near = stack.enter_context(socket.create_connection(listening.getsockname()))
            stack.enter_context(listening.accept()[0])
            return SimpleNamespace(connection=near)

        def connection(key, *sources):
            made = Session(key)
            made.flow = SimpleNamespace(
                core=core_with({each: each for each in sources}),
                paths={each: path() for each in sources},
            )
            return made

        ann, eve = connection(b"ann" * 10, 1, 2, 0), connection(b"eve" * 10, 3)
        gateway = GatewaySharing(GATEWAY, store, lambda: (ann, eve), Everyone, lambda: START_S)
        for each in (*ann.flow.paths.values(), *eve.flow.paths.values()):
            each.connection.setblocking(False)
        full = ann.flow.paths[2].connection
        with contextlib.suppress(BlockingIOError):
            while True:  # the other end does not read, so that its kernel takes no more
                full.send(bytes(1 << 16))

        def waiting(session, *sources):
            question = AskWaiting(tuple(each.to_bytes(4, "big") for each in sources))
            answer = gateway.answer(Session(session), pack_question(question))
            assert answer is not None
            given = read_answer(answer)
            assert isinstance(given, GivenWaiting)
            return given.waiting_bytes

        quiet, busy, unknown = waiting(b"ann" * 10, 1, 2, 9)
        assert (quiet, unknown) == (0, 0)
        assert busy > 100_000
        assert waiting(b"eve" * 10, 2, 3) == (0, 0)
    store.close()


def test_receipts_wait_while_they_cannot_be_written(tmp_path, monkeypatch):
    now = [START_S]
    store = SharingStore(tmp_path / "s.db")
    gateway = GatewaySharing(GATEWAY, store, lambda: (), Everyone, lambda: now[0])
    gateway._accounts.on_path("path", ANN)
    gateway._accounts.on_declared("path", *contract(), START_S)

    def full(receipts):
        raise SharingError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "add", full)
        for period in (1, 2):
            now[0] = START_S + period * PERIOD_S
            gateway._accounts.on_counts("path", 0, period * 1_000_000)
            gateway.write_receipts()
    assert store.receipts() == []
    gateway.write_receipts()
    assert [each.total_bytes for each in store.receipts()] == [2_000_000, 1_000_000]
    gateway.write_receipts()
    assert len(store.receipts()) == 2
    store.close()


def test_questions_of_one_client_beyond_eight_a_second_are_not_answered(tmp_path):
    now = [START_S]
    store = SharingStore(tmp_path / "s.db")
    gateway = GatewaySharing(GATEWAY, store, lambda: (), Everyone, lambda: now[0])
    question = pack_question(AskFacts())

    def answered(session, times):
        return sum(gateway.answer(Session(session), question) is not None for _ in range(times))

    assert answered(b"eve" * 10, 10_000) == 64
    assert answered(b"ann" * 10, 10) == 10
    now[0] += 5.0
    assert answered(b"eve" * 10, 100) == 40
    store.close()


async def test_a_failure_to_count_does_not_end_the_gateway(tmp_path, monkeypatch):
    store = SharingStore(tmp_path / "s.db")
    gateway = GatewaySharing(GATEWAY, store, lambda: (), Everyone, lambda: START_S)
    tried = []

    def fails():
        tried.append(1)
        raise SharingError("the file is damaged")

    with monkeypatch.context() as patched:
        patched.setattr("cedos.apps.sharing.gateway_sharing._COUNT_S", 0.01)
        patched.setattr(gateway, "count", fails)
        running = asyncio.create_task(gateway.run())
        while len(tried) < 3:
            await asyncio.sleep(0.01)
            assert not running.done()
    running.cancel()
    await asyncio.wait([running])
    store.close()


def client_with(paths, source):
    """A client's session with so many paths, each from an address as it says."""
    numbers = range(1, paths + 1)
    path = {
        each: SimpleNamespace(path_id=each, facts=NO_FACTS, ask_arrived=lambda: None)
        for each in numbers
    }
    core = core_with({each: source(each) for each in numbers})
    flow = SimpleNamespace(core=core, paths=path, pump_soon=lambda: None)
    return SimpleNamespace(peer_key=b"ann" * 10, flow=flow)


def test_thousands_of_paths_of_one_client_cost_little(tmp_path, monkeypatch):
    """Look at each path once: a path beyond the limit had all paths searched, and its contract tried."""
    store = SharingStore(tmp_path / "s.db")
    monkeypatch.setattr(store, "host_of_session", lambda _session: ANN)
    session = client_with(8_000, source=lambda _number: 1)
    gateway = GatewaySharing(GATEWAY, store, lambda: [session], Everyone, lambda: START_S)
    join, confirm = contract()
    for each in (confirm[:-1] + bytes([confirm[-1] ^ 1]), confirm):
        question = DeclarePath((1).to_bytes(4, "big"), join, each)
        gateway.answer(Session(session.peer_key), pack_question(question))
        for _ in range(3):
            began_s = time.process_time()
            gateway.count()
            assert time.process_time() - began_s < 1.0
    assert sum(each.helper == BOB for each in gateway._followed.values()) == 16
    store.close()


def test_one_client_has_a_few_paths_that_cost_receipts(tmp_path, monkeypatch):
    now = [START_S]
    store = SharingStore(tmp_path / "s.db")
    monkeypatch.setattr(store, "host_of_session", lambda _session: ANN)
    session = client_with(40, source=lambda number: number)
    gateway = GatewaySharing(GATEWAY, store, lambda: [session], Everyone, lambda: now[0])
    for each in session.flow.paths:
        question = DeclarePath(each.to_bytes(4, "big"), *contract())
        gateway.answer(Session(session.peer_key), pack_question(question))
    gateway.count()
    gateway.count()
    assert sum(each.helper == BOB for each in gateway._followed.values()) == 16
    store.close()


def test_certificates_of_a_client_that_is_revoked_count_for_nothing(tmp_path):
    """They held for 30 days: the gateway accepted contracts with it and signed receipts for it."""
    now, clients = [START_S], set()
    store = SharingStore(tmp_path / "s.db")
    for name in ("ann", "bob"):
        store.add_certificate(identity(name).certificate)
        clients.add(session_of(name))
    session = client_with(2, source=lambda number: number)
    session.peer_key = session_of("ann")
    gateway = GatewaySharing(GATEWAY, store, lambda: [session], lambda: clients, lambda: now[0])

    def carried(path_id, n_bytes):
        """Return the bytes of the receipts after a path, whose contract is declared, has carried some."""
        question = DeclarePath(path_id.to_bytes(4, "big"), *contract())
        gateway.answer(session, pack_question(question))
        gateway.count()
        session.flow.core.in_flight.paths[path_id].heard_bytes += n_bytes
        gateway.count()
        now[0] += PERIOD_S
        gateway.write_receipts()
        return sum(each.carried_bytes for each in store.receipts())

    def withdrawn():
        facts = read_answer(gateway.answer(session, pack_question(AskFacts())) or b"")
        known = trust()
        known.revoke(facts.revocations)
        mine = {name: identity(name).certificate for name in ("ann", "bob")}
        return [name for name in mine if not holds(known, mine[name], now[0])]

    before = carried(1, 1_000_000)
    assert before >= 1_000_000
    assert withdrawn() == []
    clients.discard(session_of("bob"))
    now[0] += 1.0
    assert withdrawn() == ["bob"]
    assert carried(1, 1_000_000) == before
    assert carried(2, 1_000_000) == before
    clients.add(session_of("bob"))
    clients.discard(session_of("ann"))
    now[0] += 1.0
    assert withdrawn() == ["ann"]
    assert carried(2, 1_000_000) == before
    store.close()


class Swallower:
    """A helper that takes what the gateway sends, acknowledges it, and passes nothing on."""

    def __init__(self, address):
        self._address, self.takes, self.took_bytes = address, False, 0

    async def __call__(self, reader, writer):
        there, onward = await asyncio.open_connection(*self._address)

        async def back():
            while data := await there.read(1 << 16):
                self.took_bytes += self.takes * len(data)
                if not self.takes:
                    writer.write(data)

        async def forth():
            while data := await reader.read(1 << 16):
                onward.write(data)

        self.onward = onward
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(back(), forth())
        for each in (writer, onward):
            each.transport.abort()


async def test_only_what_the_requestor_proves_is_billed(tmp_path, monkeypatch):
    """A helper acknowledged for the requestor, and its junk counted: 17 times the budget was owed."""
    now, key = [START_S], KeyPair(os.urandom(32))
    store = SharingStore(tmp_path / "s.db")
    monkeypatch.setattr(store, "host_of_session", lambda _session: ANN)
    async with await listen(("127.0.0.1", 0), key=key) as listener:
        helper = Swallower(listener.address)
        server = await asyncio.start_server(helper, "127.0.0.1", 0)
        near = await connect(
            server.sockets[0].getsockname()[:2], server_key=key.public, key=KeyPair(bytes(32))
        )
        far = await listener.accept()
        await far.write(bytes(1 << 20))
        await near.read_exactly(1 << 20)
        (path,) = far.flow.paths
        far.flow.core.in_flight.paths[path].state.peer.source = 1
        gateway = GatewaySharing(GATEWAY, store, lambda: [far], Everyone, lambda: now[0])
        monkeypatch.setattr(gateway, "_holds", lambda _host: True)
        question = DeclarePath((1).to_bytes(4, "big"), *contract())
        gateway.answer(far, pack_question(question))

        async def billed_bytes():
            for _ in range(5):
                gateway.count()
                await asyncio.sleep(0.1)
            now[0] += PERIOD_S
            gateway.write_receipts()
            return sum(each.carried_bytes for each in store.receipts())

        honest = await billed_bytes()
        assert 1 << 20 < honest < (1 << 20) + 10_000
        helper.takes = True
        await far.write_source(lambda _, count: bytes(count), 8 << 20)
        helper.onward.write(bytes([0, 3, 255]) + bytes(100_000))  # the beginning of a long record
        assert await billed_bytes() < honest + 100
        assert helper.took_bytes > 1 << 19
        for each in (near, far):
            each.abort("the test is over")
            await each.wait_drained()
        server.close()
    store.close()


def session_of(name):
    return sha256(key_of(name).public).digest()


def holds(known, certificate, now_s):
    with contextlib.suppress(UntrustedError):
        return bool(known.read(certificate, now_s))
    return False
