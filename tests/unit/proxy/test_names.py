"""Names: which resolver is asked, what is passed on, and what happens if one does not answer."""

import asyncio
import socket
import struct
from contextlib import ExitStack, suppress
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import counting_turns, lines_of

from cedos.host.monitor import dns_message
from cedos.host.monitor.resolvers import search_domains
from cedos.kernel.socket_owners import UNKNOWN, SocketOwners
from cedos.proxy import names
from cedos.proxy.gateway import gateway_session
from cedos.proxy.gateway.gateway_session import NameService
from cedos.proxy.local import name_stub
from cedos.proxy.local.direct import RuleBook
from cedos.proxy.local.gateway_link import GatewayUnreachableError
from cedos.proxy.local.name_stub import KnownNames, NameStub
from cedos.proxy.names import (
    SERVER_FAILED,
    NobodyAnswersError,
    Resolver,
    answers,
    error_of,
    host_servers,
    read,
    servfail,
    truncate,
)
from cedos.proxy.streams.frames import GatewayAnswer, GatewayQuestion, parse_packet


def asks(name, number=7, opt_bytes=0):
    message = dns_message.question(number, name)
    if opt_bytes:
        message = (
            message[:10] + b"\0\1" + message[12:] + struct.pack("!BHHIH", 0, 41, opt_bytes, 0, 0)
        )
    return message


def tells(message, *, code=0, records=1, cut=False):
    """An answer to a question: so many addresses, 192.0.2.1 and on."""
    number = int.from_bytes(message[:2])
    flags = 0x8180 | code | (0x0200 if cut else 0)
    end = message.index(b"\0", 12) + 5
    body = b"".join(
        struct.pack("!3HIH4B", 0xC00C, 1, 1, 60, 4, 192, 0, 2, each % 256)
        for each in range(1, records + 1)
    )
    return struct.pack("!6H", number, flags, 1, records, 0, 0) + message[12:end] + body


class LoopbackResolver:
    """Answers by UDP as `udp` says, by TCP as `tcp` does; `asked` are the names that came."""

    def __init__(self):
        self.udp = tells
        self.tcp = tells
        self.asked = []

    async def start(self):
        loop = asyncio.get_running_loop()
        resolver = self

        class Udp(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                self.transport = transport

            def datagram_received(self, data, sender):
                resolver.asked.append(data)
                if (answer := resolver.udp(data)) is not None:
                    self.transport.sendto(answer, sender)

        while True:
            self.transport, _ = await loop.create_datagram_endpoint(Udp, ("127.0.0.1", 0))
            self.server = self.transport.get_extra_info("sockname")[:2]
            try:
                self.listening = await asyncio.start_server(self._serve, *self.server)
            except OSError:  # somebody else has that port by TCP
                self.transport.close()
            else:
                return

    async def _serve(self, reader, writer):
        length = int.from_bytes(await reader.readexactly(2))
        answer = self.tcp(await reader.readexactly(length))
        if answer is not None:
            writer.write(len(answer).to_bytes(2) + answer)
        writer.close()

    def close(self):
        self.transport.close()
        self.listening.close()


@pytest.fixture
async def loopback_resolver():
    made = LoopbackResolver()
    await made.start()
    yield made
    made.close()


NO_SUCH_NAME = names.NO_SUCH_NAME


def question(message):
    found = read(message)
    assert found is not None
    return found


@given(st.binary(max_size=100))
def test_answers_of_our_own_are_answers(tail):
    message = asks("far.test") + tail
    asked = question(message)
    for own in (servfail(message, asked), truncate(tells(message, records=50), asked)):
        assert answers(own, asked, 7)
        assert len(own) == asked.ends
    assert error_of(servfail(message, asked)) == names.SERVER_FAILED


def test_who_passes_an_answer_on_reads_no_records():
    """Read the question alone: 64 answers with 4,000 records stopped a gateway for 5 s."""
    message = asks(".".join("a" * 126))
    whole = tells(message, records=4000)
    assert lines_of(lambda: answers(whole, question(message), 7)) < 5000
    assert answers(whole[:-1], question(message), 7), "the asker finds that it was cut"
    assert not answers(whole, question(message), 8)


def test_who_is_asked(tmp_path):
    file = tmp_path / "resolv.conf"
    assert host_servers(file) == []
    file.write_text(
        "# nameserver 192.0.2.9\nsearch Corp.Example. lan\nnameserver 127.0.0.53\n"
        "nameserver fe80::1%eth0\nnameserver nobody\nnameserver 192.0.2.1\nnameserver 192.0.2.2\n"
    )
    assert [host for host, _ in host_servers(file)] == ["127.0.0.53", "fe80::1%eth0", "192.0.2.1"]
    assert search_domains(file) == {"corp.example", "lan"}


async def test_what_does_not_fit_is_asked_by_tcp(loopback_resolver):
    loopback_resolver.udp = lambda asked: tells(asked, cut=True, records=0)
    loopback_resolver.tcp = lambda asked: tells(asked, records=100)
    message = asks("far.test")
    found = await Resolver(lambda: [loopback_resolver.server]).ask(message, question(message))
    assert found == tells(message, records=100)


async def test_foreign_answers_are_not_taken(loopback_resolver, monkeypatch):
    monkeypatch.setattr(names, "_EACH_S", 0.1)
    message = asks("far.test")
    for foreign in (
        lambda asked: tells(asks("evil.test", int.from_bytes(asked[:2]))),
        lambda asked: tells(asks("far.test", int.from_bytes(asked[:2]) ^ 1)),
        lambda asked: asked,
    ):
        loopback_resolver.udp = foreign
        with pytest.raises(NobodyAnswersError):
            await Resolver(lambda: [loopback_resolver.server]).ask(message, question(message))


async def test_answers_to_other_questions_leave_turns_to_other_tasks():
    """A resolver that sends them without end held up all that a process does."""
    loop, message = asyncio.get_running_loop(), asks("far.test")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as resolver:
        resolver.bind(("127.0.0.1", 0))
        servers = [resolver.getsockname()]
        asking = loop.create_task(Resolver(lambda: servers).ask(message, question(message)))
        asked, asker = await loop.sock_recvfrom(resolver, 1_000)
        for _ in range(100):
            resolver.sendto(tells(asks("other.test")), asker)
        resolver.sendto(tells(asked), asker)
        async with counting_turns() as turns:
            assert await asking == tells(message)
            assert turns() >= 100


async def test_the_next_resolver_is_asked(loopback_resolver, monkeypatch):
    monkeypatch.setattr(names, "_EACH_S", 0.1)
    message = asks("far.test")
    several = Resolver(lambda: [("127.0.0.1", 1), ("256.0.0.1", 53), loopback_resolver.server])
    assert await several.ask(message, question(message)) == tells(message)


async def test_a_gateway_answers_within_limits(loopback_resolver):
    service = NameService(Resolver(lambda: [loopback_resolver.server]), most=3, most_per_client=2)
    said = []

    def say(data, _lifetime_s):
        said.append(parse_packet(data))

    for client in (b"a", b"a", b"a", b"b", b"c"):
        service.answer(client, GatewayQuestion(len(said), asks("far.test")), say)
    service.answer(b"d", GatewayQuestion(9, b"rubbish"), say)
    await asyncio.sleep(0.3)
    assert said == [GatewayAnswer(0, tells(asks("far.test")))] * 3
    service.answer(b"a", GatewayQuestion(10, b"rubbish"), say)
    service.answer(b"a", GatewayQuestion(11, asks("far.test")), say)
    await asyncio.sleep(0.3)
    assert said[3:] == [GatewayAnswer(11, tells(asks("far.test")))]
    service.close()


async def test_a_gateway_asks_no_longer_than_the_client_waits(loopback_resolver, monkeypatch):
    """With three resolvers it asked for six seconds: dead names held all places of a client."""
    monkeypatch.setattr(gateway_session, "ASKED_S", 0.1)
    loopback_resolver.udp = lambda _message: None
    service = NameService(Resolver(lambda: [loopback_resolver.server] * 3), most=1)
    said = []
    service.answer(b"a", GatewayQuestion(1, asks("dead.test")), lambda data, _s: said.append(data))
    await asyncio.sleep(0.5)
    assert len(said) == 1
    assert error_of(parse_packet(said[0]).message) == SERVER_FAILED
    service.close()


class Link:
    """A gateway that answers as it is told; None: it is out of reach."""

    def __init__(self):
        self.says = lambda message: tells(message, records=2)
        self.asked = []

    def leads_to(self, host):
        return host == "gateway.test"

    async def ask(self, message):
        self.asked.append(message)
        if (answer := self.says(message)) is None:
            raise GatewayUnreachableError("nothing is heard of it")
        return answer


HERE, FAR = 1, 2  # addresses in an answer


def count(answer):
    return int.from_bytes(answer[6:8])


def stub(link, here, **options):
    settings = {"fails_open": True, "servers": lambda: [here.server]} | options
    return NameStub(link, **settings)


async def found(one, name):
    message = asks(name)
    return await one.answer(message, question(message))


async def test_names_of_this_place_never_leave_it(loopback_resolver):
    link = Link()
    one = stub(link, loopback_resolver, near=["Corp.Example."])
    for name in (
        *("printer", "printer.local", "gateway.test", "corp.example", "www.corp.example"),
        *("1.0.168.192.in-addr.arpa", "1.20.172.in-addr.arpa", "8.b.d.0.1.0.0.2.d.f.ip6.arpa"),
    ):
        assert count(await found(one, name)) == HERE, name
    assert link.asked == []
    for name in ("example.org", "notcorp.example", "1.40.172.in-addr.arpa", "local.example"):
        assert count(await found(one, name)) == FAR, name


@pytest.mark.parametrize(("fails_open", "vpn"), [(True, False), (False, True), (False, False)])
async def test_with_fail_closed_the_domains_that_a_network_names_are_asked_for_far_away(
    loopback_resolver, monkeypatch, fails_open, vpn
):
    """DHCP's search list `com org` had all look-ups go to the network's own resolver.

    It had them still where a VPN was up, or what looked like one: the tap device of a virtual machine.
    """
    monkeypatch.setattr(name_stub, "search_domains", lambda: frozenset({"example"}))
    link = Link()
    one = stub(link, loopback_resolver, fails_open=fails_open, tunnelled=lambda: vpn)
    await found(one, "secret.example")
    assert (len(loopback_resolver.asked), len(link.asked)) == ((1, 0) if fails_open else (0, 1))


@pytest.mark.parametrize(
    ("says", "open_", "closed"),
    [
        (lambda _message: None, HERE, 0),
        (lambda message: tells(message, code=2, records=0), HERE, 0),
        (lambda _message: b"", HERE, 0),
        (lambda _message: tells(asks("evil.test"), records=2), HERE, 0),
        (lambda message: tells(message, code=3, records=0), 0, 0),
    ],
)
async def test_where_the_gateway_does_not_know(loopback_resolver, says, open_, closed):
    link = Link()
    link.says = says
    for fails_open, wanted in ((True, open_), (False, closed)):
        one = stub(link, loopback_resolver, fails_open=fails_open)
        answer = await found(one, "far.test")
        assert count(answer) == wanted
        assert wanted or error_of(answer)


async def test_a_vpns_names_are_asked_here_where_the_gateway_knows_none(loopback_resolver):
    link = Link()
    link.says = lambda message: tells(message, code=NO_SUCH_NAME, records=0)
    one = stub(link, loopback_resolver, tunnelled=lambda: True)
    assert count(await found(one, "intra.example")) == HERE
    loopback_resolver.udp = lambda message: tells(message, code=2, records=0)
    assert error_of(await found(one, "nowhere.example")) == NO_SUCH_NAME
    one = stub(link, loopback_resolver, fails_open=False, tunnelled=lambda: True)
    before = len(loopback_resolver.asked)
    assert error_of(await found(one, "secret.example")) == NO_SUCH_NAME
    assert len(loopback_resolver.asked) == before


async def test_a_resolver_that_asks_us_is_not_asked_for_ever(loopback_resolver, monkeypatch):
    """systemd-resolved on loopback, say, that was told of us."""
    monkeypatch.setattr(names, "_EACH_S", 0.2)
    link = Link()
    link.says = lambda _message: None
    one = stub(link, loopback_resolver)
    one.open("127.0.0.1", 0)
    loop = asyncio.get_running_loop()

    def hands_on(message):
        sender.sendto(message, one.addresses[0])

    sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, ("127.0.0.1", 0))
    loopback_resolver.udp = hands_on
    assert error_of(await found(one, "far.test")) == names.SERVER_FAILED
    # The first user, and the one that hands it on: twice each.
    assert len(loopback_resolver.asked) <= 4
    sender.close()
    await one.close()


async def test_what_one_user_asks_the_resolver_on_loopback_denies_nobody_else_the_same(
    loopback_resolver,
):
    """Have a question on its way all the time: 92 of 100 of another user's failed."""
    one = stub(Link(), loopback_resolver)
    message = asks("printer.local")
    asked = [asyncio.create_task(one.answer(message, question(message), user)) for user in (1, 2)]
    answers_ = await asyncio.gather(*asked)
    assert [error_of(each) for each in answers_] == [0, 0]
    await one.close()


async def test_what_programs_looked_up_is_known_by_its_address(loopback_resolver):
    link, known = Link(), KnownNames()
    one = stub(link, loopback_resolver, known=known)
    await found(one, "git.test")
    assert known.name_of("192.0.2.1") == "git.test"
    await found(one, "printer.local")
    assert known.name_of("192.0.2.1") == "printer.local", "the last one"
    link.says = lambda message: tells(message, code=NO_SUCH_NAME, records=0)
    await found(one, "nowhere.test")
    assert known.name_of("192.0.2.1") == "printer.local"
    assert known.name_of("192.0.2.9") is None


def test_of_endlessly_many_names_the_newest_are_known(monkeypatch):
    monkeypatch.setattr(name_stub, "_MOST_KNOWN", 2)
    known = KnownNames()
    one, two, three = map(ip_address, ("192.0.2.1", "2001:db8::2", "192.0.2.3"))
    known.learn("a.test", [one, two], 1000)
    known.learn("b.test", [one], 1000)
    known.learn("c.test", [three], 1000)
    assert [known.name_of(str(each)) for each in (one, two, three)] == ["b.test", None, "c.test"]


def test_a_user_pushes_out_no_names_of_others():
    known = KnownNames()
    known.learn("a.test", [ip_address("192.0.2.1")], 1000)
    known.learn("b.test", map(ip_address, range(3_000)), 1001)
    known.learn("c.test", [ip_address("192.0.2.1")], 1001)
    assert known.name_of("192.0.2.1") == "c.test"
    known.learn("b.test", map(ip_address, range(3_000)), 1001)
    assert known.name_of("192.0.2.1") == "a.test"
    assert known.name_of(str(ip_address(2_999))) == "b.test"
    assert known.name_of(str(ip_address(0))) is None


class Ruled(RuleBook):
    """For what lies below `updates.test`."""

    stands = True

    def __init__(self):
        self.learnt = []

    def names(self, name):
        return name.lower().endswith("updates.test")

    def learn(self, name, addresses, _user):
        self.learnt.append((name, list(map(str, addresses))))


@pytest.mark.parametrize("fails_open", [True, False])
async def test_names_under_a_rule_are_looked_up_here_as_they_go_direct(
    loopback_resolver, fails_open
):
    link, rules = Link(), Ruled()
    one = stub(link, loopback_resolver, rules=rules, fails_open=fails_open)
    assert count(await found(one, "eu.updates.test")) == (HERE if fails_open else FAR)
    assert count(await found(one, "far.test")) == FAR
    assert rules.learnt == ([("eu.updates.test", ["192.0.2.1"])] if fails_open else [])
    await one.close()


def tells_alias(message, target):
    """The gateway's answer to a question: an alias, with two addresses."""
    plain = tells(message, records=2)
    name = b"".join(len(part).to_bytes() + part.encode() for part in target.split(".")) + b"\0"
    alias = struct.pack("!3HIH", 0xC00C, 5, 1, 60, len(name)) + name
    end = message.index(b"\0", 12) + 5
    records = plain[end:].replace(b"\xc0\x0c", name)
    return plain[:6] + (3).to_bytes(2) + plain[8:end] + alias + records


@pytest.mark.parametrize("records", [5000, 1])
async def test_what_is_too_much_to_read_is_no_answer_for_a_ruled_name(loopback_resolver, records):
    """Let the program have none: its connection would be under no rule."""
    rules = Ruled()
    loopback_resolver.udp = lambda asked: tells(asked, cut=True, records=0)
    loopback_resolver.tcp = lambda asked: tells(asked, records=records)[
        : 65_000 if records > 1 else -1
    ]
    known = KnownNames()
    one = stub(Link(), loopback_resolver, rules=rules, known=known)
    answer = await found(one, "eu.updates.test")
    assert (error_of(answer), rules.learnt) == (names.SERVER_FAILED, [])
    assert count(await found(one, "printer.local")) == records
    assert known.name_of("192.0.2.1") is None
    await one.close()


@pytest.mark.parametrize("fails_open", [True, False])
async def test_an_alias_of_a_ruled_name_is_looked_up_here(loopback_resolver, fails_open):
    """The daemon hears of it nowhere else: the gateway's answer comes inside the session."""
    link, rules = Link(), Ruled()
    link.says = lambda message: tells_alias(message, "EU.updates.test")
    one = stub(link, loopback_resolver, rules=rules, fails_open=fails_open)
    assert count(await found(one, "www.shop.test")) == (HERE if fails_open else 3)
    assert rules.learnt == ([("www.shop.test", ["192.0.2.1"])] if fails_open else [])
    link.says = lambda message: tells_alias(message, "other.test")
    assert count(await found(one, "www.shop.test")) == 3
    await one.close()


async def test_by_udp_and_by_tcp(loopback_resolver):
    link = Link()
    link.says = lambda message: tells(message, records=60)
    one = stub(link, loopback_resolver)
    one.open("127.0.0.1", 0)
    host, port = one.addresses[0]
    came = asyncio.Queue()

    class Asker(asyncio.DatagramProtocol):
        def datagram_received(self, data, _sender):
            came.put_nowait(data)

    loop = asyncio.get_running_loop()
    asker, _ = await loop.create_datagram_endpoint(Asker, remote_addr=(host, port))
    asker.sendto(b"rubbish")
    asker.sendto(asks("far.test"))
    short = await asyncio.wait_for(came.get(), 5)
    assert (names.is_truncated(short), count(short)) == (True, 0)
    asker.sendto(asks("far.test", opt_bytes=4096))
    assert count(await asyncio.wait_for(came.get(), 5)) == 60
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(2):
        writer.write(len(asks("far.test")).to_bytes(2) + asks("far.test"))
        length = int.from_bytes(await asyncio.wait_for(reader.readexactly(2), 5))
        assert count(await reader.readexactly(length)) == 60
    talker, other = await asyncio.open_connection(host, port)
    other.write(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(talker.read(), 5)
    writer.write(b"\0\3bad")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    other.close()
    asker.close()
    await one.close()


class DarkLink(Link):
    """A gateway whose resolver has no answer for names in `dark.test`."""

    async def ask(self, message):
        answer = await super().ask(message)
        if b"dark" in message:
            await asyncio.get_running_loop().create_future()
        return answer


async def test_a_user_s_names_that_no_server_answers_for_delay_no_other_user(
    loopback_resolver, monkeypatch
):
    """A user with 64 questions held all places at the gateway before, with 512 all of the resolver."""
    users = {}

    monkeypatch.setattr(SocketOwners, "user_of", lambda _o, _p, program, _near: users[program[1]])
    link = DarkLink()
    one = stub(link, loopback_resolver)
    one.open("127.0.0.1", 0)
    for _ in range(2 * name_stub._MOST_CONNECTIONS_OF_USER):  # and as many connections of TCP
        one._tasks.begin(asyncio.sleep(60.0))
    with ExitStack() as kept:

        def program(user):
            made = kept.enter_context(socket.socket(type=socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
            made.connect(one.addresses[0])
            users[made.getsockname()[1]] = user
            return made

        alices, closed, bobs = program(1000), program(UNKNOWN.user), program(1001)
        for number in range(400):
            for each in (alices, closed):
                each.send(asks(f"n{number}.dark.test"))
            await asyncio.sleep(0)
        bobs.send(asks("far.test"))
        loop = asyncio.get_running_loop()
        assert count(await asyncio.wait_for(loop.sock_recv(bobs, 512), 5)) == FAR
        assert len(link.asked) == 2 * name_stub.MOST_FAR_OF_USER + 1
    await one.close()


async def test_a_user_s_connections_leave_some_to_other_users(loopback_resolver, monkeypatch):
    user = 1000
    monkeypatch.setattr(SocketOwners, "user_of", lambda *_: user)
    one = stub(Link(), loopback_resolver)
    one.open("127.0.0.1", 0)
    asked = asks("far.test")

    async def is_served():
        reader, writer = await asyncio.open_connection(*one.addresses[0])
        kept.callback(writer.close)
        writer.write(len(asked).to_bytes(2) + asked)
        with suppress(ConnectionResetError):
            return bool(await asyncio.wait_for(reader.read(2), 5))
        return False

    with ExitStack() as kept:
        served = [await is_served() for _ in range(30)]
        assert (True in served, served[-1]) == (True, False)
        user = 1001
        assert await is_served()
    await one.close()
