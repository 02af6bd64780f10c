"""Questions that stay unanswered are asked again over another network."""

import asyncio
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.daemon.lookups.failover import LookupFailover, is_local
from cedos.host.monitor.dns import message as dns
from cedos.host.profiler.frame import CapturedPacket
from cedos.model import Address, FlowKey, Network, NetworkKind, NextHop

pytestmark = [pytest.mark.anyio, pytest.mark.jumping]

HERE, RESOLVER = ip_address("192.168.43.2"), ip_address("192.168.43.1")
WLAN0 = Network(
    "wlan0", "wlan0", 3, NetworkKind.WIFI, False, (ip_interface("192.168.43.2/24"),),
    next_hops=(NextHop(4, RESOLVER),), resolvers=(RESOLVER,), up=True,
)  # fmt: skip
LTE0 = replace(
    WLAN0, name="lte0", interface="lte0", index=4, kind=NetworkKind.CELLULAR, metered=True,
    addresses=(ip_interface("192.168.44.2/24"),),
    next_hops=(NextHop(4, ip_address("192.168.44.1")),), resolvers=(),
)  # fmt: skip
KEY = FlowKey(HERE, 5353, RESOLVER, 53, "udp")


def answer_to(question: bytes, code: int = 0) -> bytes:
    return question[:2] + bytes((0x81, 0x80 | code)) + question[4:]


class World:
    def __init__(self) -> None:
        self.networks = [WLAN0, LTE0]
        self.asked: list[tuple[str, Address]] = []
        self.delivered: list[tuple[FlowKey, bytes]] = []
        self.answers: dict[str, bytes | None] = {"lte0": None}
        self.answering = True
        self.numbers: list[bytes] = []
        self.forged: bytes | None = None
        self.liars: set[str] = set()
        self.doubted: list[str] = []
        self.heard: list[tuple[str, Address]] = []
        self.failover = LookupFailover(
            lambda: self.networks,
            self._ask,
            lambda key, payload: self.delivered.append((key, payload)),
            lies=self.liars.__contains__,
            doubt=lambda network: self.doubted.append(network.name),
            heard=lambda network, resolver: self.heard.append((network, resolver)),
            clock=asyncio.get_running_loop().time,
        )

    async def _ask(self, network: Network, resolver: Address, question: bytes) -> bytes | None:
        self.asked.append((network.name, resolver))
        if not self.answering:
            return None
        self.numbers.append(question[:2])
        if self.forged is not None:
            return self.forged
        return question[:2] + (self.answers.get(network.name) or answer_to(question))[2:]

    def ask(self, name: str = "example.org", number: int = 7, interface: str = "wlan0") -> bytes:
        question = dns.question(number, name)
        self.failover.observe(CapturedPacket(KEY, True, question, interface=interface))
        return question

    def answer(self, question: bytes, code: int = 0) -> None:
        answer = answer_to(question, code)
        self.failover.observe(CapturedPacket(KEY, False, answer, interface="wlan0"))


@pytest.fixture
async def world() -> World:
    return World()


async def test_an_answer_in_time_costs_nothing(world: World) -> None:
    world.answer(world.ask())
    await asyncio.sleep(0.6)
    assert (world.asked, world.delivered, world.failover.problems) == ([], [], [])


async def test_who_answers_is_told_but_where_a_network_lies(world: World) -> None:
    question = world.ask()
    assert not world.heard
    world.answer(question)
    assert world.heard == [("wlan0", RESOLVER)]
    world.answer(question)  # nobody has asked that
    world.liars.add("wlan0")
    world.answer(world.ask(number=8))
    assert len(world.heard) == 1


async def test_silence_is_answered_over_another_network(world: World) -> None:
    question = world.ask()
    await asyncio.sleep(0.12)
    assert not world.asked
    await asyncio.sleep(0.6)
    assert world.asked == [("lte0", ip_address("192.168.44.1"))]
    assert world.delivered == [(KEY, answer_to(question))]
    (problem,) = world.failover.problems
    assert problem.startswith("the DNS resolver of wlan0 does not answer")


async def test_what_a_silent_resolver_is_asked_is_asked_elsewhere_at_once(world: World) -> None:
    world.ask()
    await asyncio.sleep(0.6)
    world.ask(number=8)
    await asyncio.sleep(0.12)
    assert len(world.delivered) == 2
    # It speaks again: then it is trusted again.
    late = world.ask(number=9)
    world.answer(late)
    assert world.failover.problems == []
    world.answer(world.ask(number=10))
    await asyncio.sleep(0.6)
    assert len(world.delivered) == 2


async def test_each_question_has_a_number_of_its_own(world: World) -> None:
    """Who saw the program's question in the one network could forge its answer in the other."""
    for number in range(30):
        world.ask(f"{number}.example", number=7)
        await asyncio.sleep(1.0)
        assert len(world.delivered) == number + 1
    assert len(set(world.numbers)) > 20
    assert all(answer[:2] == b"\0\7" for _, answer in world.delivered)
    delivered = len(world.delivered)
    world.forged = answer_to(world.ask("forged.example", number=7))
    await asyncio.sleep(1.5)
    assert len(world.delivered) == delivered


async def test_of_two_answers_the_first_counts(world: World) -> None:
    question = world.ask()
    world.answers["lte0"] = answer_to(question)
    await asyncio.sleep(0.306)
    world.answer(question)
    await asyncio.sleep(0.6)
    assert len(world.delivered) <= 1


@pytest.mark.parametrize(
    "name", ["printer", "nas.local", "router.lan", "1.43.168.192.in-addr.arpa", "a.internal"]
)
async def test_names_of_a_local_network_are_left_alone(world: World, name: str) -> None:
    world.ask(name)
    await asyncio.sleep(0.6)
    assert world.asked == []
    assert is_local(name)


@pytest.mark.parametrize("code", [2, 3, 5])
async def test_only_an_answer_with_the_name_is_handed_over(world: World, code: int) -> None:
    question = dns.question(7, "example.org")
    world.answers["lte0"] = answer_to(question, code)
    world.ask()
    await asyncio.sleep(0.9)
    assert world.asked
    assert (world.delivered, world.failover.problems) == ([], [])


async def test_a_name_that_nobody_has_leaves_nobody_waiting(world: World) -> None:
    """systemd-resolved asked for two minutes. That it cannot be told now is kept for seconds only."""
    question = dns.question(7, "nothere.example")
    world.answers["lte0"] = answer_to(question, 3)
    world.ask("nothere.example")
    await asyncio.sleep(1.5)
    assert world.delivered == [], "its own resolver may be slow"
    await asyncio.sleep(1)
    ((key, payload),) = world.delivered
    reply = dns.parse(payload)
    assert key == KEY
    assert reply is not None
    assert (reply.number, reply.code, reply.name, reply.addresses) == (7, 2, "nothere.example", ())
    assert world.failover.problems == [], "perhaps nobody could answer that"
    # Once it is known to be silent, it takes no longer than an answer may.
    world.answers["lte0"] = None
    world.ask("there.example", number=3)
    await asyncio.sleep(1)
    assert len(world.failover.problems) == 1
    world.delivered.pop()
    world.answers["lte0"] = answer_to(dns.question(8, "nothere.example"), 3)
    world.ask("nothere.example", number=8)
    await asyncio.sleep(1)
    assert len(world.delivered) == 2
    # Its own answer, if it comes, is the right one.
    world.answers["lte0"] = answer_to(dns.question(9, "home.example"), 3)
    asked = world.ask("home.example", number=9)
    world.answer(asked)
    await asyncio.sleep(3)
    assert len(world.delivered) == 2
    assert world.failover.problems == []


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("refused_first", [True, False])
async def test_of_a_name_that_is_there_refusals_are_believed(
    world: World, monkeypatch: pytest.MonkeyPatch, refused_first: bool, apart: bool
) -> None:
    """glibc asks for both kinds of addresses, and waits for both answers; others from two ports."""
    ipv4, ipv6 = dns.question(1, "example.org"), dns.question(2, "example.org")
    ipv6 = ipv6[:-4] + bytes((0, 28, 0, 1))

    async def ask(network: Network, resolver: Address, question: bytes) -> bytes:
        refused = question == ipv6
        await asyncio.sleep(0.12 * (refused is not refused_first))
        return answer_to(question, 5 if refused else 0)

    monkeypatch.setattr(world.failover, "_ask", ask)
    for number, question in enumerate((ipv4, ipv6)):
        key = replace(KEY, local_port=KEY.local_port + number * apart)
        world.failover.observe(CapturedPacket(key, True, question, interface="wlan0"))
    await asyncio.sleep(1.2)
    assert sorted(payload[1] for _, payload in world.delivered) == [1, 2]


async def test_an_answer_to_something_else_is_none(world: World) -> None:
    world.answers["lte0"] = answer_to(dns.question(7, "evil.example"))
    world.ask()
    await asyncio.sleep(0.9)
    assert world.delivered == []


async def test_nobody_else_can_be_asked(world: World) -> None:
    world.liars.add("lte0")
    world.ask()
    await asyncio.sleep(0.6)
    world.liars.clear()
    world.networks = [WLAN0, replace(LTE0, up=False)]
    world.ask(number=8)
    await asyncio.sleep(0.6)
    world.ask(number=9, interface="tun0")
    await asyncio.sleep(0.6)
    assert world.asked == []


async def test_a_flood_of_questions_is_bounded(world: World) -> None:
    world.answering = False
    for number in range(3000):
        world.ask(number=number)
    assert len(world.failover._lookups) <= 256
    await asyncio.sleep(0.6)
    assert len(world.asked) <= 64 + 20
    world.failover.close()


async def test_a_resolver_that_another_one_is_quicker_than_is_silent_until_it_is_in_time(
    world: World,
) -> None:
    """After one lost question all look-ups went over the phone for ever."""
    world.ask()
    await asyncio.sleep(0.6)
    assert len(world.failover.problems) == 1
    question = world.ask(number=8)
    await asyncio.sleep(0.12)
    assert len(world.delivered) == 2, "it is asked elsewhere at once, and that was quicker"
    assert world.doubted == ["wlan0"], "once, and not with each question"
    world.answer(question)
    assert world.failover.problems == []
    world.ask(number=9)
    await asyncio.sleep(0.12)
    assert len(world.delivered) == 2, "and is waited for again"


async def test_whom_one_program_asks_in_vain_is_nobody_elses_matter(world: World) -> None:
    """A question to somebody who is no resolver had all names looked up over the phone."""
    stray = replace(KEY, remote=ip_address("192.0.2.99"))
    question = dns.question(7, "example.org")
    world.failover.observe(CapturedPacket(stray, True, question, interface="wlan0"))
    await asyncio.sleep(0.6)
    assert [key for key, _ in world.delivered] == [stray]
    assert world.failover.problems == []
    world.ask(number=8)
    await asyncio.sleep(0.12)
    assert len(world.delivered) == 1


async def test_refusals_are_believed_of_a_name_only_while_its_resolver_is_silent(
    world: World,
) -> None:
    question = world.ask()
    await asyncio.sleep(0.6)
    assert len(world.delivered) == 1
    world.answer(world.ask(number=8))
    world.answers["lte0"] = answer_to(dns.question(9, "example.org"), 3)
    world.ask(number=9)
    await asyncio.sleep(0.9)
    assert len(world.delivered) == 1, (question, world.delivered)


async def test_many_unknown_names_keep_nobody_else_from_being_answered(world: World) -> None:
    for number in range(70):
        world.answers["lte0"] = answer_to(dns.question(number, "nothere.example"), 3)
        world.ask("nothere.example", number=number)
        await asyncio.sleep(0.006)
    await asyncio.sleep(1.2)
    assert not world.failover._repeating
    world.failover.close()


async def test_a_public_resolver_is_asked_over_the_other_network_too(world: World) -> None:
    """Without systemd-resolved nobody knows whose resolvers those of resolv.conf are."""
    public = ip_address("9.9.9.9")
    world.networks = [replace(WLAN0, resolvers=()), LTE0]
    world.answering = False
    key = replace(KEY, remote=public)
    question = dns.question(7, "example.org")
    world.failover.observe(CapturedPacket(key, True, question, interface="wlan0"))
    await asyncio.sleep(0.9)
    assert world.asked == [("lte0", public), ("lte0", LTE0.gateways[0])]
    assert world.doubted == ["wlan0"]
    # One of the silent network's own is none of the other's.
    world.ask(number=8)
    await asyncio.sleep(0.9)
    assert world.asked[2:] == [("lte0", LTE0.gateways[0])]
    world.failover.close()


@pytest.mark.parametrize(("code", "fails"), [(2, True), (5, True), (3, False)])
async def test_a_resolver_that_fails_for_every_name_is_told_of_and_its_network_pinged_once(
    world: World, code: int, fails: bool
) -> None:
    for number, name in enumerate(("a.example.org", "b.example.org", "c.example.org", "x.test")):
        world.answer(world.ask(name, number), code)
    assert world.failover.problems == []
    for number, name in enumerate(("y.example.net", "z.example.com"), 10):
        world.answer(world.ask(name, number), code)
    fails_text = "the DNS resolver of wlan0 fails. Programs that ask no other one find no names"
    assert world.failover.problems == [fails_text] * fails
    assert world.doubted == ["wlan0"] * fails
    world.answer(world.ask("known.example", 20))
    assert world.failover.problems == []
