"""Set-up over a channel, also with hosts whose clocks differ."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.session.protocol.channel import resume, set_up
from cedos.session.protocol.crypto import KeyPair, Suite, host_id
from cedos.session.protocol.handshake.accepting import FlowGrant, FlowRefusal, FlowRefusalReason
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


def delivered(sender, receiver, text, now=0.0):
    return [bytes(each) for each in receiver.receive(b"".join(sender.send([text])), now)]


def test_both_ends_agree_and_know_each_other(hosts):
    client, server = hosts.connected(SetUpOptions(deadline_s=600))
    ours, theirs = client.opened.credentials, server.opened.credentials
    assert ours.flow_id == theirs.flow_id
    assert ours.secret == theirs.secret
    assert ours.peer_key == hosts.server.public
    assert theirs.peer_key == hosts.client.public
    assert server.opened.host_id == host_id(hosts.client.public)
    assert client.opened.kind is server.opened.kind is ConnectionKind.NEW
    assert client.opened.deadline_s == server.opened.deadline_s == 600
    assert delivered(client, server, b"up") == [b"up"]
    assert delivered(server, client, b"down") == [b"down"]


def test_one_round_trip_and_the_server_waits_for_the_proof(hosts):
    client, server = hosts.set_up(), hosts.accept()
    hosts.carry(client, server)
    assert server.opened is None
    hosts.carry(server, client)
    assert client.opened is not None
    assert server.opened is None
    first = b"".join(client.send([b"at once"]))  # the confirmation goes with it
    assert server.receive(first, 0.0) == [b"at once"]
    assert server.opened is not None
    assert server.confirmed


def test_the_host_id_does_not_travel_in_clear(hosts):
    hosts.connected()
    hosts.connected()
    flat = b"".join(hosts.wire)
    assert hosts.client.public not in flat
    assert host_id(hosts.client.public) not in flat
    for credentials in hosts.book.flows.values():
        assert credentials.flow_id not in flat
    # A watcher finds nothing that two set-ups of one host have in common but the fixed beginning.
    firsts = [m for m in hosts.wire if m[3] == MessageKind.SET_UP]
    assert len(firsts) == 2
    common = [a == b for a, b in zip(*firsts, strict=True)]
    assert sum(common[HEADER_BYTES + 7 :]) < 12


def test_a_wrong_pin_is_told_apart(hosts):
    client, server = hosts.set_up(key=KeyPair(bytes(range(32))).public), hosts.accept()
    hosts.talk(client, server)
    assert client.failure.kind is FailureKind.WRONG_KEY
    assert not client.failure.authenticated
    assert server.opened is None


def test_an_impostor_with_the_servers_public_key_alone_cannot_answer(hosts):
    client = hosts.set_up()
    client.outgoing()
    forged = frame(MessageKind.SET_UP_ANSWER, hosts.random(48 + 36))
    client.receive(forged, 0.0)
    assert client.opened is None
    assert client.failure.kind is FailureKind.WRONG_KEY
    assert not client.failure.authenticated


def test_replayed_set_ups_open_nothing(hosts):
    hosts.connected()
    hosts.book.flows.clear()  # even where the flow's id is free again
    hello = next(message for message in hosts.wire if message[3] == MessageKind.SET_UP)
    confirmation = next(message for message in hosts.wire if message[3] == MessageKind.CONFIRM)
    victim = hosts.accept()
    victim.receive(hello, hosts.now)
    assert victim.outgoing()
    victim.receive(confirmation, hosts.now)
    assert victim.opened is None
    assert victim.failure is not None
    assert len(hosts.acceptor) == 0


@pytest.mark.parametrize(
    ("client_aes", "server_aes", "asks_clear", "allows_clear", "suite"),
    [
        (True, True, False, False, Suite.AES_128_GCM),
        (False, True, False, False, Suite.CHACHA20_POLY1305),
        (True, False, False, False, Suite.CHACHA20_POLY1305),
        (True, True, True, False, Suite.AES_128_GCM),
        (True, True, False, True, Suite.AES_128_GCM),
        (True, True, True, True, Suite.CLEAR),
    ],
)
def test_protection_is_agreed(make_hosts, client_aes, server_aes, asks_clear, allows_clear, suite):
    hosts = make_hosts(server_aes=server_aes, allow_clear=allows_clear)
    client, server = hosts.connected(SetUpOptions(hardware_aes=client_aes, clear=asks_clear))
    assert client.opened.credentials.suite is server.opened.credentials.suite is suite
    packets = client.send([b"secret ", b"words"])
    assert (b"secret words" in b"".join(packets)) == (suite is Suite.CLEAR)
    assert [bytes(r) for r in server.receive(b"".join(packets), 0.0)] == [b"secret words"]
    # And so it stays for the flow's later connections.
    client, server = hosts.resumed(client.opened.credentials)
    assert client.opened.credentials.suite is suite
    assert delivered(server, client, b"down") == [b"down"]


def test_the_deadline_is_granted_within_limits(make_hosts):
    hosts = make_hosts(limits=HandshakeLimits(deadline_s=1000))
    client, server = hosts.connected(SetUpOptions(deadline_s=100_000))
    assert client.opened.deadline_s == server.opened.deadline_s == 1000


def test_a_duplicate_flow_id_is_tried_again_with_another(hosts):
    asked = []

    def verdict(request):
        asked.append(request.flow_id)
        return FlowRefusal(FlowRefusalReason.DUPLICATE) if len(asked) < 3 else FlowGrant(0)

    hosts.book.verdict = verdict
    client, _ = hosts.connected()
    assert len(set(asked)) == 3
    assert client.opened.credentials.flow_id == asked[-1]


@pytest.mark.parametrize("reason", list(FlowRefusalReason))
def test_refusals_are_proved(hosts, reason):
    hosts.book.verdict = lambda request: FlowRefusal(reason, 7)
    client, server = hosts.set_up(), hosts.accept()
    hosts.talk(client, server)
    assert client.opened is server.opened is None
    assert client.failure.kind is FailureKind.REFUSED
    assert client.failure.authenticated
    assert client.failure.retry_after_s == (0 if reason is FlowRefusalReason.NOT_ALLOWED else 7)


def test_another_version_is_named(hosts):
    client, server = hosts.set_up(), hosts.accept()
    hello = bytearray(client.outgoing()[0])
    hello[HEADER_BYTES + 4] = 9
    server.receive(bytes(hello), 0.0)
    assert server.failure.kind is FailureKind.VERSION
    hosts.carry(server, client)
    assert client.failure.kind is FailureKind.VERSION
    assert "versions 1 to 1" in client.failure.why


def test_a_version_cannot_be_talked_down(hosts):
    """The keys depend on a hash of all bytes that were sent in clear before them."""
    client, server = hosts.set_up(SetUpOptions(hardware_aes=True)), hosts.accept()
    hello = bytearray(client.outgoing()[0])
    hello[HEADER_BYTES + 5] ^= 1  # says ChaChaPoly
    server.receive(bytes(hello), 0.0)
    assert server.failure is not None


def test_notices_are_hints(hosts):
    for notice in Notice:
        client = hosts.set_up()
        client.receive(frame(MessageKind.NOTICE, pack_notice(notice)), 0.0)
        assert not client.failure.authenticated


def test_under_load_a_cookie_is_asked_for(make_hosts):
    hosts = make_hosts(limits=HandshakeLimits(cookies_from=2))
    idle = [hosts.accept(), hosts.accept()]
    client, server = hosts.connected()
    assert [m[3] for m in hosts.wire].count(MessageKind.COOKIE) == 1
    assert delivered(client, server, b"hi") == [b"hi"]
    for channel in idle:
        channel.abandon()
    hosts.wire.clear()
    hosts.connected()
    assert MessageKind.COOKIE not in [m[3] for m in hosts.wire]


@pytest.mark.parametrize("cookies", [[b""], [b"c" * 300], [b"c" * 20, b"c" * 20]])
def test_a_stranger_who_asks_for_cookies_gets_one_more_hello_at_most(hosts, cookies):
    client = hosts.set_up()
    client.outgoing()
    for each in [*cookies, *[b"d" * 20] * 1000]:
        client.receive(frame(MessageKind.COOKIE, each), 0.0)
    assert len(client.outgoing()) == len(cookies) - 1
    assert client.failure.kind is FailureKind.GARBLED


def test_a_cookie_is_good_for_one_address_one_hello_and_two_minutes(make_hosts):
    hosts = make_hosts(limits=HandshakeLimits(cookies_from=0))

    def with_cookie():
        client, server = hosts.set_up(), hosts.accept("192.0.2.1")
        hosts.carry(client, server)
        hosts.carry(server, client)
        return client.outgoing()[0], hosts.wire[-2]

    def answered(hello, address):
        server = hosts.accept(address)
        server.receive(hello, hosts.now)
        answer = MessageKind(server.outgoing()[0][3])
        server.abandon()
        return answer

    hello, bare = with_cookie()
    other, _ = with_cookie()
    assert answered(bare, "192.0.2.1") is MessageKind.COOKIE
    assert answered(hello, "192.0.2.1") is MessageKind.SET_UP_ANSWER
    assert answered(hello, "192.0.2.2") is MessageKind.COOKIE
    head = HEADER_BYTES + 7
    swapped = hello[:head] + other[head : head + 20] + hello[head + 20 :]
    assert answered(swapped, "192.0.2.1") is MessageKind.COOKIE
    hosts.now += 119
    hosts.now += 2
    assert answered(hello, "192.0.2.1") is MessageKind.COOKIE


def test_more_set_ups_than_can_be_served_are_put_off_and_resumptions_are_not(make_hosts):
    hosts = make_hosts(limits=HandshakeLimits(set_ups_per_s=2))
    known, _ = hosts.connected()
    outcomes = []
    for _ in range(14):
        client, server = hosts.set_up(), hosts.accept()
        hosts.talk(client, server)
        outcomes.append(client.failure.kind if client.failure else None)
    assert outcomes[0] is None
    assert outcomes[-1] is FailureKind.BUSY
    client, server = hosts.resumed(known.opened.credentials)
    assert client.opened is not None
    hosts.now += 10
    hosts.connected()


@given(st.data())
def test_garbage_instead_of_a_handshake_is_refused_and_bounded(make_hosts, data):
    hosts = make_hosts()
    dialling = data.draw(st.booleans())
    channel = hosts.set_up() if dialling else hosts.accept()
    message = data.draw(
        st.one_of(
            st.binary(max_size=400),
            st.builds(frame, st.sampled_from(list(MessageKind)), st.binary(max_size=330)),
        )
    )
    records = channel.receive(message, hosts.now)
    assert records == []
    assert channel.opened is None
    if channel.failure is not None:
        assert not channel.failure.authenticated
    # Whatever comes, no more than one greeting is kept of it.
    assert len(channel._partial) <= 4 + 320


def test_every_byte_of_a_set_up_counts(hosts):
    """If one bit is wrong anywhere in the three messages, the end that received it accepts no flow."""
    client, server = hosts.set_up(), hosts.accept()
    hosts.talk(client, server)
    messages = list(hosts.wire)
    assert len(messages) == 3
    for which, message in enumerate(messages):
        for at in range(HEADER_BYTES, len(message)):
            client, server = hosts.set_up(), hosts.accept()
            ends = [(client, server), (server, client), (client, server)]
            for number, (sender, receiver) in enumerate(ends[: which + 1]):
                content = bytearray(b"".join(sender.outgoing()))
                if number == which:
                    content[at] ^= 1 << at % 8
                receiver.receive(bytes(content), hosts.now)
            receiver = ends[which][1]
            assert receiver.opened is None, (which, at)
            server.abandon()


@pytest.mark.parametrize("apart_s", [-3e9, -3600.0, 3600.0, 3e9])
def test_who_has_another_time_sets_up_and_comes_back(hosts, apart_s):
    here_s = hosts.now + apart_s

    def talk(client):
        server = hosts.accept()
        for _ in range(6):
            for message in client.outgoing():
                server.receive(message, hosts.now)
            for message in server.outgoing():
                client.receive(message, here_s)
        assert client.confirmed
        assert server.confirmed
        credentials = server.opened.credentials
        hosts.book.flows[credentials.flow_id] = credentials

    client = set_up(hosts.client, hosts.server.public, SetUpOptions(3600), random=hosts.random)
    talk(client)
    assert client.opened is not None
    for jump_s in (0.0, 4e8, -8e8):
        here_s += jump_s
        credentials = client.opened.credentials
        talk(resume(hosts.client, credentials, ConnectionKind.RESUME, random=hosts.random))
