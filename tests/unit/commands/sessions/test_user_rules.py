"""The proxy hears of rules while it runs, and looks names up where that tells which rule applies."""

import asyncio
import os
import threading
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
from kit.waiting import until

from cedos.api.messages import NetworkMessage, RuleMessage
from cedos.commands.console import user_rules
from cedos.commands.console.transfers import Endpoints
from cedos.commands.console.user_rules import RuledHosts, RuledNetworks
from cedos.controller.rule import RuleRequest
from cedos.errors import DaemonUnreachableError, NoDaemonError, SessionError
from cedos.host.monitor import resolvers
from cedos.model import NetworkKind
from cedos.session.io.links import Egress
from cedos.session.known_hosts import KnownServer
from cedos.session.protocol.crypto import KeyPair
from cedos.session.sockets.sockets import listen

pytestmark = pytest.mark.jumping

NAMED = RuleRequest(host="updates.example", never=("metered",))
PREFIX = RuleRequest(host="198.51.100.0/24", port=22, only=("wlan0",))
USER, OTHER = 1000, 1001


class Daemon:
    """The daemon's answers; without `known` rules there is no daemon."""

    def __init__(self, *rules):
        self.known, self.busy, self.asked, self.read = None, False, 0, 0
        self.metered, self.addresses, self.barred = {"usb0"}, {}, set()
        if rules:
            self.has(*rules)

    def changes(self):
        self.asked += 1
        if self.busy:
            raise DaemonUnreachableError("no answer for 5 s")
        if self.known is None:
            raise NoDaemonError("no daemon")
        return hash(repr((self.known, self.networks())))

    def rules(self):
        self.changes()
        self.read += 1
        return self.known

    def has(self, *rules):
        self.known = [
            RuleMessage(number=number, rule=rule, network=None, why="")
            for number, rule in enumerate(rules, 1)
        ]

    def networks(self):
        return [
            NetworkMessage(
                name=name,
                interface=interface,
                kind=kind,
                metered=interface in self.metered,
                up=True,
                barred="it is spent" if interface in self.barred else "",
                addresses=self.addresses.get(interface, [f"10.0.{len(interface)}.2/24"]),
            )
            for name, interface, kind in (
                ("wlan0", "wlan0", NetworkKind.WIFI),
                ("phone", "usb0", NetworkKind.CELLULAR),
            )
        ]


class Told:
    """The daemon tells of changes, once each is there."""

    def __init__(self):
        self.other = asyncio.Event()

    async def __call__(self, _socket):
        while True:
            yield
            await self.other.wait()
            self.other.clear()


class Resolver:
    """Answers once it may."""

    def __init__(self):
        self.asked = []
        self.answers = {"inside.example": ["198.51.100.7"], "outside.example": ["203.0.113.7"]}
        self.may = asyncio.Event()
        self.may.set()

    async def __call__(self, host, _port, _user):
        self.asked.append(host)
        await self.may.wait()
        return self.answers.get(host, [])


@pytest.fixture
def daemon(monkeypatch):
    made = Daemon()
    monkeypatch.setattr(user_rules, "ControlClient", lambda _socket: made)
    return made


@pytest.fixture
async def resolver():
    return Resolver()


@pytest.fixture
async def ruled(daemon):
    made = []

    async def make(*rules, **options):
        if rules:
            daemon.has(*rules)
        told = RuledNetworks(Path("socket"), **options)
        made.append((told, RuledHosts(told)))
        await told.follow()
        return made[-1][1]

    yield make
    for told, hosts in made:
        await hosts.close()
        await told.close()


async def covers(ruled, host, covered):
    async with asyncio.timeout(10):
        while await ruled.find(host, 443, USER, Resolver()) is not covered:
            await asyncio.sleep(0.1)


async def test_rules_that_come_and_go(daemon, ruled, resolver):
    told = []

    made = await ruled(changed=lambda: told.append(True))
    assert not await made.find("eu.updates.example", 443, USER, resolver), "there is no daemon"
    assert not told
    daemon.has(NAMED, PREFIX)
    await covers(made, "eu.updates.example", True)
    assert await made.find("198.51.100.7", 22, USER, resolver)
    assert not await made.find("198.51.100.7", 443, USER, resolver)
    assert not await made.find("other.example", 443, USER, resolver)
    daemon.known = None
    await covers(made, "eu.updates.example", False)
    await until(lambda: len(told) == 2)  # once when they came, once when they went


async def test_the_daemon_is_asked_only_once_it_tells(daemon, ruled, resolver, monkeypatch):
    """Ask no more: a question each two seconds woke an idle laptop, and came late."""
    monkeypatch.setattr(user_rules, "changes", tells := Told())
    changed, loop = [], asyncio.get_running_loop()
    made = await ruled(PREFIX, changed=lambda: changed.append(True))
    await asyncio.sleep(1.0)
    asked = daemon.asked
    await asyncio.sleep(600.0)
    assert daemon.asked == asked
    for change in (
        lambda: daemon.has(NAMED),
        lambda: daemon.metered.add("wlan0"),
        lambda: daemon.barred.add("usb0"),
    ):
        changed.clear()
        change()
        tells.other.set()
        began_s = loop.time()
        await until(lambda: changed)
        assert loop.time() - began_s < 0.1
        await asyncio.sleep(1.0)
    assert await made.find("updates.example", 443, USER, resolver)


async def test_the_last_rules_hold_while_the_daemon_is_busy(daemon, ruled, resolver):
    """Keep them: a flood of routes that a neighbour announces stops the daemon for over a second."""
    made = await ruled(NAMED)
    daemon.busy, before = True, daemon.asked
    await until(lambda: daemon.asked > before + 1)
    assert await made.find("updates.example", 443, USER, resolver)
    daemon.busy = False
    daemon.has(PREFIX)
    await covers(made, "updates.example", False)


async def test_the_rules_of_this_instant_count(daemon, ruled, resolver):
    """Ask for them: a program that looks a name up connects before rules are read for the next time."""
    made = await ruled(NAMED)
    for number in range(5, 9):
        place = f"203.0.113.{number}"
        assert not await made.find(place, 443, USER, resolver)
        daemon.has(msgspec.structs.replace(NAMED, addresses=(place,)))
        assert await made.find(place, 443, USER, resolver)
        assert await made.find(f"::ffff:{place}", 443, USER, resolver)


async def test_many_connections_ask_once(daemon, ruled, resolver):
    made = await ruled(NAMED)
    asked, read = daemon.asked, daemon.read
    found = [made.find(f"203.0.113.{number}", 443, USER, resolver) for number in range(100)]
    assert not any(await asyncio.gather(*found))
    assert daemon.asked <= asked + 3
    assert daemon.read == read, "they are as they were"


async def test_a_program_that_connects_without_end_leaves_the_daemon_time(daemon, ruled, resolver):
    made = await ruled(NAMED)
    loop = asyncio.get_running_loop()
    asked, began_s = daemon.asked, loop.time()
    for number in range(100):
        await made.find(f"203.0.113.{number}", 443, USER, resolver)
    assert daemon.asked >= asked + 100
    assert loop.time() - began_s >= 99 * user_rules._PAUSE_S


@pytest.mark.parametrize("rules", [(), (PREFIX,), (msgspec.structs.replace(NAMED, port=22),)])
async def test_no_connection_asks_where_no_rule_for_a_name_is_about_it(
    daemon, ruled, resolver, rules
):
    daemon.has()
    made = await ruled(*rules)
    asked = daemon.asked
    assert not await made.find("203.0.113.5", 443, USER, resolver)
    assert daemon.asked == asked


async def test_a_daemon_that_does_not_answer_keeps_no_connection(daemon, ruled, resolver):
    made = await ruled(msgspec.structs.replace(NAMED, addresses=("203.0.113.5",)))
    may = threading.Event()
    daemon.changes = lambda: may.wait(30)
    async with asyncio.timeout(2 * user_rules._PATIENCE_S):
        assert not await made.find("203.0.113.6", 443, USER, resolver)
        assert await made.find("203.0.113.5", 443, USER, resolver)
    may.set()


async def test_a_name_is_looked_up_where_a_name_has_a_rule(daemon, ruled):
    """The name may be an alias of the ruled one, which only the daemon hears."""
    made = await ruled(NAMED)

    async def look_up(_host, _port, _user):
        daemon.has(msgspec.structs.replace(NAMED, addresses=("203.0.113.5",)))
        return ["203.0.113.5"]

    assert await made.find("WWW.shop.example.", 443, USER, look_up)
    assert await made.find("www_1.shop.example", 443, USER, look_up)


async def test_the_rules_are_indexed_once(ruled, resolver, monkeypatch):
    """Index them once: else a program that sends to ever new hosts has 3 ms spent on each."""
    made = await ruled(msgspec.structs.replace(NAMED, addresses=("203.0.113.9",)))
    monkeypatch.setattr(user_rules, "UserRules", None)
    assert await made.find("203.0.113.9", 443, USER, resolver)
    assert not await made.find("203.0.113.8", 443, USER, resolver)


async def test_a_host_that_is_no_name_is_under_no_rule(ruled, resolver):
    """Take labels that DNS does not know, as SOCKS does: no datagram to them is an error."""
    made = await ruled(NAMED)
    assert not await made.find("a" * 64 + ".updates.example", 443, USER, resolver)


async def test_a_name_is_looked_up_where_a_prefix_has_a_rule(ruled, resolver):
    made = await ruled(PREFIX)
    for _ in range(2):
        assert await made.find("Inside.example.", 22, USER, resolver)
        assert not await made.find("outside.example", 22, USER, resolver)
        assert not await made.find("nowhere.example", 22, USER, resolver)
    assert resolver.asked == ["inside.example", "outside.example", "nowhere.example"], "once each"
    assert not await made.find("another.example", 443, USER, resolver)
    assert await made.find("198.51.100.9", 22, USER, resolver)
    assert len(resolver.asked) == 3, "no rule is about that port, and an address needs no look-up"


async def test_an_address_is_meant_by_the_name_that_a_program_was_told_it_for(ruled, resolver):
    """Redirected programs connect to addresses: a network of caches has others each time."""
    made = await ruled(NAMED, PREFIX)
    assert made.names("EU.updates.example.")
    assert not made.names("notupdates.example")
    assert not made.names("198.51.100.1")
    assert not await made.find("203.0.113.5", 443, USER, resolver)
    made.learn("eu.updates.example", [ip_address("203.0.113.5"), ip_address("2001:db8::5")], USER)
    assert await made.find("203.0.113.5", 443, USER, resolver)
    assert await made.find("2001:db8::5", 443, USER, resolver)
    assert not await made.find("203.0.113.6", 443, USER, resolver)
    for number in range(1000):
        made.learn("updates.example", [ip_address(number)], OTHER)
    assert len(made._meant) == user_rules._MOST_NAMES
    assert await made.find("203.0.113.5", 443, USER, resolver), "another user has most"
    assert await made.find(str(ip_address(999)), 443, USER, resolver)


async def test_a_users_names_push_out_no_other_users(ruled, resolver):
    """Ask for 600 names: another user's connection to a name went without its rule until it was found."""
    made = await ruled(PREFIX)
    assert await made.find("inside.example", 22, USER, resolver)
    for number in range(600):
        assert not await made.find(f"n{number}.example", 22, OTHER, resolver)
    assert await made.find("inside.example", 22, USER, resolver)
    assert not await made.find("n0.example", 22, OTHER, resolver)


async def test_a_look_up_of_one_user_that_fails_hides_no_rule_from_another(ruled, resolver):
    """One whose look-ups were all taken had the name count as unknown for all, for 10 s."""
    made = await ruled(PREFIX)
    resolver.may.clear()
    assert not await made.find("inside.example", 22, OTHER, resolver)
    resolver.answers, known = {}, resolver.answers
    resolver.may.set()
    await asyncio.sleep(0.01)
    resolver.answers = known
    assert await made.find("inside.example", 22, USER, resolver)
    assert not await made.find("inside.example", 22, OTHER, resolver), (
        "that user's own look-up failed"
    )


async def test_what_was_known_counts_while_no_resolver_answers(ruled, resolver, monkeypatch):
    monkeypatch.setattr(user_rules, "_NAME_S", 0.0)
    made = await ruled(PREFIX)
    assert await made.find("inside.example", 22, USER, resolver)
    resolver.answers = {}
    assert await made.find("inside.example", 22, USER, resolver)


async def test_what_two_users_were_told_lasts_as_long_as_one_of_them_keeps_it(ruled, resolver):
    made = await ruled(NAMED)
    for user in (OTHER, USER):
        made.learn("updates.example", [ip_address("203.0.113.5")], user)
    for number in range(600):
        made.learn("updates.example", [ip_address(number)], OTHER)
    assert await made.find("203.0.113.5", 443, USER, resolver)


async def test_another_name_of_a_ruled_one_is_under_its_rule(ruled, resolver, monkeypatch):
    """Learn it: apt asks for a service's target; a network denies a name, and has its domain searched."""
    made = await ruled(NAMED)
    made.learn("_https._tcp.updates.example", ["cdn.example"], USER)
    assert made.names("cdn.example")
    made.learn("cdn.example", [ip_address("203.0.113.5")], USER)
    assert await made.find("203.0.113.5", 443, USER, resolver)
    monkeypatch.setattr(resolvers, "search_domains", lambda: frozenset({"lan.example"}))
    assert made.names("updates.example.lan.example")
    assert await made.find("updates.example.lan.example", 443, USER, resolver)
    assert not made.names("other.lan.example")


async def test_who_points_to_a_ruled_name_takes_it_over_for_no_program(ruled, resolver):
    """A stranger's alias for the ruled name made it the stranger's: it went through the gateway."""
    made = await ruled(NAMED)
    made.learn("dl.updates.example", ["cdn.example"], OTHER)
    made.learn("evil.test", ["updates.example", "cdn.example", ip_address("203.0.113.5")], USER)
    assert made.names("updates.example")
    assert made.names("cdn.example")
    assert not await made.find("203.0.113.5", 443, USER, resolver)


async def test_a_resolver_that_does_not_answer_keeps_nobody(ruled, resolver):
    """A late answer counts for the next connection; simultaneous look-ups have a limit."""
    made = await ruled(PREFIX)
    resolver.may.clear()
    assert not await made.find("inside.example", 22, USER, resolver)
    assert not await made.find("inside.example", 22, USER, resolver)
    asking = [
        asyncio.ensure_future(made.find(f"n{number}.example", 22, USER, resolver))
        for number in range(100)
    ]
    await asyncio.sleep(0.01)
    assert len(resolver.asked) == user_rules._MOST_LOOKUPS
    # Another user's names are looked up meanwhile: their connections miss no rule.
    asking.append(asyncio.ensure_future(made.find("inside.example", 22, OTHER, resolver)))
    await asyncio.sleep(0.01)
    assert len(resolver.asked) == user_rules._MOST_LOOKUPS + 1
    resolver.may.set()
    assert await made.find("inside.example", 22, USER, resolver)
    await asyncio.gather(*asking)


async def test_what_is_remembered_has_a_limit(ruled, resolver, monkeypatch):
    monkeypatch.setattr(user_rules, "_MOST_NAMES", 8)
    made = await ruled(PREFIX)
    for number in range(20):
        await made.find(f"n{number}.example", 22, USER, resolver)
    assert len(made._names) == 8


HOME, PLACE = ("home.example", 7000), "192.0.2.7"


def of(name, *, kind=NetworkKind.WIFI, metered=False, **more):
    addresses = frozenset(more.pop("addresses", {f"10.0.{len(name)}.2"}))
    return Egress(name, 1, addresses, kind, metered, **more)


class Networks:
    """The kernel's networks at this instant."""

    def __init__(self):
        self.now = {}
        self.has(of("wlan0"), of("usb0", kind=NetworkKind.CELLULAR))
        self.has(of("usb1", kind=NetworkKind.CELLULAR, metered=True))
        self.has(of("eth00", kind=NetworkKind.ETHERNET))

    def has(self, *egresses):
        self.now |= {each.interface: each for each in egresses}

    def __call__(self, _address):
        return self.now.values()


@pytest.fixture
async def networks(daemon):
    """Return the networks under rules, with what the kernel tells and how often they changed."""
    made, told = [], []
    kernel = Networks()

    async def follow(*rules):
        daemon.has(*rules)
        made.append(RuledNetworks(Path("socket"), lambda: told.append(True), kernel))
        await made[-1].follow()
        return made[-1], kernel, told

    yield follow
    for each in made:
        await each.close()


def allowed(ruled, interface, server=HOME, address=PLACE):
    return not ruled.refusal(interface, server, address)


@pytest.mark.parametrize(
    ("about", "server"),
    [
        ("home.example", HOME),
        ("home.example", ("Home.Example.", 7000)),
        ("192.0.2.0/24", HOME),
        ("192.0.2.0/24", ("my_gateway.example", 7000)),
        ("192.0.2.7", (PLACE, 7000)),
    ],
)
async def test_a_rule_leaves_some_networks(networks, about, server):
    """Judge by the address: a resolver that denies the name, or tells another address, frees nothing."""
    ruled, *_ = await networks(RuleRequest(host=about, never=("metered",)))
    assert allowed(ruled, "wlan0", server)
    assert ruled.refusal("usb0", server, PLACE) == f"your rule 1 for {about}: never metered"
    assert not allowed(ruled, "usb0", server, f"::ffff:{PLACE}")
    # What the daemon does not know is taken for what the kernel tells of it.
    assert allowed(ruled, "eth00", server)
    assert not allowed(ruled, "usb1", server)
    assert not allowed(ruled, "gone0", server)


async def test_the_address_of_another_ruled_name_is_under_its_rule(networks):
    rule = RuleRequest(host="other.example", never=("metered",), addresses=(PLACE,))
    ruled, *_ = await networks(rule)
    assert not allowed(ruled, "usb0")


async def test_each_rule_whose_name_leads_to_an_address_holds(networks):
    """The kernel refused what sessions did: they took the rule of a stranger's name for the only one."""
    strangers = RuleRequest(host="a.cdn.stranger.example", only=("phone",), addresses=(PLACE,))
    own = RuleRequest(host="home.example", never=("metered",))
    for theirs in (msgspec.structs.replace(own, host="bank.example", addresses=(PLACE,)), own):
        ruled, *_ = await networks(theirs, strangers)
        assert not allowed(ruled, "usb0")
        assert not allowed(ruled, "wlan0")
    ruled, *_ = await networks(own, RuleRequest(host=PLACE, only=("phone",)))
    assert allowed(ruled, "usb0"), "the user's word on an address counts before that on a name"


@pytest.mark.parametrize(
    "rule",
    [
        RuleRequest(host="other.example", never=("metered",)),
        RuleRequest(host="home.example", port=22, never=("metered",)),
        RuleRequest(host="192.0.2.8", never=("metered",)),
    ],
)
async def test_other_rules_leave_all(networks, rule):
    ruled, *_ = await networks(rule)
    assert allowed(ruled, "usb0")
    assert allowed(ruled, "unknown0")


async def test_a_network_that_becomes_metered_is_left(networks, daemon):
    """A session that lived went on over it, as it knew networks by the names of their interfaces."""
    ruled, _, told = await networks(RuleRequest(host="home.example", never=("metered",)))
    assert allowed(ruled, "wlan0")
    daemon.metered.add("wlan0")
    await until(lambda: told[1:])
    assert not allowed(ruled, "wlan0")
    daemon.metered.clear()
    await until(lambda: told[2:])
    assert allowed(ruled, "wlan0")


@pytest.mark.parametrize("kept", [True, False])
async def test_an_interface_in_another_network_waits_for_the_daemons_word(networks, daemon, kept):
    ruled, kernel, told = await networks(RuleRequest(host="home.example", never=("metered",)))
    assert allowed(ruled, "wlan0")
    if kept:  # the other network gives the same address
        kernel.has(of("wlan0", came_s=asyncio.get_running_loop().time()))
    else:
        kernel.has(of("wlan0", addresses={"172.20.10.2", "fe80::1"}))
    assert not allowed(ruled, "wlan0"), "that the old one was free tells nothing of it"
    daemon.addresses["wlan0"] = ["172.20.10.2/28", "10.0.5.2/24"]
    await until(lambda: told[1:])
    assert allowed(ruled, "wlan0")


async def test_a_helper_on_an_allowed_interface_is_a_network_of_its_own(networks):
    """Paths by way of a helper were taken for the interface's own network, which is free."""
    ruled, kernel, _ = await networks(RuleRequest(host="home.example", never=("metered",)))
    source = "192.0.2.99"
    helper = of("wlan0", kind=NetworkKind.HELPER, metered=True, source=source, addresses={source})
    kernel.now["by a helper"] = helper
    assert allowed(ruled, "wlan0")
    assert not allowed(ruled, "wlan0/192.0.2.99")


async def test_a_rule_that_comes_while_sessions_live_counts(networks, daemon):
    ruled, _, told = await networks()
    assert allowed(ruled, "usb0")
    daemon.has(RuleRequest(host="home.example", never=("metered",)))
    await until(lambda: told[1:])
    assert not allowed(ruled, "usb0")


async def test_a_session_leaves_what_a_new_rule_forbids(daemon):
    """The file's session went on over the forbidden network, and over those that came up later."""
    daemon.has()
    me, its = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    listener = await listen(("127.0.0.1", 0), key=its)
    server = KnownServer("127.0.0.1", listener.address[1], its.public)
    ends = Endpoints(me, server, None, None, (), 10.0, 60.0)
    connection = await ends.dialling()()
    assert connection.paths()
    daemon.has(RuleRequest(host="127.0.0.1", never=("lo",)))
    await until(lambda: not connection.paths())
    assert not connection.has_network
    daemon.has()
    await until(connection.paths)
    connection.abort()
    await connection.wait_drained()
    await listener.close()


async def test_an_address_that_a_rule_has_by_the_look_up_itself_is_under_it(daemon, monkeypatch):
    """The rules were read before the look-up: 2.6 MB went over the forbidden network."""
    daemon.has()
    me, its = KeyPair(os.urandom(32)), KeyPair(os.urandom(32))
    listener = await listen(("127.0.0.1", 0), key=its)

    async def look_up(_host, port, **_how):
        daemon.has(RuleRequest(host="cdn.example", never=("lo",), addresses=("127.0.0.1",)))
        return [(0, 0, 0, "", ("127.0.0.1", port))]

    await user_rules.of_sessions().follow()
    await asyncio.sleep(0.3)  # what follows from the beginning is over
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    server = KnownServer("www.shop.example", listener.address[1], its.public)
    ends = Endpoints(me, server, None, None, (), 1.0, 60.0)
    with pytest.raises(SessionError, match="your rule 1 for cdn"):
        await ends.dialling()()
    await listener.close()


async def test_who_begins_while_the_daemon_is_too_busy_is_refused(daemon):
    """Such sessions went over forbidden networks until the daemon answered, cedos-get's for good."""
    daemon.has(RuleRequest(host="home.example", never=("metered",)))
    daemon.busy = True
    ruled = RuledNetworks(Path("socket"))
    with pytest.raises(DaemonUnreachableError):
        await ruled.follow()
    await ruled.close()


async def test_who_gives_up_ends_it_for_no_other_session(networks):
    """The task that all wait for stayed cancelled: every later session was, and no rule was followed."""
    ruled, *_ = await networks(RuleRequest(host="home.example", never=("metered",)))
    waiting = asyncio.create_task(ruled.follow())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    await ruled.follow()


async def test_without_a_daemon_there_are_no_rules(networks, daemon):
    rule = RuleRequest(host="home.example", never=("metered",))
    ruled, *_ = await networks(rule)
    assert not allowed(ruled, "usb0")
    daemon.known = None
    await ruled.fresh()
    assert allowed(ruled, "usb0")
    daemon.has(rule)
    await ruled.fresh()
    assert not allowed(ruled, "usb0")
    daemon.busy = True
    await ruled.fresh()
    assert not allowed(ruled, "usb0"), "one too busy to answer has taken no rule back"
    daemon.busy = False
    daemon.has()
    await ruled.fresh()
    assert allowed(ruled, "usb0"), "the rule was taken back"
