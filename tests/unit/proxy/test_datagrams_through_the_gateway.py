"""Programs' datagrams through the gateway: there and back, and no other program's."""

import asyncio
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from kit.proxy_streams import Anything
from kit.waiting import until

from cedos.proxy.gateway import packet_relay
from cedos.proxy.local import gateway_link
from cedos.proxy.local.direct import RuleBook
from cedos.proxy.local.local_proxy import Fail
from cedos.proxy.streams.association import ProxiedAssociation
from cedos.proxy.streams.frames import Obstacle, ProgramPacket

ANSWER_S = 5.0
REFUSED = Obstacle.REFUSED
SILENCE_S = 0.3


class Udp(asyncio.DatagramProtocol):
    """A socket on loopback; with `echoes` it answers."""

    def __init__(self, *, echoes):
        self.echoes = echoes
        self.came = asyncio.Queue()

    def connection_made(self, transport):
        self.transport = transport
        self.port = transport.get_extra_info("sockname")[1]

    def datagram_received(self, data, sender):
        self.came.put_nowait((data, sender))
        if self.echoes:
            self.transport.sendto(b"echo " + data, sender)

    async def next(self):
        return (await asyncio.wait_for(self.came.get(), ANSWER_S))[0]

    async def nothing(self):
        with suppress(TimeoutError):
            await asyncio.wait_for(self.came.get(), SILENCE_S)
            return False
        return True


@pytest.fixture
async def sockets():
    made = []

    async def make(*, echoes=False):
        loop = asyncio.get_running_loop()
        _, one = await loop.create_datagram_endpoint(
            lambda: Udp(echoes=echoes), local_addr=("127.0.0.1", 0)
        )
        made.append(one)
        return one

    yield make
    for each in made:
        each.transport.close()


class Program:
    """A program's socket, as far as the proxy carries its datagrams."""

    def __init__(self, ends):
        self.came = asyncio.Queue()
        self.packets = ends.proxy.packets(1000, lambda *answer: self.came.put_nowait(answer))
        self.send, self.end = self.packets.send, self.packets.end

    async def next(self):
        return await asyncio.wait_for(self.came.get(), ANSWER_S)


@pytest.fixture
def far(monkeypatch):
    """Loopback is not of this place, but the gateway's: all goes through it."""
    from cedos.proxy.local.local_proxy import LocalProxy

    monkeypatch.setattr(LocalProxy, "goes_direct", lambda _self, _host: False)


@pytest.fixture
async def begin(ends, far):
    """Start both ends; return a program of a place that is the gateway's, which ends with the test."""
    begun = []

    async def start(**settings):
        await ends.start(**settings)
        begun.append(Program(ends))
        return begun[-1]

    yield start
    for each in begun:
        await each.end()


@pytest.mark.usefixtures("far")
async def test_there_and_back_by_address_and_by_name(ends, sockets):
    await ends.start(patience_s=10.0)
    origin = await sockets(echoes=True)
    program = Program(ends)
    for host, data in (("127.0.0.1", b"one"), ("localhost", b"two"), ("127.0.0.1", bytes(60_000))):
        program.send(host, origin.port, data)
        assert await program.next() == ("127.0.0.1", origin.port, b"echo " + data)
    assert len(ends.gateway._associations) == 1
    ends.carried.look()
    (news,) = ends.carried.news()
    assert (news.server, news.port, news.ended_unix_s) == ("127.0.0.1", origin.port, None)
    assert (news.bytes_up, news.bytes_down) == (60_006, 60_021)
    assert news.decision is None
    await program.end()
    for _ in range(100):
        if not len(ends.gateway._associations):
            break
        await asyncio.sleep(0.02)
    assert len(ends.gateway._associations) == 0
    ends.carried.look()
    assert ends.carried.news()[0].ended_unix_s is not None


class OneRule(RuleBook):
    """About one port."""

    def __init__(self, port):
        self.port = port

    stands = True

    async def find(self, _host, port, _user, _look_up):
        await asyncio.sleep(0.01)
        return port == self.port


@pytest.mark.parametrize("fail", list(Fail))
async def test_what_is_under_a_rule_goes_direct_unless_nothing_may(begin, ends, sockets, fail):
    ruled, other = await sockets(echoes=True), await sockets(echoes=True)
    program = await begin(patience_s=10.0, fail=fail, rules=OneRule(ruled.port))
    program.send("127.0.0.1", ruled.port, b"one")
    assert await program.next() == ("127.0.0.1", ruled.port, b"echo one")
    through = 1 if fail is Fail.CLOSED else 0
    assert len(ends.gateway._associations) == through
    program.send("127.0.0.1", other.port, b"two")
    assert await program.next() == ("127.0.0.1", other.port, b"echo two")
    assert len(ends.gateway._associations) == 1
    senders = [(await one.came.get())[1] for one in (ruled, other)]
    assert (senders[0] == senders[1]) is (fail is Fail.CLOSED)


async def test_the_first_packets_do_not_wait_for_the_gateways_word(begin, sockets, monkeypatch):
    monkeypatch.setattr(ProxiedAssociation, "accept", lambda _self: None)
    origin = await sockets(echoes=True)
    program = await begin(patience_s=10.0)
    for data in (b"first", b"second"):
        program.send("127.0.0.1", origin.port, data)
    assert {(await program.next())[2] for _ in range(2)} == {b"echo first", b"echo second"}
    program.send("127.0.0.1", origin.port, b"third")
    assert (await program.next())[2] == b"echo third"


async def test_only_who_was_sent_to_is_heard(begin, ends, sockets):
    """So nobody can have answers sent to somebody else, or send what was not asked for."""
    origin, stranger = await sockets(echoes=True), await sockets()
    program = await begin(patience_s=10.0)
    program.send("127.0.0.1", origin.port, b"hello")
    await program.next()
    _, gateways = await asyncio.wait_for(origin.came.get(), ANSWER_S)
    stranger.transport.sendto(b"you did not ask", gateways)
    relay = next(iter(ends.gateway._associations._relays.values()))
    await until(lambda: relay.strangers == 1)
    assert program.came.empty()


async def test_where_a_gateway_does_not_send(begin, ends, sockets):
    """Neither into its own host and network, nor to mail ports; and it says nothing."""
    origin = await sockets()
    program = await begin(local=False)
    for host, port in (
        *(("127.0.0.1", origin.port), ("localhost", origin.port), ("169.254.169.254", 80)),
        *(("10.1.2.3", 53), ("224.0.0.251", 5353), ("255.255.255.255", 9), ("1.1.1.1", 25)),
    ):
        program.send(host, port, b"probe")
    assert await origin.nothing()
    relay = next(iter(ends.gateway._associations._relays.values()))
    assert relay.refused == 7
    assert relay._sockets == {}


async def test_a_revoked_clients_association_reaches_no_other_host(begin, ends, sockets):
    """An association from before sent to any host, as long as a packet came every five minutes."""
    before, other = await sockets(echoes=True), await sockets(echoes=True)
    program = await begin(patience_s=10.0)
    program.send("127.0.0.1", before.port, b"hello")
    await program.next()
    ends.clients.clear()
    program.send("127.0.0.1", other.port, b"hello")
    relay = next(iter(ends.gateway._associations._relays.values()))
    await until(lambda: relay.refused == 1)
    assert await other.nothing()


@pytest.mark.usefixtures("far")
@pytest.mark.parametrize("counted_with", ["associations", "connections"])
async def test_there_are_limits(ends, sockets, counted_with):
    """A client's 512 associations took all of 1,024 open files, and no other client could join."""
    if counted_with == "connections":
        await ends.start(patience_s=10.0, most_per_client=4)  # an association counts as two
    else:
        await ends.start(patience_s=10.0)
        ends.gateway._associations._most_per_client = 2
    origin = await sockets(echoes=True)
    programs = [Program(ends) for _ in range(3)]
    for each in programs:
        each.send("127.0.0.1", origin.port, b"x")
    got = [await origin.next() for _ in range(2)]
    assert got == [b"x", b"x"]
    assert await origin.nothing()
    assert len(ends.gateway._associations) == 2
    for each in programs:
        await each.end()


async def test_an_idle_one_ends_and_is_had_again(begin, ends, sockets):
    program = await begin(patience_s=10.0)
    ends.gateway._associations._idle_s = 0.3
    origin = await sockets(echoes=True)
    program.send("127.0.0.1", origin.port, b"one")
    await program.next()
    for _ in range(100):
        if not len(ends.gateway._associations):
            break
        await asyncio.sleep(0.02)
    assert len(ends.gateway._associations) == 0
    await asyncio.sleep(0.05)
    program.send("127.0.0.1", origin.port, b"two")
    assert (await program.next())[2] == b"echo two"


@pytest.mark.usefixtures("far")
async def test_without_a_gateway_they_go_direct_or_not_at_all(ends, sockets):
    origin = await sockets(echoes=True)
    for fail in (Fail.CLOSED, Fail.OPEN):
        await ends.start(fail=fail, patience_s=0.3)
        await ends.stop_gateway()
        program = Program(ends)
        program.send("127.0.0.1", origin.port, b"x")
        if fail is Fail.CLOSED:
            assert await origin.nothing()
        else:
            assert (await program.next())[2] == b"echo x"
        await program.end()
        await ends.proxy.close()
        await ends.link.close()


async def test_what_is_of_this_place_goes_direct(ends, sockets):
    await ends.start(patience_s=10.0)
    origin = await sockets(echoes=True)
    program = Program(ends)
    program.send("127.0.0.1", origin.port, b"near")
    assert (await program.next())[2] == b"echo near"
    assert len(ends.gateway._associations) == 0
    await program.end()


@pytest.mark.usefixtures("far")
async def test_what_is_not_delivered_is_told(ends, sockets, monkeypatch):
    """And keeps nobody else's packets from being delivered."""
    await ends.start(patience_s=10.0)
    origin, gone = await sockets(echoes=True), await sockets()
    gone.transport.close()
    association = await ends.link.associate()
    told = asyncio.Queue()
    came = asyncio.Queue()
    association.undelivered, association.received = told.put_nowait, came.put_nowait
    for number in range(5):
        association.send("127.0.0.1", gone.port, b"anybody?")
        association.send("127.0.0.1", origin.port, b"%d" % number)
        refused = await asyncio.wait_for(told.get(), ANSWER_S)
        assert (refused.host, refused.port, refused.why) == ("127.0.0.1", gone.port, REFUSED)
        assert (await asyncio.wait_for(came.get(), ANSWER_S)).data == b"echo %d" % number
    monkeypatch.setattr(packet_relay, "_reachable", lambda *_where: None)
    association.send("127.0.0.1", 9, b"no way")
    nowhere = await asyncio.wait_for(told.get(), ANSWER_S)
    assert (nowhere.port, nowhere.why) == (9, Obstacle.NO_WAY)
    association.drop()


async def test_packets_for_names_that_nobody_answers_for_take_little_and_have_an_end(monkeypatch):
    """45 MB waited for the 64 names of each association, of which a client has 512."""
    monkeypatch.setattr(packet_relay, "_LOOK_UP_S", 0.1)

    async def silent(_host, _port):
        return await asyncio.get_running_loop().create_future()

    relay = packet_relay.PacketRelay(silent, lambda *_answer: None, lambda *_undelivered: None)
    for number in range(packet_relay.MOST_NAMES):
        for _ in range(16):
            relay.send(f"{number}.test", 9, bytes(50_000))
    waits = sum(len(data) for each in relay._waiting.values() for data in each)
    assert 0 < waits <= packet_relay.MOST_WAITING_BYTES
    await until(lambda: not relay._waiting and not relay._tasks)
    relay.send("1.test", 10, bytes(packet_relay.MOST_WAITING_BYTES))
    assert len(relay._waiting) == 1
    relay.close()


async def test_a_relay_forgets_whom_it_spoke_to_long_ago(monkeypatch):
    monkeypatch.setattr(packet_relay, "MOST_PEERS", 3)

    async def permitted(host, _port):
        return [host]

    relay = packet_relay.PacketRelay(permitted, lambda *_answer: None, lambda *_undelivered: None)
    for port in range(9001, 9011):
        relay.send("127.0.0.1", port, b"x")
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)
    assert list(relay._peers) == [("127.0.0.1", port) for port in (9008, 9009, 9010)]
    assert len(relay._found) == 3
    relay.close()


async def test_peers_and_names_of_all_of_a_clients_associations_have_a_limit():
    """Its 512 associations with 1,024 peers and names each held 400 MB."""

    async def permitted(host, _port):
        return [host]

    remembered = packet_relay.RememberedPeers(most=400, most_of_one=100)
    relays = {
        who: [
            packet_relay.PacketRelay(
                permitted, lambda *_answer: None, lambda *_undelivered: None, remembered.share(who)
            )
            for _ in range(4)
        ]
        for who in (b"eve", b"ann")
    }

    def kept(who):
        return sum(len(each._peers) + len(each._found) for each in relays[who])

    async def send(who, ports):
        for port in range(9001, 9001 + ports):
            for relay in relays[who]:
                relay.send("127.0.0.1", port, b"x")
            await asyncio.sleep(0.002)

    await send(b"ann", 5)
    await send(b"eve", 60)
    assert kept(b"ann") == 40
    assert 8 <= kept(b"eve") <= 100
    remembered.most = 90  # of all: who has more than an equal part gives up some
    await send(b"eve", 1)
    assert kept(b"ann") == 40
    assert kept(b"eve") <= 50
    for each in relays[b"eve"]:
        each.send("is looked up", 9, b"x")
        each.close()
    await asyncio.sleep(0.01)
    assert remembered.count == 40
    for each in relays[b"ann"]:
        each.close()
    assert remembered.count == 0


@pytest.mark.parametrize("hosts", ["127.0.0.1", "{}.silent.test"])
async def test_one_users_destinations_and_look_ups_lose_no_other_user_a_packet(
    sockets, monkeypatch, hosts
):
    """9,216 packets of one user, once: all datagrams of the host's other users were lost for 300 s."""

    class Knows:
        async def addresses(self, host, _port, asker):
            if host.endswith(".silent.test"):
                await asyncio.sleep(60)
            return [host]

    monkeypatch.setattr(
        packet_relay, "RememberedPeers", partial(packet_relay.RememberedPeers, 4_000, 1_000)
    )
    associations = packet_relay.Associations(Knows(), lambda _key: "a laptop")

    def opens(number, user):
        made = ProxiedAssociation(number, Anything(), user)
        associations.open(b"laptop", made, ExitStack())
        return made

    def packet(host, port):
        return ProgramPacket(1, host, port, b"x")

    origins = [await sockets() for _ in range(4)]
    begun = opens(1, 2)
    begun.received(packet("127.0.0.1", origins[0].port))
    await origins[0].next()
    hogs = [opens(number, 1) for number in range(2, 10)]
    for port in range(9_001, 9_101):
        for hog in hogs:
            hog.received(packet(hosts.format(port), port))
        await asyncio.sleep(0)
    await asyncio.sleep(0.3)
    assert associations._remembered.count <= 1_010
    # The hog says no more, and still has it all.
    late = opens(10, 2)
    for origin in origins:
        for each in (begun, late):
            each.received(packet("127.0.0.1", origin.port))
            assert await origin.next() == b"x"
    # Who has much loses what was used longest ago, not what is sent.
    if hosts == "127.0.0.1":
        hogs[0].received(packet("127.0.0.1", origins[0].port))
        assert await origins[0].next() == b"x"
    associations.close()
    await asyncio.sleep(0.01)
    assert associations._remembered.count == 0


async def test_names_are_asked_of_the_gateways_resolver(ends, monkeypatch):
    """And who asks what is no question is not answered, but keeps its session."""
    from cedos.proxy.names import NobodyAnswersError

    class Knows:
        async def ask(self, message, question):
            if question.name == "nobody.test":
                raise NobodyAnswersError("nobody")
            return message[:2] + b"\x81\x80" + message[4:]

    await ends.start(patience_s=10.0)
    ends.gateway._names._resolver = Knows()
    question = b"\0\7\1\0\0\1\0\0\0\0\0\0\3far\4test\0\0\1\0\1"
    assert (await ends.link.ask(question))[2:4] == b"\x81\x80"
    refused = await ends.link.ask(question.replace(b"\3far", b"\6nobody"))
    assert refused[3] & 15 == 2
    before = ends.link._streams
    monkeypatch.setattr(gateway_link, "ASKED_S", 0.3)
    with pytest.raises(gateway_link.GatewayUnreachableError):
        await ends.link.ask(b"no question")
    assert ends.link._streams is before


async def test_a_client_that_sends_what_is_no_packet_is_sent_away(ends):
    await ends.start(patience_s=10.0)
    streams = await ends.link._session()
    streams.connection.send_datagram(b"\x09rubbish", 1.0)
    for _ in range(200):
        if streams.connection.ended:
            break
        await asyncio.sleep(0.01)
    assert streams.connection.ended
