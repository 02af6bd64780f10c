"""The way of a program's packets, and how long they keep it."""

import asyncio

import pytest

from cedos.proxy.local import program_packets
from cedos.proxy.local.gateway_link import GatewayUnreachableError
from cedos.proxy.local.program_packets import ProgramPackets
from cedos.proxy.streams.frames import Obstacle, ProgramPacket, UndeliveredPacket

HOST, OTHER = "203.0.113.9", "203.0.113.10"


class Link:
    """A gateway that can be away; `sent` has what went there."""

    def __init__(self):
        self.away = False
        self.sent = []
        self.gone = False
        self.received = None
        self.undelivered = None
        self.ended = lambda: None

    async def associate(self, begun, _user):
        if self.away:
            raise GatewayUnreachableError("it is away")
        begun(self)
        return self

    def send(self, _host, _port, data):
        self.sent.append(data)

    def drop(self):
        self.gone = True


class Program:
    def __init__(self, monkeypatch, *, fails_open=True):
        self.link = Link()
        self.direct = []
        self.refused, self.came = [], []
        monkeypatch.setattr(program_packets, "AGAIN_S", 0.05)
        monkeypatch.setattr(program_packets, "_TRIED_S", 0.1)
        self.packets = ProgramPackets(
            self.link,
            lambda host, _port: host.startswith("192.168."),
            self._permitted,
            lambda host, _port, data: self.came.append((host, data)),
            lambda *place: self.refused.append(place),
            1000,
            fails_open=fails_open,
        )
        monkeypatch.setattr(
            self.packets._direct, "send", lambda _host, _port, data: self.direct.append(data)
        )

    async def _permitted(self, host, _port):
        return [host]

    async def says(self, data, host=HOST):
        self.packets.send(host, 4000, data)
        await asyncio.sleep(0.01)


@pytest.fixture
async def programs(monkeypatch):
    made = []

    def make(**options):
        made.append(Program(monkeypatch, **options))
        return made[-1]

    yield make
    for each in made:
        await each.packets.end()
        assert each.link.gone is (each.packets._association is not None)


async def test_what_has_answered_directly_stays_direct(programs):
    program = programs()
    program.link.away = True
    await program.says(b"a")
    program.packets._on_answer(HOST, 4000, b"answer")
    program.link.away = False
    await asyncio.sleep(0.15)
    await program.says(b"b")
    await program.says(b"c", OTHER)
    assert (program.direct, program.link.sent) == ([b"a", b"b"], [b"c"])


async def test_what_goes_through_the_gateway_leaves_it_only_when_it_must(programs):
    program = programs()
    await program.says(b"a")
    program.packets._goes_direct = lambda *_place: True  # a route of its own has come
    await program.says(b"b")
    program.link.ended()  # the gateway begins anew
    await program.says(b"c")
    assert (program.direct, program.link.sent) == ([], [b"a", b"b", b"c"])
    program.link.away = True
    program.link.ended()
    await program.says(b"d")
    assert program.direct == [b"d"]


async def test_where_the_gateway_has_no_way_this_host_may_have_one(programs):
    for fails_open in (True, False):
        program = programs(fails_open=fails_open)
        await program.says(b"a")
        program.link.undelivered(UndeliveredPacket(1, HOST, 4000, Obstacle.NO_WAY))
        await program.says(b"b")
        assert program.direct == ([b"b"] if fails_open else [])
        assert program.refused == ([] if fails_open else [(HOST, 4000)])
        await program.says(b"c", OTHER)
        program.link.undelivered(UndeliveredPacket(1, OTHER, 4000, Obstacle.REFUSED))
        assert program.refused[-1] == (OTHER, 4000)


async def test_a_gateway_speaks_in_no_name_of_a_host_that_is_reached_without_it(programs):
    """A program got a gateway's datagrams as from this place's resolver."""
    program, near = programs(), "192.168.1.1"
    await program.says(b"a")
    for host in (near, HOST, "192.168.1.2"):
        program.link.received(ProgramPacket(1, host, 4000, b"answer"))
        program.link.undelivered(UndeliveredPacket(1, host, 4000, Obstacle.REFUSED))
    assert (program.came, program.refused) == ([(HOST, b"answer")], [(HOST, 4000)])
    # What has answered directly, while the gateway was away, goes on to do so.
    program.link.away = True
    program.link.ended()
    await program.says(b"b", OTHER)
    program.packets._on_answer(OTHER, 4000, b"direct")
    program.packets._on_received(ProgramPacket(1, OTHER, 4000, b"forged"))
    assert program.came[1:] == [(OTHER, b"direct")]


async def test_a_gateway_makes_this_host_ask_nobody(programs):
    """Each new address that it named cost a look-up, or up to 0.3 ms of questions to the kernel."""
    program, asked = programs(), []
    await program.says(b"a")
    program.packets._goes_direct = lambda host, _port: asked.append(host)
    for each in program.packets._ways.values():
        each.until_s = 0.0
    for host in (HOST, "other.example", OTHER, "2001:db8::1", "fe80::1%eth0"):
        program.packets._on_received(ProgramPacket(1, host, 4000, b"answer"))
        program.packets._on_undelivered(UndeliveredPacket(1, host, 4000, Obstacle.REFUSED))
    assert program.came == [(HOST, b"answer")], "the program sent there by the gateway"
    assert program.refused == [(HOST, 4000)]
    assert asked == []


async def test_without_the_gateway_nothing_goes_where_that_is_wanted(programs):
    program = programs(fails_open=False)
    program.link.away = True
    await program.says(b"a")
    await program.says(b"near", "192.168.1.1")
    assert (program.direct, program.refused) == ([b"near"], [(HOST, 4000)])


async def test_what_a_rule_may_be_about_waits_until_that_is_known(programs, monkeypatch):
    program, may = programs(), asyncio.Event()
    monkeypatch.setattr(program_packets, "_MOST_WAITING", 3)

    async def goes_direct(host, _port):
        await may.wait()
        return host == HOST

    program.packets._goes_direct = goes_direct
    for data in (b"a", b"b"):
        await program.says(data)
    for data in (b"c", b"d"):
        await program.says(data, OTHER)
    assert (program.direct, program.link.sent) == ([], [])
    may.set()
    await asyncio.sleep(0.01)
    assert (program.direct, program.link.sent) == ([b"a", b"b"], [b"c"]), (
        "no more than three waited"
    )
    await asyncio.sleep(0.15)
    may.clear()
    await program.says(b"e", OTHER)
    assert program.link.sent == [b"c"], "its rule may be another one by now"
    program.link.received(ProgramPacket(1, OTHER, 4000, b"answer"))
    assert program.came == [(OTHER, b"answer")]


async def test_what_is_sent_without_a_pause_waits_only_once(programs, monkeypatch):
    """A call stood still each five seconds until the daemon had answered, and lost what was too much."""
    program, asked = programs(), []
    monkeypatch.setattr(program_packets, "_TRIED_S", 0.4)

    async def goes_direct(*place):
        asked.append(place)
        await asyncio.sleep(0.03)
        return False

    program.packets._goes_direct = goes_direct
    await program.says(b"first")
    await asyncio.sleep(0.1)
    sent = [b"first"]
    for number in range(70):
        assert program.link.sent == sent
        sent.append(b"%d" % number)
        await program.says(sent[-1])
    assert len(asked) > 2


async def test_a_host_that_answers_while_its_way_is_chosen_keeps_it(programs, monkeypatch):
    program, may = programs(), asyncio.Event()
    monkeypatch.setattr(program_packets, "_TRIED_S", 0.4)

    async def goes_direct(*_place):
        direct = not asked
        asked.append(direct)
        await may.wait()
        return direct

    asked = []
    program.packets._goes_direct = goes_direct
    may.set()
    await program.says(b"a")
    may.clear()
    await asyncio.sleep(0.25)
    await program.says(b"b")
    assert asked == [True, False]
    program.packets._on_answer(HOST, 4000, b"answer")
    may.set()
    await asyncio.sleep(0.3)
    await program.says(b"c")
    assert (program.direct, program.link.sent) == ([b"a", b"b", b"c"], [])
