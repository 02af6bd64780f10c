"""A user's rules: which applies, where it leads, and that nothing else leads there."""

import struct
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.controller import KEY, LTE, ONLY_LTE, SERVER, TOKEN, WLAN, Script, led, of_kind, size_of

from cedos.controller import commands as give
from cedos.controller import events as on
from cedos.controller.decisions.user_rules import MOST, UserRules
from cedos.controller.outbox import Outbox
from cedos.controller.rule import MOST_ADDRESSES, RuleRequest
from cedos.errors import ConfigError
from cedos.host.monitor.dns_message import parse, question
from cedos.model import Direction, NetworkKind


def rules_of(*rules):
    """These rules, with the numbers 1, 2, ..."""
    found = UserRules(Outbox())
    for rule in rules:
        found.set(found.number_for(rule), rule)
    return found


def told(name, *addresses, aliases=()):
    return on.DnsReply(1, 0, False, name, 1, tuple(map(ip_address, addresses)), aliases)


def test_a_rule_covers_what_resolvers_say_of_its_name():
    rules = rules_of(RuleRequest(host="updates.example", never=("lte0",)))
    assert not rules.on_answer(told("updates.example.org", "192.0.2.1"))
    assert not rules.on_answer(told("otherupdates.example", "192.0.2.1"))
    assert rules.on_answer(told("eu.updates.example", "192.0.2.2", "2001:db8::2"))
    assert rules.of(ip_address("192.0.2.2"), 443) == rules.of(ip_address("2001:db8::2"), 80) == 1
    assert rules.of(ip_address("192.0.2.1"), 443) is None
    for number in range(MOST_ADDRESSES + 64):
        rules.on_answer(told("updates.example", f"198.51.{number // 256}.{number % 256}"))
        rules.on_answer(told("eu.updates.example", "192.0.2.2"))  # what is told again stays
    assert len(rules.rules[1].addresses) == MOST_ADDRESSES
    assert rules.of(ip_address("192.0.2.2"), 443) == 1
    assert rules.of(ip_address("198.51.1.63"), 443) == 1


def test_what_programs_follow_is_another_object_after_each_change():
    script = Script()
    controller, seen = script.controller, []

    def changed():
        seen.append(controller.followed)
        return [one is not other for one, other in zip(*seen[-2:], strict=True)]

    seen.append(controller.followed)
    script.tell(on.RuleSet(1, RuleRequest(host="updates.example", never=("lte0",))))
    assert changed() == [False, False, False, True]
    script.tell(on.AnswersRead(None, (told("updates.example", "203.0.113.5"),)))
    assert changed() == [False, False, False, True]
    script.tell(on.AnswersRead(None, (told("updates.example", "203.0.113.5"),)))
    script.decide(at_s=20.0)
    assert changed() == [False, False, False, False]
    script.networks(WLAN)
    assert changed() == [True, False, False, False], "there are no helpers, as before"
    controller.decider.bar({"lte0": "it is spent"})
    assert changed() == [False, False, True, False]
    script.tell(on.RuleSet(1, None))
    assert changed() == [False, False, False, True]


def test_an_answer_has_no_rule_read_again(monkeypatch):
    """With 64 rules an answer about one of them took 19 ms: each rule's prefix was read 65 times."""
    rules = rules_of(*(RuleRequest(host=f"{n}.example", never=("lte0",)) for n in range(MOST)))
    read = []
    monkeypatch.setattr("cedos.controller.rule.ip_network", lambda *given, **_: read.append(given))
    assert rules.on_answer(on.DnsReply(1, 0, False, "a.1.example", 1, (ip_address("203.0.113.7"),)))
    assert not rules.on_answer(
        on.DnsReply(1, 0, False, "other.test", 1, (ip_address("203.0.113.8"),))
    )
    assert not read


def test_another_name_with_the_same_alias_takes_nothing_out_of_a_rule():
    """A page with a name that leads to the ruled host's content network switched the rule off."""
    rules = rules_of(RuleRequest(host="updates.example", never=("lte0",)))
    rules.on_answer(told("dl.updates.example", aliases=("edge.cdn.example",)))
    for number in range(5000):
        rules.on_answer(
            told(f"{number}.evil.example", aliases=("edge.cdn.example", "x.cdn.example"))
        )
    reply = told("edge.cdn.example", "192.0.2.3", aliases=("y.cdn.example",))
    assert rules.rules_about(reply) == {1}
    assert rules.on_answer(reply)
    assert rules.on_answer(told("y.cdn.example", "192.0.2.4"))
    assert [rules.of(ip_address(f"192.0.2.{n}"), 1) for n in (3, 4)] == [1, 1]
    # What leads to a ruled name is none of its aliases.
    rules.on_answer(told("mine.example", aliases=("dl.updates.example",)))
    assert not rules.on_answer(told("mine.example", "192.0.2.9"))
    rules.remove(1)
    assert not rules.rules_about(reply)


def name_of(name):
    return b"".join(bytes((len(part),)) + part.encode() for part in name.split(".")) + b"\0"


def record(owner, kind, data):
    return name_of(owner) + struct.pack("!HHIH", kind, 1, 60, len(data)) + data


def https(owner, target, *hints):
    octets = b"".join(ip_address(each).packed for each in hints)
    data = b"\0\1" + name_of(target) + struct.pack("!HH", 4, len(octets)) + octets
    return record(owner, 65, data)


def srv(owner, target):
    return record(owner, 33, struct.pack("!HHH", 1, 1, 443) + name_of(target))


def cname(owner, target):
    return record(owner, 5, name_of(target))


def a(owner, address):
    return record(owner, 1, ip_address(address).packed)


def answer(name, kind, *records):
    asked = question(7, name, kind)
    head = struct.pack("!HHHHH", 0x8180, 1, len(records), 0, 0)
    return parse(asked[:2] + head + asked[12:] + b"".join(records))


def leads(rules, name):
    return 1 in rules.rules_about(told(name))


def under(rules):
    return rules.rules[1].addresses


def test_a_strangers_service_puts_nothing_under_a_rule_and_nothing_out():
    """One record of their zone switched the rule off: its 64 hints counted as the ruled name's own."""
    host = "updates.example"
    rules = rules_of(RuleRequest(host=host, never=("lte0",)))
    rules.on_answer(answer(host, 1, a(host, "192.0.2.1")))
    for high in range(6):
        hints = [f"198.18.{high}.{low}" for low in range(64)]
        rules.on_answer(answer("evil.test", 65, https("evil.test", host, *hints)))
        chain = (cname("evil.test", "x.test"), https("x.test", host, *hints))
        rules.on_answer(answer("evil.test", 65, *chain))
    everything = (a("evil.test", "198.18.0.1"), https("evil.test", host), srv("evil.test", host))
    rules.on_answer(answer("evil.test", 255, *everything))
    others = [srv("_s._tcp.evil.test", each) for each in (host, "bank.example")]
    rules.on_answer(answer("_s._tcp.evil.test", 33, *others))
    rules.on_answer(answer("bank.example", 1, a("bank.example", "198.18.0.2")))
    assert under(rules) == ("192.0.2.1",)
    # Its own services lead where its owner says; who points to it by an alias gets there, too.
    rules.on_answer(answer(host, 65, https(host, "cdn.test", "192.0.2.2")))
    rules.on_answer(answer("cdn.test", 1, a("cdn.test", "192.0.2.3")))
    chain = cname("mine.test", host), https(host, "cdn.test", "192.0.2.4")
    assert rules.on_answer(answer("mine.test", 65, *chain))
    chain = (
        cname("edge.test", "more.test"),
        cname("cdn.test", "edge.test"),
        a("more.test", "192.0.2.5"),
    )
    rules.on_answer(answer("mine.test", 1, cname("mine.test", "cdn.test"), *chain))
    rules.on_answer(answer("more.test", 1, a("more.test", "192.0.2.6")))
    assert sorted(under(rules)) == [f"192.0.2.{n}" for n in range(1, 7)]


def test_no_answer_makes_many_names_aliases_of_a_ruled_one():
    """A resolver gave 200 in one answer: these sites were refused until their rule was removed."""
    host = "updates.example"
    rules = rules_of(RuleRequest(host=host, never=("lte0",)))

    def is_led(name):
        return leads(rules, name)

    def chain_of(name, *led):
        return [cname(one, other) for one, other in zip((name, *led), led, strict=False)]

    long = chain_of(host, *(f"n{number}.test" for number in range(17)))
    assert answer(host, 1, *long) is None, "it reaches no program"
    assert answer(host, 65, *(https(host, f"n{number}.test") for number in range(17))) is None
    assert answer(host, 1, *(srv(host, f"n{number}.test") for number in range(80))).aliases == ()
    for number in range(100):
        rules.on_answer(
            answer(host, 1, *chain_of(host, *(f"n{number}-{n}.test" for n in range(16))))
        )
    assert rules.on_answer(answer("n99-15.test", 1, a("n99-15.test", "192.0.2.1")))
    assert sum(map(is_led, (f"n{n}-{m}.test" for n in range(100) for m in range(16)))) == 64
    # Names below it push out no alias of its own.
    for number in range(300):
        below = f"x{number}.{host}"
        rules.on_answer(answer(below, 1, cname(below, f"x{number}.test")))
    assert is_led("n99-15.test")
    assert sum(is_led(f"x{number}.test") for number in range(300)) == 192
    assert is_led("x299.test")


def test_aliases_of_a_ruled_name_outlast_a_restart():
    """A stub remembers an alias, and asks for it alone: its new address was under no rule."""
    outbox, host = Outbox(), "updates.example"
    rules = UserRules(outbox)
    rules.set(1, RuleRequest(host=host, never=("lte0",)))
    rules.set(2, RuleRequest(host="other.test", never=("lte0",)))
    rules.on_answer(answer("img." + host, 1, cname("img." + host, "far.test")))
    rules.keep()
    kept = msgspec.json.decode(msgspec.json.encode(outbox.take()[-1].rules))
    again = UserRules(Outbox(), kept)
    assert again.rules == rules.rules
    assert again.on_answer(answer("far.test", 1, a("far.test", "192.0.2.1")))
    assert under(again) == ("192.0.2.1",)
    for wrong in (
        [],
        {"1": 7},
        {"1": {"img." + host: 7}},
        {"1": {"x.test": ["far.test"]}},
        {"x": {}},
    ):
        assert not leads(UserRules(Outbox(), {**kept, "aliases": wrong}), "far.test")
    many = {f"n{n}.{host}": [f"n{n}-{m}.test" for m in range(200)] for n in range(20)}
    bounded = UserRules(Outbox(), {**kept, "aliases": {"1": many}})
    assert sum(leads(bounded, each) for names in many.values() for each in names) == 256
    again.remove(1)
    assert not leads(again, "far.test")
    assert "aliases" not in again.state()


def test_a_rule_covers_what_was_looked_up_before_it_and_names_of_the_hosts_file():
    rules = rules_of()
    rules.on_answer(told("dl.updates.example", "192.0.2.1"))
    rules.on_answer(told("other.example", "192.0.2.2"))
    assert not rules.hosts_read({"lan.updates.example": [ip_address("10.0.0.7")]})
    rules.set(1, RuleRequest(host="updates.example", never=("lte0",), addresses=("192.0.2.3",)))
    covered = ("192.0.2.1", "10.0.0.7", "192.0.2.3")
    assert [rules.of(ip_address(each), 443) for each in covered] == [1, 1, 1]
    assert rules.of(ip_address("192.0.2.2"), 443) is None
    assert rules.hosts_read({"updates.example": [ip_address("10.0.0.8")]})
    assert rules.of(ip_address("10.0.0.8"), 443) == 1


def test_where_two_names_lead_to_one_address_both_rules_hold():
    """The name's owner chose its addresses: the other's connections went where its rule forbids."""
    rules = rules_of(
        RuleRequest(host="bank.example", never=("lte0",), addresses=("192.0.2.1",)),
        RuleRequest(host="a.b.others.example", only=("lte0",), addresses=("192.0.2.1",)),
        RuleRequest(host="others.example", never=("eth0",), addresses=("192.0.2.1",)),
        RuleRequest(host="bank.example", port=22, only=("eth0",), addresses=("192.0.2.1",)),
        RuleRequest(host="192.0.2.0/24", never=("lte0",)),
    )
    address = ip_address("192.0.2.1")
    assert rules.holding(address, None) == (1, 2), "the closest of related names"
    assert rules.holding(address, 22) == (2, 4), "a related name's port"
    assert rules.holding(ip_address("192.0.2.2"), None) == (5,)
    far, address = address, ip_address("203.0.113.9")
    assert rules.holding(address, 443, "www.bank.example") == (1,)
    assert rules.holding(far, 443, "eu.others.example") == (1, 2)
    assert rules.holding(address, 443, "other.example") == ()


def test_rules_of_portals_count_for_none_of_the_users():
    """They stood first in what sessions are told, which then left the user's rules out."""
    own = RuleRequest(host="bank.example", never=("lte0",))
    strange = {str(-n): RuleRequest(host=f"10.0.0.{n}", only=("wlan0",)) for n in range(1, 99)}
    assert UserRules(Outbox(), {**strange, "1": own}).rules == {1: own}


def test_rules_are_kept():
    outbox = Outbox()
    rules = UserRules(outbox)

    def add(**what):
        rule = msgspec.convert(what, RuleRequest)
        number = rules.number_for(rule)
        rules.set(number, rule)
        return number

    def kept():
        (*_, last) = outbox.take()
        assert isinstance(last, give.KeepRules)
        return msgspec.json.decode(msgspec.json.encode(last.rules))

    assert add(host="192.0.2.1", never=["lte0"]) == 1
    assert add(host="192.0.2.1", port=22, never=["lte0"]) == 2
    assert add(host="192.0.2.1", only=["lte0"]) == 1, "it is changed"
    again = UserRules(Outbox(), kept())
    assert again.rules == rules.rules
    assert again.rules[1].words == "only lte0"
    rules.remove(1)
    assert "1" not in kept()
    rules.remove(1)
    assert outbox.take() == [], "there is none"
    for number in range(MOST - 1):
        add(host=f"10.0.0.{number}", never=["lte0"])
    with pytest.raises(ConfigError, match=f"{MOST} rules already"):
        rules.number_for(RuleRequest(host="10.1.0.1", never=("lte0",)))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    )
)
def test_a_file_with_anything_in_it_gives_no_rules(kept):
    assert UserRules(Outbox(), kept).rules == {}


@pytest.mark.parametrize("number", ["-7", "0", "x", "1.5"])
def test_a_kept_rule_has_a_number_of_a_user_s_rule(number):
    """The daemon did not start with one of a portal's number for a name."""
    rule = {"host": "a.example", "port": None, "only": [], "never": ["lte0"], "addresses": []}
    assert UserRules(Outbox(), {number: rule}).rules == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"host": "a b", "never": ["lte0"]},
        {"host": "", "never": ["lte0"]},
        {"host": "x.example"},
        {"host": "x.example", "never": ["lte0"], "only": ["wlan0"]},
        {"host": "x.example", "never": ["lte0"], "port": 0},
        {"host": "x.example", "never": ["lte0"], "addresses": ["nonsense"]},
        {"host": "x.example", "never": ["lte0"], "more": 1},
        {"host": "::ffff:192.0.2.1", "never": ["lte0"]},  # its packets are IPv4's
        {"host": "::ffff:192.0.2.0/120", "never": ["lte0"]},
        {"host": "fe80::1%lte0", "never": ["lte0"]},  # no packet has a zone
        {"host": "2001:db8::%x/64", "never": ["lte0"]},
    ],
)
def test_what_cannot_be_a_rule_is_refused(wrong):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, RuleRequest)


def test_no_answer_puts_what_many_hosts_hear_under_a_rule():
    """Leave them out: mDNS and broadcasts of all programs went to the rule's network, or were refused."""
    many = ("255.255.255.255", "224.0.0.251", "ff02::fb")
    rule = RuleRequest(host="updates.example", only=("lte0",), addresses=("192.0.2.1", *many))
    rules = UserRules(Outbox(), {"1": msgspec.to_builtins(rule)})
    rules.set(2, msgspec.structs.replace(rule, host="b.example"))
    found = tuple(map(ip_address, ("192.0.2.2", *many)))
    for name in ("updates.example", "b.example"):
        reply = on.DnsReply(7, 0, False, name, 1, found)
        rules.on_answer(reply)
        assert not rules.covers(reply), "such an answer reaches no program"
        rules.hosts_read({name: found})
    assert {place for (place, _), _ in rules.places()} == {"192.0.2.1/32", "192.0.2.2/32"}


def test_names_below_a_ruled_host_do_not_push_out_its_own_address():
    rules = rules_of(RuleRequest(host="cloud.example", never=("lte0",)))
    rules.on_answer(told("cloud.example", "203.0.113.1"))
    for number in range(MOST_ADDRESSES + 1):
        rules.on_answer(told(f"host{number}.cloud.example", str(ip_address(0xC6336400 + number))))
    assert rules.of(ip_address("203.0.113.1"), 443) == 1
    assert len(rules.rules[1].addresses) == MOST_ADDRESSES


def test_a_rule_has_no_address_with_a_zone():
    """The kernel's part refused it, for good."""
    rule = RuleRequest(host="a.example", only=("lte0",), addresses=("fe80::1%lte0", "192.0.2.1"))
    assert rule.addresses == ("192.0.2.1",)


def test_portals_by_addresses_that_no_packet_has_are_ruled_by_those_of_their_packets():
    """A network that redirects to one made the daemon fail, or the kernel's part refuse it."""
    rules = rules_of()
    rules.portals([("wlan0", [ip_address("::ffff:192.0.2.1"), ip_address("fe80::1%wlan0")])])
    assert {place for (place, _), _ in rules.places()} == {"192.0.2.1/32", "fe80::1/128"}


def test_only_so_many_hosts_are_a_portals():
    rules = rules_of()
    rules.portals([("wlan0", [ip_address(0xC6336400 + n) for n in range(MOST + 9)])])
    assert len(rules.rules) == MOST
    assert max(rules.rules) < 0


PLACE = (f"{SERVER}/32", None)
NOT_METERED = RuleRequest(host=str(SERVER), never=("metered",))


@pytest.fixture
def ruled():
    """Its server is never reached over LTE."""
    script = Script(rules={"1": msgspec.to_builtins(NOT_METERED)})
    script.steering()
    return script


def steered(script):
    return [each for each in script.steering() if not isinstance(each, give.SetDefault)]


def test_it_goes_to_the_best_of_what_is_allowed():
    script = Script(rules={"1": msgspec.to_builtins(NOT_METERED)})
    assert script.steering() == [give.SetRuled({PLACE: "wlan0"}), give.SetDefault("wlan0", {})]
    script.model.rtt_s["wifi"] = 0.5
    script.decide(9.0)
    assert script.steering() == [give.SetDefault("lte0", {})]
    decision = script.controller.ruled.decision(KEY)
    assert decision.reason == (
        "Your rule 1: never metered. wlan0 is the only network that it allows"
    )
    assert script.connection().decision == decision.number
    script.decide(10.0)
    assert script.steering() == [], "nothing changed"


LAN = "192.168.1.0/24"
DOCK = replace(WLAN, name="eth0", interface="eth0", index=4, kind=NetworkKind.ETHERNET)
DOCK = replace(DOCK, addresses=(ip_interface("192.168.1.7/24"),))
HOME = replace(WLAN, addresses=(ip_interface("192.168.1.8/24"),))
PHONE = replace(DOCK, name="phone", addresses=LTE.addresses)


@pytest.mark.parametrize(
    ("rules", "networks", "leads"),
    [
        # A cable beside Wi-Fi: the router's subnet followed the rule, as it was two networks'.
        ([("0.0.0.0/0", None, "lte0")], [HOME, DOCK, LTE], {None: "eth0"}),
        ([("192.168.0.0/16", 22, "lte0")], [HOME, DOCK, LTE], {22: "eth0"}),
        ([("0.0.0.0/0", None, "wlan0")], [HOME, DOCK, LTE], {}),
        ([("0.0.0.0/0", None, "lte0")], [HOME, replace(DOCK, up=False), LTE], {None: "wlan0"}),
        # Of networks that a rule judges differently the forbidden one has nothing.
        ([("0.0.0.0/0", None, "phone", "wlan0")], [HOME, DOCK, PHONE], {None: "wlan0"}),
        ([("0.0.0.0/0", None, "wlan0")], [replace(HOME, up=False), DOCK, LTE], {}),
        # A network whose subnet is around, or within, another network's draws nothing.
        (
            [("0.0.0.0/0", None, "lte0")],
            [replace(HOME, addresses=(ip_interface("192.168.1.8/29"),)), HOME, DOCK, LTE],
            {},
        ),
        # Nor a subnet of public addresses, nor one that only one network has, which steering leads.
        (
            [("0.0.0.0/0", None, "lte0")],
            [replace(each, addresses=(ip_interface("9.8.8.7/24"),)) for each in (HOME, DOCK)],
            {},
        ),
        ([("0.0.0.0/0", None, "lte0")], [WLAN, DOCK, LTE], {}),
        # The closest rule counts.
        (
            [("0.0.0.0/0", None, "wlan0"), ("192.168.0.0/16", None, "lte0")],
            [HOME, DOCK, LTE],
            {None: "eth0"},
        ),
        ([(LAN, None, "lte0"), ("0.0.0.0/0", None, "wlan0")], [HOME, DOCK, LTE], {None: "lte0"}),
        ([("198.51.0.0/16", None, "lte0")], [HOME, DOCK, LTE], {}),
    ],
)
def test_a_docked_laptop_reaches_its_own_subnet_beside_a_rule(rules, networks, leads):
    script = Script()
    script.model.rtt_s["wifi"] = 1.0
    for number, (host, port, *only) in enumerate(rules, 1):
        script.tell(on.RuleSet(number, RuleRequest(host=host, port=port, only=tuple(only))))
    script.networks(*networks)
    script.decide(20.0)
    known = script.controller.ruled.led
    found = {port: known.get((LAN, port)) for port in (None, 22)}
    assert {port: name for port, name in found.items() if name is not None} == leads
    script.networks(WLAN, LTE)
    script.decide(30.0)
    owns = [rule for rule in rules if rule[0] == LAN]
    assert (known.get((LAN, None)) is None) is not bool(owns)


def test_a_rule_that_could_not_be_changed_is_taken_back_with_the_users(ruled):
    """The kernel still leads its place where the command before did."""
    (command,) = of_kind(give.SetRuled, ruled.networks(replace(WLAN, up=False), LTE, at_s=10.0))
    ruled.tell(on.CommandFailed(command, (PLACE,)))
    (again,) = of_kind(give.SetRuled, ruled.decide(10.5))
    assert again == command == give.SetRuled({PLACE: give.NOWHERE})
    ruled.tell(on.CommandFailed(again, (PLACE,)))
    (removal,) = of_kind(give.SetRuled, ruled.tell(on.RuleSet(1, None), at_s=11.0))
    assert removal == give.SetRuled({PLACE: None})
    # Nor is it forgotten where that is refused, too.
    ruled.tell(on.CommandFailed(removal, (PLACE,)))
    (again,) = of_kind(give.SetRuled, ruled.decide(12.0))
    ruled.tell(on.CommandDone(again))
    assert (again, of_kind(give.SetRuled, ruled.decide(13.0))) == (removal, [])


def test_an_address_that_its_network_cannot_reach_is_refused(ruled):
    """By IPv6, that is, which only LTE has: the kernel would look for the next best way."""
    lte = replace(LTE, addresses=(*LTE.addresses, ip_interface("2001:db8::2/64")))
    ruled.networks(WLAN, lte, at_s=9.0)
    given = ruled.tell(
        on.RuleSet(2, RuleRequest(host="2001:db8:7::/48", never=("lte0",))), at_s=10.0
    )
    assert led(given) == {("2001:db8:7::/48", None): give.NOWHERE}


def test_the_kernel_has_no_rule_for_the_last_port(script):
    """The kernel refused such a rule, and with it all others, for good: of users, and learnt ones."""
    with pytest.raises(ConfigError, match="1 to 65534 would be right"):
        rules_of(RuleRequest(host="x.example", never=("lte0",), port=65_535))
    for port, where in ((65_534, "lte0"), (65_535, None)):
        script.connection(replace(KEY, remote_port=port))
        script.tell(on.SizesKnown(SERVER, port, {Direction.DOWN: size_of(4_000_000, "history")}))
        script.decide()
        assert led(script.steering()).get((f"{SERVER}/32", port)) == where


def test_what_is_known_of_a_destination_leads_it_no_more(ruled):
    """LTE is quicker for what it sends; the rule counts."""
    ruled.connection()
    large = on.SizesKnown(SERVER, 80, {Direction.DOWN: size_of(4_000_000, "history")})
    ruled.tell(large)
    ruled.decide(10.0)
    assert steered(ruled) == []
    ruled.tell(on.RuleSet(1, None), at_s=11.0)
    ruled.wait(11.0)
    assert steered(ruled) == [
        give.SetRuled({PLACE: None}),
        give.SetDestinations({(f"{SERVER}/32", 80): "lte0"}),
    ]
    ruled.tell(on.RuleSet(1, NOT_METERED), at_s=12.0)
    ruled.decide(13.0)
    assert led(steered(ruled)) == {PLACE: "wlan0", (f"{SERVER}/32", 80): None}


def test_a_living_connection_leaves_a_network_that_it_may_not_use(script):
    """It began before its name was known to lead there."""
    flow = script.connection(movable=True)
    script.tell(on.RuleSet(1, RuleRequest(host=str(SERVER), never=("wlan0",))), at_s=10.0)
    assert steered(script) == [give.SetRuled({PLACE: "lte0"})]
    script.decide(10.5)
    assert steered(script) == [
        give.MoveConnection(TOKEN, ONLY_LTE),
        give.ReleasePath(TOKEN, "wlan0"),
    ]
    assert flow.strategy == ONLY_LTE


def test_a_living_connection_is_not_moved_to_a_network_that_has_just_been_barred(script):
    script.connection(movable=True)
    script.tell(on.RuleSet(1, RuleRequest(host=str(SERVER), never=("wlan0",))), at_s=10.0)
    script.tell(on.ProvidersRead(), on.TimerFired(), at_s=10.5)  # the flow's turn is to come
    script.barred("lte0")
    script.steering()
    script.wait(12.0)
    assert give.MoveConnection(TOKEN, ONLY_LTE) not in script.steering()


def test_a_claimed_name_counts_for_its_connection_alone(script):
    flow = script.connection(movable=True)
    script.tell(on.RuleSet(1, RuleRequest(host="updates.example", never=("wlan0",))), at_s=10.0)
    flow.server_name = "dl.updates.example"
    script.decide(10.5)
    assert give.ReleasePath(TOKEN, "wlan0") in script.steering()
    assert flow.strategy == ONLY_LTE
    assert script.controller.ruled.rules.rules[1].addresses == ()
    assert not script.controller.ruled.covers(SERVER, 443)


def test_a_living_connection_stays_where_no_network_is_allowed(script):
    script.connection(movable=True)
    script.tell(on.RuleSet(1, RuleRequest(host=str(SERVER), never=("wlan0", "lte0"))), at_s=10.0)
    script.decide(10.5)
    assert steered(script) == [give.SetRuled({PLACE: give.NOWHERE})]


def test_an_answer_without_news_has_no_place_worked_out_again(script, monkeypatch):
    """With 1,024 addresses under rules such an answer took 19 ms."""
    for n in range(1, 9):
        addresses = tuple(f"203.0.{n}.{k}" for k in range(1, 17))
        rule = RuleRequest(host=f"{n}.example", never=("wlan0",), addresses=addresses)
        script.tell(*map(on.CommandDone, of_kind(give.SetRuled, script.tell(on.RuleSet(n, rule)))))
    read = []
    module = "cedos.controller.decisions.user_rules.ip_network"
    monkeypatch.setattr(module, lambda text: read.append(text) or ip_network(text))
    script.tell(on.AnswersRead(None, (told("1.example", "203.0.1.1"),)))
    assert not read
    script.tell(on.AnswersRead(None, (told("1.example", "203.0.1.17"),)))
    assert read


def portal(script, at_s, *addresses):
    """Wi-Fi's test page is redirected by way of these hosts, and nothing else is answered there."""
    script.now_s = at_s
    hosts = {address: (ip_address(address),) for address in addresses}
    found = on.PortalFinding(on.PortalVerdict.CAPTIVE, "the test page was redirected", hosts=hosts)
    script.checked("wlan0", found, on.TlsAnswer.SILENT)
    script.decide(at_s)


def test_the_users_rule_counts_before_the_portals(script):
    script.tell(on.RuleSet(1, RuleRequest(host=str(SERVER), only=("lte0",))), at_s=9.0)
    portal(script, 10.0, str(SERVER))
    decision = script.controller.ruled.decision(KEY)
    assert decision.choice.networks == ("lte0",)
    rules = script.controller.ruled.rules
    assert list(rules.state()) == ["1"]
    portal(script, 11.0, "203.0.113.1")
    assert rules.number_for(RuleRequest(host="203.0.113.1", never=("lte0",))) == 2


@pytest.mark.parametrize("prefix", ["198.51.100.0/24", "198.51.100.1/32", "0.0.0.0/0"])
def test_a_portal_takes_no_host_out_of_the_users_prefix(script, prefix):
    """The kernel takes the longest prefix: a portal may name any address."""
    script.tell(on.RuleSet(1, RuleRequest(host=prefix, never=("wlan0",))), at_s=9.0)
    portal(script, 10.0, str(SERVER), "2001:db8::1")
    assert not script.controller.ruled.may_use(KEY, "wlan0")
    found = led(script.steering())
    assert found.pop((prefix, None)) == "lte0"
    assert list(found) == [("2001:db8::1/128", None)], "another host leads there as before"


def test_a_host_is_explained_by_the_rule_that_applies(script):
    """Of two rules the other one was named; of a refused host an old decision was shown."""
    ruled = script.controller.ruled
    for number, rule in enumerate(
        (
            RuleRequest(host="updates.example", never=("metered",)),
            RuleRequest(host="updates.example", port=22, only=("lte0",)),
            RuleRequest(host="mirror.updates.example", only=("eth7",)),
            RuleRequest(host="198.51.100.0/24", only=("lte0",)),
        ),
        1,
    ):
        script.tell(on.RuleSet(number, rule))
    script.tell(on.AnswersRead(None, (told("updates.example", "198.51.100.7"),)))

    def rule_of(asked):
        decision = ruled.decision_about(asked)
        return None if decision is None else decision.reason.partition(":")[0]

    for asked, said in {
        "updates.example": "Your rule 1",
        "dl.updates.example:443": "Your rule 1",
        "Updates.Example.:22": "Your rule 2",
        "updates.example:22": "Your rule 2",
        "198.51.100.7:22": "Your rule 2",
        "198.51.100.7": "Your rule 1",
        "198.51.100.7:443": "Your rule 1",
        "198.51.100.8:443": "Your rule 4",
        "other.example": None,
        "203.0.113.1": None,
        "[2001:db8::1]:443": None,
    }.items():
        assert rule_of(asked) == said, asked
    refused = ruled.decision_about("eu.mirror.updates.example")
    assert "so connections are refused" in refused.reason


def forbidden(commands):
    (command,) = of_kind(give.ForbidPlaces, commands)
    return command.places


def test_the_networks_that_no_rule_of_an_address_allows_are_forbidden():
    script = Script(rules={"1": msgspec.to_builtins(NOT_METERED)})
    first = [
        each for each in script.given(object) if hasattr(each, "places") or hasattr(each, "wanted")
    ]
    assert first[:2] == [give.ForbidPlaces({PLACE: ("lte0",)}), give.SetRuled({PLACE: "wlan0"})]
    assert not of_kind(give.ForbidPlaces, script.decide(9.0))
    # One that has become metered; one that is there again.
    metered = replace(WLAN, metered=True)
    assert forbidden(script.networks(metered, LTE, at_s=10.0)) == {PLACE: ("wlan0", "lte0")}
    assert forbidden(script.networks(WLAN, LTE, at_s=11.0)) == {PLACE: ("lte0",)}
    assert forbidden(script.tell(on.RuleSet(1, None), at_s=12.0)) == {PLACE: None}


def test_where_the_names_of_two_rules_lead_to_an_address_both_forbid(script):
    here = (str(SERVER),)
    one = RuleRequest(host="bank.example", never=("lte0",), addresses=here)
    other = RuleRequest(host="cdn.shop.example", only=("lte0",), addresses=here)
    assert forbidden(script.tell(on.RuleSet(1, one), at_s=9.0)) == {PLACE: ("lte0",)}
    assert forbidden(script.tell(on.RuleSet(2, other), at_s=9.0)) == {PLACE: ("wlan0", "lte0")}


def test_questions_to_a_networks_resolver_are_open_there_though_a_ruled_name_leads_to_it(script):
    own = replace(WLAN, resolvers=(ip_address("192.0.2.53"),))
    script.networks(own, LTE, at_s=8.0)
    rule = RuleRequest(host="a.example", only=("lte0",), addresses=("192.0.2.53",))
    places = forbidden(script.tell(on.RuleSet(1, rule), at_s=9.0))
    assert places == {("192.0.2.53/32", None): ("wlan0",), ("192.0.2.53/32", 53): ("lte0",)}


def test_an_interface_of_a_helper_that_a_rule_allows_is_open(ruled):
    helper = replace(LTE, name="bob", metered=False)
    given = ruled.tell(on.NetworksChanged((WLAN, LTE), (helper,)), at_s=10.0)
    assert forbidden(given) == {PLACE: ()}


def test_a_portals_rule_forbids_nothing(script):
    rules = script.controller.ruled.rules
    rules.portals([("wlan0", [SERVER])])
    script.controller.ruled.reconsider(script.controller.context(9.0))
    assert not script.given(give.ForbidPlaces)


def test_a_shared_subnet_is_forbidden_where_it_is_not_led(script):
    own = (ip_interface("10.5.0.2/24"),)
    third = replace(WLAN, name="eth0", interface="eth0", index=9, kind=NetworkKind.ETHERNET)
    script.networks(
        replace(WLAN, addresses=own),
        replace(LTE, addresses=own),
        replace(third, addresses=(ip_interface("192.0.2.2/24"),)),
        at_s=8.0,
    )
    rule = RuleRequest(host="10.0.0.0/8", never=("lte0", "wlan0"))
    places = forbidden(script.tell(on.RuleSet(1, rule), at_s=9.0))
    assert places["10.0.0.0/8", None] == ("wlan0", "lte0")
    assert places["10.5.0.0/24", None] == ("wlan0",), "it is led by lte0"
    rule = RuleRequest(host="10.0.0.0/8", never=("lte0",))
    places = forbidden(script.tell(on.RuleSet(1, rule), at_s=10.0))
    assert places["10.0.0.0/8", None] == ("lte0",)
    assert places["10.5.0.0/24", None] == ("lte0",), "it is led by wlan0, which is allowed"
