"""Datagrams of redirected users: whose they are, where they go, and how they are refused."""

import asyncio
import ctypes
import socket
import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import until

from cedos.proxy.local import redirected_datagrams
from cedos.proxy.local.redirected_datagrams import RedirectedDatagrams, unreachable
from cedos.proxy.local.redirection import SentTo

FIRST, SECOND = "127.128.0.1", "127.128.0.2"
ALICE, BOB = 1000, 1001


def cookie(one):
    """SO_COOKIE: as the kernel's programs see the socket."""
    return int(struct.unpack("Q", one.getsockopt(socket.SOL_SOCKET, 57, 8))[0])


class Places:
    """The tables as the BPF programs would have filled them; senders are looked up in the kernel."""

    def __init__(self):
        self.places, self.ended = {}, []

    def place(self, here):
        return self.places.get(here)

    def end(self, program, here):
        self.ended.append((program, here))

    def divide(self, sockets):
        """Let the first socket receive all (SO_ATTACH_REUSEPORT_CBPF: `return 0`)."""
        code = ctypes.create_string_buffer(struct.pack("=HBBI", 6, 0, 0, 0))
        sockets[0].setsockopt(socket.SOL_SOCKET, 51, struct.pack("HP", 1, ctypes.addressof(code)))

    def hold_addresses(self, port):
        return False


class Packets:
    """Answers each packet at once, from where it went."""

    def __init__(self, came, refused):
        self.came, self.refused = came, refused
        self.sent = []
        self.ended = False
        self.used_s = asyncio.get_running_loop().time()

    def send(self, host, port, data):
        self.used_s = asyncio.get_running_loop().time()
        self.sent.append((host, port, data))
        self.came(host, port, b"echo " + data)

    async def end(self):
        self.ended = True


class Host:
    def __init__(self, **limits):
        self.places, self.made = Places(), list[Packets]()
        self.questions = []
        self.datagrams = RedirectedDatagrams(self.places, self._asked, self._make, **limits)
        self.port = self.datagrams.open().port

    def _asked(self, message, user, say):
        self.questions.append((message, user))
        say(b"answer to " + message)

    def _make(self, _user, came, refused):
        self.made.append(Packets(came, refused))
        return self.made[-1]

    async def says(self, one, here, data):
        """Return the answer that comes within a moment."""
        loop = asyncio.get_running_loop()
        one.sendto(data, (here, self.port))
        try:
            return await asyncio.wait_for(loop.sock_recvfrom(one, 65_535), 0.3)
        except TimeoutError:
            return None


@pytest.fixture
async def hosts():
    made = []

    def make(**limits):
        made.append(Host(**limits))
        return made[-1]

    yield make
    for each in made:
        await each.datagrams.close()


@pytest.fixture
def programs():
    made = []

    def make():
        made.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        return made[-1]

    yield make
    for each in made:
        each.close()


async def test_places_of_one_socket(hosts, programs):
    host, one = hosts(), programs()
    host.places.places = {
        FIRST: SentTo("203.0.113.9", 4000, ALICE, cookie(one)),
        SECOND: SentTo("203.0.113.10", 4001, ALICE, cookie(one)),
    }
    assert await host.says(one, FIRST, b"a") == (b"echo a", (FIRST, host.port))
    assert await host.says(one, SECOND, b"b") == (b"echo b", (SECOND, host.port))
    (packets,) = host.made
    assert packets.sent == [("203.0.113.9", 4000, b"a"), ("203.0.113.10", 4001, b"b")]
    packets.came("198.51.100.1", 4000, b"nobody asked me")
    assert await host.says(one, FIRST, b"c") == (b"echo c", (FIRST, host.port))


async def test_a_question_to_a_resolver_is_the_users_own(hosts, programs):
    host, one = hosts(), programs()
    host.places.places = {FIRST: SentTo("192.168.1.1", 53, ALICE, cookie(one))}
    assert await host.says(one, FIRST, b"q") == (b"answer to q", (FIRST, host.port))
    assert (host.questions, host.made) == ([(b"q", ALICE)], [])


async def test_who_was_not_led_here_is_not_served(hosts, programs):
    host, one, other = hosts(), programs(), programs()
    host.places.places = {FIRST: SentTo("203.0.113.9", 4000, ALICE, cookie(one))}
    assert await host.says(one, SECOND, b"x") is None
    assert host.places.ended == [(("127.0.0.1", one.getsockname()[1]), (SECOND, host.port))]
    assert await host.says(one, FIRST, b"x") is not None
    assert await host.says(other, FIRST, b"in another one's name") is None
    assert len(host.made[0].sent) == 1
    # An address that stands for something else by now is looked up again.
    host.places.places = {FIRST: SentTo("203.0.113.77", 4000, BOB, cookie(other))}
    assert await host.says(other, FIRST, b"y") is not None
    assert host.made[1].sent == [("203.0.113.77", 4000, b"y")]


async def test_who_has_most_makes_room(hosts, programs):
    """A user's flood does not end another user's call."""
    host = hosts(most=4)
    call = programs()
    host.places.places = {FIRST: SentTo("203.0.113.9", 4000, BOB, cookie(call))}
    assert await host.says(call, FIRST, b"hello") is not None
    flood = [programs() for _ in range(8)]
    for number, each in enumerate(flood):
        here = f"127.128.1.{number}"
        host.places.places[here] = SentTo("203.0.113.9", 5000 + number, ALICE, cookie(each))
        assert await host.says(each, here, b"x") is not None
    assert len(host.datagrams) == 4
    await asyncio.sleep(0)
    assert [each.ended for each in host.made] == [False, *[True] * 5, *[False] * 3]
    assert await host.says(call, FIRST, b"still here") is not None
    # Who was ended begins anew with its next packet.
    assert await host.says(flood[0], "127.128.1.0", b"again") is not None


async def test_an_idle_socket_is_forgotten(hosts, programs):
    host, one = hosts(idle_s=0.1), programs()
    host.places.places = {FIRST: SentTo("203.0.113.9", 4000, ALICE, cookie(one))}
    assert await host.says(one, FIRST, b"x") is not None
    await until(lambda: len(host.datagrams) == 0)
    await asyncio.sleep(0)
    assert host.made[0].ended
    assert await host.says(one, FIRST, b"y") == (b"echo y", (FIRST, host.port))


async def test_nobody_takes_over_a_place_that_fell_silent(hosts, programs):
    """After its idle time another user sent to it, read the answers, and the victim was refused."""
    host, victim, attacker = hosts(idle_s=0.1), programs(), programs()
    host.places.places = {FIRST: SentTo("203.0.113.9", 4000, ALICE, cookie(victim))}
    assert await host.says(victim, FIRST, b"x") is not None
    await until(lambda: len(host.datagrams) == 0)
    assert await host.says(attacker, FIRST, b"mine now") is None
    assert len(host.datagrams) == 0
    assert await host.says(victim, FIRST, b"y") == (b"echo y", (FIRST, host.port))
    assert await host.says(attacker, FIRST, b"mine now") is None
    assert [data for made in host.made for _, _, data in made.sent] == [b"x", b"y"]


async def test_who_has_the_port_later_is_not_the_sender(hosts, programs):
    host, victim = hosts(), programs()
    host.places.places = {FIRST: SentTo("203.0.113.9", 4000, ALICE, cookie(victim))}
    assert await host.says(victim, FIRST, b"x") is not None
    port = victim.getsockname()[1]
    victim.close()
    attacker = programs()
    attacker.bind(("0.0.0.0", port))
    host.datagrams._known[FIRST].checked_s -= 1.0
    assert await host.says(attacker, FIRST, b"mine now") is None
    assert len(host.made[0].sent) == 1
    # Nor does it hear what is answered later.
    host.made[0].came("203.0.113.9", 4000, b"to the victim")
    await asyncio.sleep(0.05)
    with pytest.raises(BlockingIOError):
        attacker.recv(100)


async def test_a_program_may_end_after_its_only_datagram(hosts, programs):
    host, one = hosts(), programs()
    host.places.places = {FIRST: SentTo("203.0.113.9", 4000, ALICE, cookie(one))}
    one.sendto(b"x", (FIRST, host.port))
    one.close()
    await until(lambda: host.made and host.made[0].sent == [("203.0.113.9", 4000, b"x")])
    assert FIRST not in host.datagrams._known
    # While another socket has the place, one that has ended says nothing in its name.
    other = programs()
    other.sendto(b"y", (FIRST, host.port))
    other.close()
    await asyncio.sleep(0.1)
    assert len(host.made[0].sent) == 1


async def test_tables_have_bounds(hosts, programs, monkeypatch):
    monkeypatch.setattr(redirected_datagrams, "MOST_DESTINATIONS", 3)
    monkeypatch.setattr(redirected_datagrams, "_MOST_KNOWN", 5)
    host, one = hosts(), programs()
    for number in range(9):
        here = f"127.128.1.{number}"
        host.places.places[here] = SentTo("203.0.113.9", 5000 + number, ALICE, cookie(one))
        assert await host.says(one, here, b"x") is not None
    (sender,) = host.datagrams._senders.values()
    assert len(sender.destinations) == 3
    assert len(host.datagrams._known) == 5


PORTS = st.integers(1, 65_535)


@given(st.ip_addresses(v=4), PORTS, st.ip_addresses(v=4), PORTS)
def test_by_ipv4(source, own, destination, port):
    message = unreachable((str(source), own), (str(destination), port))
    words = sum(struct.unpack("!18H", message))
    assert (words & 0xFFFF) + (words >> 16) in (0xFFFF, 0x1FFFF - 1)
    assert message[:2] == b"\3\3"
    about = message[8:]
    assert (about[0], about[9]) == (0x45, 17)
    assert (ip_address(about[12:16]), ip_address(about[16:20])) == (source, destination)
    assert struct.unpack("!2H", about[20:24]) == (own, port)


@given(st.ip_addresses(v=6), PORTS, st.ip_addresses(v=6), PORTS)
def test_by_ipv6(source, own, destination, port):
    message = unreachable((str(source), own), (str(destination), port))
    assert message[:2] == b"\1\4"
    about = message[8:]
    assert (about[0] >> 4, about[6]) == (6, 17)
    assert (ip_address(about[8:24]), ip_address(about[24:40])) == (source, destination)
    assert struct.unpack("!2H", about[40:44]) == (own, port)
