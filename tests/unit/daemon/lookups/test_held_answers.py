"""Held answers to look-ups, with a simulated queue and DNS: which wait, and what a program can claim."""

import asyncio
import struct
from collections.abc import Callable
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.controller import Script

from cedos.controller.commands import SetRuled
from cedos.controller.events import CommandFailed, Event, RuleSet
from cedos.controller.rule import RuleRequest
from cedos.daemon.lookups.delivery import datagram
from cedos.daemon.lookups.held_answers import HeldAnswers, _Streams
from cedos.host.monitor.dns import message as dns
from cedos.host.monitor.dns.resolvers import parse_hosts
from cedos.host.profiler.frame import CapturedPacket
from cedos.kernel.packet_queue import QueuedPacket
from cedos.model import Address, FlowKey

pytestmark = pytest.mark.anyio

HOST = "updates.example"
OWN, STRANGER = ip_address("192.0.2.53"), ip_address("198.51.100.53")
LOCAL = ip_address("192.0.2.2")


def answer(name: str, address: str) -> bytes:
    question = dns.question(7, name)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + ip_address(address).packed
    return question[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0" + question[12:] + record


def nothing(name: str, kind: int, code: int) -> bytes:
    """Answer without addresses."""
    question = dns.question(7, name, kind)
    return question[:2] + bytes((0x81, 0x80 | code)) + question[4:]


class Stage:
    """Held answers over a controller with a rule for a name; `posted` are not handled if told so."""

    def __init__(self) -> None:
        self.script = Script()
        self.script.tell(RuleSet(1, RuleRequest(host=HOST, never=("lte0",))))
        self.may_lead = True
        self.passed: dict[int, bool] = {}
        self.zone: dict[str, str] = {}
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.silent, self.code = False, 3
        self.asked: list[str] = []
        lookups: Any = SimpleNamespace(trusted=lambda each: each == OWN, look_up=self.look_up)
        queue: Any = SimpleNamespace(decide=self.decide)
        ruled = self.script.controller.ruled
        self.look: Callable[[], None] = lambda: None
        self.held = HeldAnswers(ruled, self.post, lookups, queue, self.hold, look=self.looked)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses that the rule covers."""
        return self.script.controller.ruled.rules.rules[1].addresses

    def post(self, event: Event) -> None:
        self.script.tell(event)
        if not self.may_lead:  # the kernel refuses it
            for command in self.script.given(SetRuled):
                self.script.tell(CommandFailed(command, tuple(command.wanted)))

    async def hold(self, on: bool) -> None: ...

    def looked(self) -> None:
        self.look()

    async def look_up(self, name: str, kind: int) -> dns.DnsReply | None:
        self.asked.append(name)
        await self.may_answer.wait()
        found = self.zone.get(name) if kind == dns.A else None
        if self.silent:
            return None
        return dns.parse(answer(name, found) if found else nothing(name, kind, self.code))

    def decide(self, number: int, *, passes: bool) -> None:
        assert number not in self.passed
        self.passed[number] = passes

    def comes(
        self, number: int, payload: bytes, source: Address = OWN, *, asked: str | None = ""
    ) -> None:
        """An answer comes; `asked`: the name that a program has asked for, "": that one, None: none."""
        key = FlowKey(LOCAL, 4000, source, 53, "udp")
        reply = dns.parse(payload)
        if asked is not None and reply is not None:
            question = dns.question(7, asked or reply.name, reply.kind)
            self.held.told(CapturedPacket(key, True, question))
        self.held._held(QueuedPacket(number, datagram(key, payload)))

    def comes_by_tcp(self, number: int, at: int, payload: bytes) -> None:
        head = struct.pack("!HHIIBBHHH", 53, 4000, at, 1, 5 << 4, 0x18, 1000, 0, 0)
        length = 20 + len(head) + len(payload)
        ends = OWN.packed + LOCAL.packed
        ip = struct.pack("!BBHHHBBH", 0x45, 0, length, 1, 0, 64, 6, 0) + ends
        self.held._held(QueuedPacket(number, ip + head + payload))

    async def rest(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def stage() -> Stage:
    return Stage()


async def test_an_answer_passes_once_its_route_stands(stage: Stage) -> None:
    stage.comes(1, answer("other.example", "203.0.113.9"))
    stage.comes(2, b"no DNS")
    stage.comes(3, answer("dl." + HOST, "203.0.113.1"))
    assert stage.passed == {1: True, 2: True, 3: True}
    assert stage.addresses == ("203.0.113.1",)
    assert stage.script.controller.ruled.stand([ip_address("203.0.113.1")])


@pytest.mark.parametrize("asked", [None, "other.example"])
async def test_what_nobody_asked_for_teaches_nothing(stage: Stage, asked: str | None) -> None:
    """A neighbour's datagrams in the resolver's name pushed the true addresses out of the rule."""
    stage.comes(1, answer(HOST, "203.0.113.1"))
    for number in range(2, 400):
        forged = answer(f"x{number}.{HOST}", f"198.18.{number // 250}.{number % 250}")
        stage.comes(number, forged, asked=asked)
        await stage.rest()
    assert stage.addresses == ("203.0.113.1",)


@pytest.mark.parametrize("protocol", ["udp", "tcp"])
async def test_before_a_rule_only_what_was_asked_for_is_learnt(protocol: str) -> None:
    stage, forged = Stage(), answer("dl." + HOST, "198.18.0.1")
    stage.script.tell(RuleSet(1, None))
    key = FlowKey(LOCAL, 4000, OWN, 53, protocol)
    if protocol == "tcp":
        forged = struct.pack("!H", len(forged)) + forged
    stage.held.told(CapturedPacket(key, False, forged))
    stage.script.tell(RuleSet(1, RuleRequest(host=HOST, never=("lte0",))))
    assert stage.addresses == ()
    stage.held.told(CapturedPacket(key, True, dns.question(7, "dl." + HOST)))
    stage.held.told(CapturedPacket(key, False, forged))
    assert stage.addresses == ("198.18.0.1",)


async def test_a_question_that_is_captured_and_not_read_yet_was_asked(stage: Stage) -> None:
    key = FlowKey(LOCAL, 4000, OWN, 53, "udp")
    question = CapturedPacket(key, True, dns.question(7, HOST))
    stage.look = lambda: stage.held.told(question)
    stage.comes(1, answer(HOST, "203.0.113.1"), asked=None)
    assert stage.passed == {1: True}
    assert stage.addresses == ("203.0.113.1",)


async def test_claims_leave_room_for_answers_that_are_believed(stage: Stage) -> None:
    """Look-ups of slow names by one user keep no other user from names under a rule."""
    stage.may_answer.clear()
    for number in range(500):
        stage.comes(number, answer(f"{number}.{HOST}", "198.18.0.1"), STRANGER)
    await stage.rest()
    stage.may_lead = False  # so that it has to wait
    stage.comes(1000, answer(HOST, "203.0.113.1"))
    assert 1000 not in stage.passed
    assert len(stage.passed) == 500 - 64
    stage.may_answer.set()


@pytest.mark.jumping
async def test_an_answer_whose_route_does_not_stand_in_time_is_dropped(stage: Stage) -> None:
    """A daemon that was kept busy for 2 s let the first packet out over the forbidden network."""
    stage.may_lead = False
    stage.comes(1, answer(HOST, "203.0.113.1"))
    await asyncio.sleep(3.0)
    assert stage.passed == {1: False}
    stage.may_lead = True
    stage.comes(2, answer(HOST, "203.0.113.1"))
    await stage.rest()
    assert stage.passed[2]


@pytest.mark.jumping
async def test_a_dropped_segment_is_held_again_when_it_comes_again(stage: Stage) -> None:
    content = answer(HOST, "203.0.113.1")
    content = struct.pack("!H", len(content)) + content
    stage.may_lead = False
    stage.comes_by_tcp(1, 100, content[:20])
    stage.comes_by_tcp(2, 120, content[20:])
    for number in (3, 4):
        await asyncio.sleep(3.0)
        stage.comes_by_tcp(number, 120, content[20:])
    assert stage.passed == {1: True, 2: False, 3: False}
    stage.may_lead = True
    stage.script.decide(20.0)
    await asyncio.sleep(1.0)
    assert stage.passed[4]


async def test_all_answers_wait_for_the_look_up_of_the_name_that_they_claim(stage: Stage) -> None:
    """The second one (a browser asks for A and AAAA together) passed at once."""
    stage.zone[HOST] = "203.0.113.7"
    stage.may_answer.clear()
    stage.comes(1, answer(HOST, "203.0.113.7"), STRANGER)
    await stage.rest()
    stage.comes(2, answer(HOST, "203.0.113.7"), STRANGER)
    await stage.rest()
    assert stage.passed == {}
    stage.may_answer.set()
    await stage.rest()
    assert stage.passed == {1: True, 2: True}
    assert stage.addresses == ("203.0.113.7",)
    assert len(stage.asked) == 2


@pytest.mark.parametrize("silent", [True, False])
async def test_a_claim_that_no_resolver_of_ours_judges_is_dropped(
    stage: Stage, silent: bool
) -> None:
    stage.silent, stage.code = silent, 2
    stage.comes(1, answer(HOST, "203.0.113.7"), STRANGER)
    stage.comes(2, answer("other.example", "203.0.113.7"), STRANGER)
    await stage.rest()
    assert stage.passed == {1: False, 2: True}


async def test_another_resolver_is_believed_once_ours_says_the_same(stage: Stage) -> None:
    stage.comes(1, answer(HOST, "203.0.113.66"), STRANGER)
    await stage.rest()
    assert stage.passed == {1: True}
    assert stage.script.controller.ruled.rules.of(ip_address("203.0.113.66"), 443) is None
    stage.zone["dl." + HOST] = "203.0.113.7"
    stage.comes(2, answer("dl." + HOST, "203.0.113.7"), STRANGER)
    assert 2 not in stage.passed
    await stage.rest()
    assert stage.passed[2]
    assert stage.addresses == ("203.0.113.7",)


async def test_claims_push_nothing_out_and_are_looked_up_seldom(stage: Stage) -> None:
    """19 hellos with the ruled name made the true address forgotten, and other hosts ruled."""
    stage.comes(1, answer(HOST, "203.0.113.1"))
    await stage.rest()
    for number in range(1000):
        stage.held.claimed(HOST, ip_address(f"198.51.{number // 250}.{number % 250}"))
        stage.held.claimed(f"{number}.{HOST}", ip_address("198.51.100.1"))
    await stage.rest()
    assert stage.addresses == ("203.0.113.1",)
    assert len(stage.asked) < 200
    stage.held.claimed("other.example", ip_address("198.51.100.1"))
    assert "other.example" not in stage.asked


async def test_a_true_claim_is_confirmed_by_a_look_up(stage: Stage) -> None:
    stage.zone["img." + HOST] = "203.0.113.5"
    stage.held.claimed("img." + HOST, ip_address("203.0.113.5"))
    await stage.rest()
    assert stage.addresses == ("203.0.113.5",)


def segment(at: int, payload: bytes) -> CapturedPacket:
    key = FlowKey(LOCAL, 4000, OWN, 53)
    return CapturedPacket(key, False, payload, at & 0xFFFFFFFF, None, segment=at & 0xFFFFFFFF)


@given(
    st.lists(st.binary(max_size=40), min_size=1, max_size=5),
    st.lists(st.integers(1, 30), min_size=1),
    st.integers(0, 2**32 - 1),
)
def test_messages_in_tcp_are_found_however_they_are_cut(
    messages: list[bytes], cuts: list[int], first: int
) -> None:
    stream = b"".join(struct.pack("!H", len(each)) + each for each in messages)
    streams, found, at = _Streams(), [], 0
    while at < len(stream):
        size = cuts[at % len(cuts)]
        part = stream[at : at + size]
        assert (
            at == 0 or streams.messages(segment(first + at + 1, stream[at + 1 :] or b"x")) is None
        )
        found += streams.messages(segment(first + at, part)) or []
        assert streams.messages(segment(first + at, part)) == []  # it is sent again
        at += len(part)
    assert found == messages


def test_a_reader_of_names_ends() -> None:
    """Pointers in a circle, to themselves, forwards, and many of them."""
    head = b"\0\1\x81\x80\0\1\0\2\0\0\0\0\1a\0\0\1\0\1"
    for target in (b"\xc0\x1f", b"\xc0\xff", b"\xc0\x0c", b"\1b\xc0\x1f", b"\3"):
        record = b"\xc0\x0c" + struct.pack("!HHIH", 5, 1, 60, len(target)) + target
        reply = dns.parse(head + record + record)
        assert reply is not None
        assert all(len(alias) < 300 for alias in reply.aliases)


def test_hints_of_a_service_are_addresses() -> None:
    """Browsers use the addresses of HTTPS records (RFC 9460)."""
    hints = struct.pack("!HH8s", 4, 8, ip_address("192.0.2.1").packed * 2)
    hints += struct.pack("!HH16s", 6, 16, ip_address("2001:db8::1").packed)
    data = struct.pack("!H", 1) + b"\3svc\7example\0" + struct.pack("!HH2s", 1, 2, b"h2") + hints
    question = dns.question(7, HOST, 65)
    record = b"\xc0\x0c" + struct.pack("!HHIH", 65, 1, 60, len(data)) + data
    reply = dns.parse(question[:2] + b"\x81\x80\0\x01\0\x01\0\0\0\0" + question[12:] + record)
    assert reply is not None
    assert [str(each) for each in reply.addresses] == ["192.0.2.1", "192.0.2.1", "2001:db8::1"]
    assert reply.aliases == ("svc.example",)


def test_the_hosts_file_is_read() -> None:
    found = parse_hosts(
        "127.0.0.1 localhost\n10.0.0.7\tUpdates.Example. dl.updates.example # here\n"
        "fe80::1%eth0 link.example\nnonsense name\n\n10.0.0.8 updates.example\n"
    )
    assert [str(each) for each in found[HOST]] == ["10.0.0.7", "10.0.0.8"]
    assert str(found["link.example"][0]) == "fe80::1"
    assert "name" not in found
