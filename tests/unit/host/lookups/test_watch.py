"""The messages of look-ups: the controller is told of names and numbers, the program gets the bytes."""

import time
from ipaddress import ip_address

import pytest
from kit.waiting import counting_turns, until
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from cedos.controller.commands import AnswerLookup, AskResolver
from cedos.controller.events import LookupAnswered, LookupAsked, ResolverReplied
from cedos.host.lookups import watch
from cedos.host.lookups.watch import LookupWatch, datagram, is_local
from cedos.host.monitor import dns_message as dns
from cedos.host.profiler.frame import CapturedPacket
from cedos.model import FlowKey, Network, NetworkKind

RESOLVER = ip_address("192.168.43.1")
KEY = FlowKey(ip_address("192.168.43.2"), 5353, RESOLVER, 53, "udp")
LTE0 = Network("lte0", "lte0", 4, NetworkKind.CELLULAR, True, ())


def answer_to(question, code=0):
    return question[:2] + bytes((0x81, 0x80 | code)) + question[4:]


class World:
    """A watch; the other resolver echoes the question, or says what `forged` says."""

    def __init__(self, monkeypatch):
        self.posted = []
        self.delivered = []
        self.numbers = set()
        self.forged = None
        self.code = 0
        self.watch = LookupWatch(
            self.posted.append, {"lte0": LTE0}.get, lambda *given: self.delivered.append(given)
        )
        monkeypatch.setattr(watch, "ask", self._ask)

    async def _ask(self, network, resolver, question):
        self.numbers.add(question[:2])
        return self.forged or answer_to(question, self.code)

    def question(self, name="example.org"):
        question = dns.question(7, name)
        self.watch.observe(CapturedPacket(KEY, True, question, interface="wlan0"))
        return question

    async def ask(self, attempt=1):
        await self.watch._ask(AskResolver(KEY, 7, attempt, "lte0", RESOLVER))
        return self.posted[-1]


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


def test_a_question_is_taken_before_its_answer_that_comes_meanwhile(world):
    """Answered between two reads, it was not known as asked for: a later rule missed its address."""
    question = dns.question(7, "example.org")
    kernel = {True: [], False: []}  # what waits in the queues of questions and of answers

    class Queue:
        def __init__(self, outgoing):
            self.outgoing = outgoing

        def read(self, _most):
            taken, kernel[self.outgoing] = kernel[self.outgoing], []
            if not kernel[True]:  # a program asks, and is answered, at this instant
                kernel[True].append(CapturedPacket(KEY, True, question, interface="wlan0"))
                kernel[False].append(
                    CapturedPacket(KEY, False, answer_to(question), interface="wlan0")
                )
            return taken

    world.watch._captures = [(Queue(True), 1), (Queue(False), 1)]
    for _ in range(3):
        world.watch.read()
    assert isinstance(world.posted[0], LookupAsked)


@pytest.mark.parametrize(("code", "failed"), [(0, False), (2, True), (3, False), (5, True)])
def test_questions_and_answers_are_events(world, code, failed):
    answer = answer_to(world.question(), code)
    world.watch.observe(CapturedPacket(KEY, False, answer, interface="wlan0"))
    asked = LookupAsked(KEY, 7, "example.org", "wlan0", public=False)
    assert world.posted == [asked, LookupAnswered(KEY, 7, failed)]


@pytest.mark.parametrize(
    "name", ["printer", "nas.local", "router.lan", "1.43.168.192.in-addr.arpa", "a.internal"]
)
def test_names_of_a_local_network_are_left_alone(world, name):
    world.question(name)
    assert world.posted == []
    assert is_local(name)


@pytest.mark.parametrize(("code", "refused"), [(0, False), (2, True), (3, True), (5, True)])
async def test_an_answer_is_kept_until_the_controller_wants_it_given(world, code, refused):
    question, world.code = world.question(), code
    assert await world.ask() == ResolverReplied(KEY, 7, 1, refused)
    assert world.delivered == []
    world.watch.answer(AnswerLookup(KEY, 7, 1))
    assert world.delivered == [(KEY, answer_to(question, code))]


def test_a_failure_is_given_where_no_resolver_has_the_name(world):
    world.question("nothere.example")
    world.watch.answer(AnswerLookup(KEY, 7, None))
    reply = dns.parse(world.delivered[0][1])
    assert (reply.number, reply.code, reply.name, reply.addresses) == (7, 2, "nothere.example", ())


async def test_each_question_has_a_number_of_its_own(world):
    """A host that saw the program's question in one network could forge its answer in the other."""
    question = world.question()
    for attempt in range(30):
        await world.ask(attempt)
    assert len(world.numbers) > 20
    world.forged = answer_to(question)
    assert await world.ask() == ResolverReplied(KEY, 7, 1, None)


async def test_an_answer_to_another_question_is_none(world):
    world.question()

    async def other(network, resolver, question):
        return answer_to(question[:2] + dns.question(7, "evil.example")[2:])

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watch, "ask", other)
        assert await world.ask() == ResolverReplied(KEY, 7, 1, None)


def test_what_is_kept_is_bounded(world):
    for number in range(3000):
        question = dns.question(number, "example.org")
        world.watch.observe(CapturedPacket(KEY, True, question, interface="wlan0"))
    assert len(world.watch._questions) == 256


ENDS = {4: ("192.168.43.2", "192.168.43.1"), 6: ("2001:db8::2", "2001:db8::1")}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("size", [0, 11, 512, 1231])
def test_it_is_a_right_one(version, size):
    local, remote = map(ip_address, ENDS[version])
    payload = bytes(number % 251 for number in range(size))
    packet = datagram(FlowKey(local, 40_000, remote, 53, "udp"), payload)
    read = (IP if version == 4 else IPv6)(packet)
    assert (read.src, read.dst) == (str(remote), str(local))
    assert (read[UDP].sport, read[UDP].dport, read[UDP].len) == (53, 40_000, 8 + size)
    assert bytes(read[UDP].payload) == payload
    told = read[UDP].chksum
    del read[UDP].chksum
    assert type(read)(bytes(read))[UDP].chksum == told


async def test_a_flood_of_look_ups_is_read_in_many_turns(world):
    """Read it at once: 1,024 questions and 64 answers kept the daemon from all else meanwhile."""
    kernel = {True: 200, False: 50}
    taken = []

    class Queue:
        def __init__(self, outgoing):
            self.outgoing = outgoing

        def read(self, most):
            count = min(most, kernel[self.outgoing])
            kernel[self.outgoing] -= count
            return [CapturedPacket(KEY, self.outgoing, b"", interface="wlan0")] * count

    def captured(packet):
        time.sleep(0.001)
        taken.append(packet.outgoing)

    world.watch._captured = captured
    world.watch._captures = [(Queue(True), 1024), (Queue(False), 64)]
    began_s = time.monotonic()
    assert not world.watch.read(), "some wait still"
    assert time.monotonic() - began_s < 0.05
    async with counting_turns() as turns:
        await until(lambda: len(taken) == 250, every_s=0.0)
        assert turns() >= 20
    assert taken == [True] * 200 + [False] * 50, "questions first"
    assert world.watch.read()
