"""Resumption and joins over a channel, and hellos that arrive late."""

import asyncio
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import until

from cedos import session
from cedos.session.protocol.channel import resume
from cedos.session.protocol.crypto import KeyPair
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, Credentials
from cedos.session.protocol.handshake.limits import HandshakeLimits
from cedos.session.protocol.handshake.messages import (
    HEADER_BYTES,
    MessageKind,
    Notice,
    frame,
    pack_notice,
)
from cedos.session.protocol.handshake.outcome import ConnectionKind, FailureKind
from cedos.session.protocol.handshake.set_up import SetUpOptions


def delivered(sender, receiver, text):
    return [bytes(each) for each in receiver.receive(b"".join(sender.send([text])), 0.0)]


@pytest.mark.parametrize("kind", [ConnectionKind.RESUME, ConnectionKind.JOIN])
@pytest.mark.parametrize("aes", [True, False])
def test_one_round_trip_then_both_ends_may_send(hosts, kind, aes):
    first, _ = hosts.connected(SetUpOptions(hardware_aes=aes))
    client, server = hosts.resume(first.opened.credentials, kind), hosts.accept()
    hosts.carry(client, server)
    assert server.opened.kind is kind
    assert not server.confirmed
    early = server.send([b"down at once"])
    assert client.receive(b"".join(early), 0.0) == [b"down at once"]
    assert client.opened.kind is kind
    assert client.confirmed
    assert delivered(client, server, b"up") == [b"up"]
    assert server.confirmed


def test_credentials_survive_packing(hosts):
    client, server = hosts.connected()
    packed = client.opened.credentials.to_bytes()
    assert len(packed) == CREDENTIALS_BYTES == 123
    ours = Credentials.from_bytes(packed)
    assert ours == client.opened.credentials
    flow = server.opened.credentials.flow_id
    hosts.book.flows[flow] = Credentials.from_bytes(hosts.book.flows[flow].to_bytes())
    client, server = hosts.resumed(ours)
    assert delivered(client, server, b"up") == [b"up"]
    with pytest.raises(ValueError, match="123"):
        Credentials.from_bytes(packed[:-1])


def test_each_connection_has_keys_and_a_name_of_its_own(hosts):
    client, _ = hosts.connected()
    credentials = client.opened.credentials
    names = {credentials.locator}
    packets = {b"".join(client.send([b"same words"]))}
    for _ in range(5):
        client, server = hosts.resumed(credentials)
        names.add(credentials.locator)
        packets.add(b"".join(server.send([b"same words"])))
    assert len(names) == 6
    assert len(packets) == 6
    assert credentials.flow_id not in b"".join(hosts.wire)
    hellos = [m for m in hosts.wire if m[3] == MessageKind.RESUME]
    body = HEADER_BYTES + 7
    assert len({m[body : body + 28] for m in hellos}) == 5


def test_the_server_may_restart_and_dial_back(hosts):
    client, server = hosts.connected()
    hosts.restart()
    client, server = hosts.resumed(client.opened.credentials)
    assert delivered(client, server, b"up") == [b"up"]
    # The other way round: the first acceptor dials, with the name the opener gave it at set-up.
    theirs, ours = server.opened.credentials, client.opened.credentials
    hosts.client, hosts.server = hosts.server, hosts.client
    hosts.book.flows = {ours.flow_id: ours}
    hosts.restart()
    dialled, accepted = hosts.resumed(theirs)
    assert delivered(dialled, accepted, b"back") == [b"back"]


def test_a_replayed_resumption_is_told_to_be_old_and_opens_nothing(hosts):
    client, _ = hosts.connected()
    credentials = client.opened.credentials
    hosts.wire.clear()
    living, server = hosts.resumed(credentials)
    hello = next(m for m in hosts.wire if m[3] == MessageKind.RESUME)
    victim = hosts.accept()
    victim.receive(hello, 0.0)
    assert victim.opened is None
    assert [m[3] for m in victim.outgoing()] == [MessageKind.STALE]
    assert delivered(living, server, b"undisturbed") == [b"undisturbed"]


def test_a_delayed_resumption_stays_unconfirmed(hosts):
    """Kept back by somebody on the path and let go later: the flow must not follow it."""
    client, _ = hosts.connected()
    credentials = client.opened.credentials
    kept_back = hosts.resume(credentials).outgoing()[0]
    hosts.resumed(credentials)
    late = hosts.accept()
    late.receive(kept_back, 0.0)
    assert late.opened is not None
    assert not late.confirmed
    hosts.now += 11
    assert late in hosts.acceptor.overdue(hosts.now)
    assert late.failure.kind is FailureKind.TIMED_OUT


def test_joins_may_overtake_each_other(hosts):
    client, _ = hosts.connected()
    credentials = client.opened.credentials
    dialled = [hosts.resume(credentials, ConnectionKind.JOIN) for _ in range(8)]
    for channel in reversed(dialled):
        server = hosts.accept()
        hosts.talk(channel, server)
        assert channel.opened is not None
        assert delivered(channel, server, b"here") == [b"here"]


def test_a_host_that_forgot_its_attempts_goes_on(hosts):
    client, _ = hosts.connected()
    old = client.opened.credentials.to_bytes()
    for _ in range(40):
        hosts.resumed(client.opened.credentials)
    forgetful = Credentials.from_bytes(old)
    client, server = hosts.resumed(forgetful)
    assert client.opened is not None
    assert forgetful.attempt == 41  # it was told that 40 had been seen
    assert delivered(client, server, b"here again") == [b"here again"]


def test_a_server_that_forgot_the_attempts_is_safe_all_the_same(hosts):
    client, _ = hosts.connected()
    credentials = client.opened.credentials
    flow = credentials.flow_id
    old = hosts.book.flows[flow].to_bytes()
    hosts.wire.clear()
    hosts.resumed(credentials)
    hello = next(m for m in hosts.wire if m[3] == MessageKind.RESUME)
    answer = next(m for m in hosts.wire if m[3] == MessageKind.RESUME_ANSWER)
    confirm = next(m for m in hosts.wire if m[3] == MessageKind.CONFIRM)
    hosts.book.flows[flow] = Credentials.from_bytes(old)
    victim = hosts.accept()
    victim.receive(hello, 0.0)
    again = victim.outgoing()[0]
    assert again[3] == MessageKind.RESUME_ANSWER
    assert again[4:52] != answer[4:52]  # another challenge, another key
    victim.receive(confirm, 0.0)
    assert not victim.confirmed
    assert victim.failure is not None


def test_a_server_that_lost_its_state_says_so_with_proof(hosts):
    client, _ = hosts.connected()
    hosts.book.flows.clear()
    client, server = hosts.resumed(client.opened.credentials)
    assert client.failure.kind is FailureKind.LOST_STATE
    assert client.failure.authenticated
    assert server.opened is None


def test_nobody_else_can_say_that_a_flow_is_gone(hosts):
    """A forged hint leads to a question that only the holder of the server's key can answer."""
    first, _ = hosts.connected()
    credentials = first.opened.credentials
    hint = frame(MessageKind.NOTICE, pack_notice(Notice.UNKNOWN_FLOW))
    impostor = hosts.resume(credentials)
    impostor.outgoing()
    impostor.receive(hint, 0.0)
    assert impostor.failure is None
    assert impostor.outgoing()[0][3] == MessageKind.SET_UP
    for forged in (hint, frame(MessageKind.SET_UP_ANSWER, hosts.random(84))):
        asking = hosts.resume(credentials)
        asking.outgoing()
        asking.receive(hint + forged, 0.0)
        assert asking.opened is None
        assert not asking.failure.authenticated
    # Somebody on the path who only forges the hint gets the true answer: it is known.
    asking, server = hosts.resume(credentials), hosts.accept()
    asking.outgoing()
    asking.receive(hint, 0.0)
    hosts.talk(asking, server)
    assert asking.failure.kind is FailureKind.GARBLED
    assert not asking.failure.authenticated
    client, server = hosts.resumed(credentials)
    assert client.opened is not None


def test_another_host_cannot_ask_after_a_flow_or_take_it(make_hosts):
    hosts = make_hosts()
    client, _ = hosts.connected()
    stolen = Credentials.from_bytes(client.opened.credentials.to_bytes())
    stolen.secret = bytes(32)
    hosts.client = KeyPair(bytes(range(32)))
    thief, server = hosts.resumed(stolen)
    assert server.opened is None
    assert thief.failure.kind is FailureKind.LOST_STATE  # to this host the flow does not exist


def test_an_impostor_cannot_answer_a_resumption(hosts):
    first, _ = hosts.connected()
    credentials = first.opened.credentials
    # An impostor that even knows the flow's id, but not its secret.
    hosts.book.flows[credentials.flow_id].secret = bytes(32)
    hello, impostor = hosts.resume(credentials), hosts.accept()
    hosts.carry(hello, impostor)
    assert impostor.opened is None
    for forged in (
        frame(MessageKind.RESUME_ANSWER, hosts.random(48 + 32 + 44)),
        frame(MessageKind.STALE, b"\xff" * 6 + hosts.random(32)),
    ):
        hello = hosts.resume(credentials)
        hello.outgoing()
        hello.receive(forged, 0.0)
        assert hello.failure.kind is FailureKind.GARBLED
        assert not hello.failure.authenticated
    assert credentials.attempt == 3


def test_a_hello_cannot_be_reflected(hosts):
    """Two hosts that both listen, one flow: what one sends is not a proof to itself."""
    client, server = hosts.connected()
    ours, theirs = client.opened.credentials, server.opened.credentials
    hello = hosts.resume(ours).outgoing()[0]
    hosts.book.flows = {ours.flow_id: ours}
    hosts.client, hosts.server = hosts.server, hosts.client
    hosts.restart()
    # As if the locator were one of its own.
    locator = hosts.acceptor._reception.locators.issue(ours.flow_id, hosts.random)
    at = HEADER_BYTES + 7
    victim = hosts.accept()
    victim.receive(hello[:at] + locator + hello[at + 28 :], 0.0)
    assert victim.opened is None
    assert theirs.secret == ours.secret


def test_resumptions_of_a_host_are_limited(make_hosts):
    hosts = make_hosts(limits=HandshakeLimits(resumption_burst=3, resumptions_per_s=1))
    client, _ = hosts.connected()
    credentials = client.opened.credentials
    kinds = []
    for _ in range(5):
        client, _ = hosts.resumed(credentials)
        kinds.append(client.failure.kind if client.failure else None)
    assert kinds == [None, None, None, FailureKind.BUSY, FailureKind.BUSY]
    assert 0 < client.failure.retry_after_s <= 1
    hosts.now += client.failure.retry_after_s
    client, _ = hosts.resumed(credentials)
    assert client.opened is not None


def test_every_byte_of_a_resumption_counts(hosts):
    first, _ = hosts.connected()
    credentials = first.opened.credentials
    hosts.wire.clear()
    hosts.resumed(credentials)
    lengths = [len(m) for m in hosts.wire]
    assert len(lengths) == 3
    for which, length in enumerate(lengths):
        for at in range(HEADER_BYTES, length):
            hosts.now += 1
            client, server = hosts.resume(credentials), hosts.accept()
            ends = [(client, server), (server, client), (client, server)]
            for number, (sender, receiver) in enumerate(ends[: which + 1]):
                content = bytearray(b"".join(sender.outgoing()))
                if number == which:
                    content[at] ^= 1 << at % 8
                receiver.receive(bytes(content), hosts.now)
            receiver = ends[which][1]
            # A changed key may have nothing behind it but a connection that can never be confirmed.
            assert not receiver.confirmed, (which, at)
            assert receiver.failure is None or not receiver.failure.authenticated
            server.abandon()
    client, _ = hosts.resumed(credentials)
    assert client.opened is not None


@given(st.lists(st.integers(1, 60), max_size=80))
def test_no_attempt_is_taken_twice(attempts):
    credentials = Credentials(bytes(16), bytes(32), bytes(32), suite=1)
    taken = set()
    for attempt in attempts:
        if credentials.is_new(attempt):
            assert attempt not in taken
            credentials.note(attempt)
            taken.add(attempt)
        else:
            assert attempt in taken or attempt < credentials.seen - 16
        assert credentials.window < 1 << 16
        assert not credentials.is_new(attempt)


async def test_it_takes_no_living_flow_over(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    me, server = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    strangers = HandshakeLimits(handshake_s=1.0)
    async with await session.listen(("127.0.0.1", 0), key=server, hosts=strangers) as listener:
        ours = await session.connect(
            listener.address, server_key=server.public, key=me, deadline=60
        )
        await ours.write(b"one")
        theirs = await listener.accept()
        assert await theirs.read_exactly(3) == b"one"
        (old,) = theirs.flow.paths.values()

        # It has the right secret, a new number, a right proof, but no peer confirms it.
        credentials = ours.flow.credentials
        assert credentials is not None
        late = resume(me, credentials, ConnectionKind.RESUME, random=os.urandom)
        with socket.create_connection(listener.address) as attacker:
            attacker.sendall(late.outgoing()[0])
            attacker.setblocking(False)
            loop = asyncio.get_running_loop()
            answer = await loop.sock_recv(attacker, 4)
            assert answer[3] == MessageKind.RESUME_ANSWER
            assert len(theirs.flow.paths) == 2
            await ours.write(b"two")
            assert await theirs.read_exactly(3) == b"two"
            await theirs.write(b"three")
            assert await ours.read_exactly(5) == b"three"
            assert old.path_id in theirs.flow.paths
            # And it is not kept for ever.
            await until(lambda: list(theirs.flow.paths.values()) == [old])
        await ours.write(b"four")
        assert await theirs.read_exactly(4) == b"four"
        closing = asyncio.create_task(theirs.close())
        await ours.close()
        await closing
