"""A user's rules: which applies, where it leads, and that nothing else leads there."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface
from typing import Any

import msgspec
import pytest
from cedos.controller.decisions.director import Director
from hypothesis import given
from hypothesis import strategies as st

from cedos.controller.decisions.user_rules import MOST, UserRules
from cedos.controller.events import DnsReply, HostDefault
from cedos.controller.rule import MOST_ADDRESSES, RuleRequest
from cedos.errors import ConfigError, NotFoundError
from cedos.model import (
    Context,
    Direction,
    FlowKey,
    NetworkKind,
    NetworkLife,
    NetworkVerdict,
    Strategy,
    StrategyKind,
)

pytestmark = pytest.mark.anyio

Stage = Any


def rules_of(*rules: RuleRequest) -> UserRules:
    found = UserRules()
    for rule in rules:
        found.add(rule)
    return found


def test_the_closest_rule_applies() -> None:
    rules = rules_of(
        RuleRequest(host="198.51.0.0/16", never=("lte0",)),
        RuleRequest(host="198.51.100.0/24", only=("lte0",)),
        RuleRequest(host="198.51.0.0/16", port=22, only=("wlan0",)),
        RuleRequest(host="updates.example", never=("metered",), addresses=("203.0.113.7",)),
        RuleRequest(host="2001:db8::/32", never=("lte0",)),
    )
    assert rules.of(ip_address("198.51.7.7"), 80) == 1
    assert rules.of(ip_address("198.51.100.7"), 80) == 2
    assert rules.of(ip_address("198.51.100.7"), 22) == 3, "a port counts more than any prefix"
    assert rules.of(ip_address("203.0.113.7"), 443) == 4
    assert rules.of(ip_address("2001:db8::1"), 443) == 5
    assert rules.of(ip_address("192.0.2.1"), 443) is None


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("wlan0", {"wlan0"}),
        ("wifi", {"wlan0"}),
        ("cellular", {"usb0", "usb1"}),
        ("ethernet", {"eth0"}),
        ("metered", {"usb0"}),
        ("wlan", set()),
    ],
)
def test_a_rule_names_a_network_a_kind_or_all_metered_ones(word: str, meant: set[str]) -> None:
    networks = {
        "wlan0": (NetworkKind.WIFI, False),
        "usb0": (NetworkKind.CELLULAR, True),
        "usb1": (NetworkKind.CELLULAR, False),
        "eth0": (NetworkKind.ETHERNET, False),
    }
    only, never = (
        {
            name
            for name, (kind, metered) in networks.items()
            if RuleRequest(host="a.example", **{which: (word,)}).allows(name, kind, metered=metered)
        }
        for which in ("only", "never")
    )
    assert only == meant
    assert never == networks.keys() - meant


def told(name: str, *addresses: str, aliases: tuple[str, ...] = ()) -> DnsReply:
    return DnsReply(1, 0, False, name, 1, tuple(map(ip_address, addresses)), aliases)


def test_a_rule_covers_what_resolvers_say_of_its_name() -> None:
    rules = rules_of(RuleRequest(host="updates.example", never=("lte0",)))
    assert not rules.told(told("updates.example.org", "192.0.2.1"))
    assert not rules.told(told("otherupdates.example", "192.0.2.1"))
    assert rules.told(told("eu.updates.example", "192.0.2.2", "2001:db8::2"))
    assert rules.of(ip_address("192.0.2.2"), 443) == rules.of(ip_address("2001:db8::2"), 80) == 1
    assert rules.of(ip_address("192.0.2.1"), 443) is None
    for number in range(3 * MOST_ADDRESSES):
        rules.told(told("updates.example", f"198.51.{number // 256}.{number % 256}"))
        rules.told(told("eu.updates.example", "192.0.2.2"))  # what is told again stays
    assert len(rules.rules[1].addresses) == MOST_ADDRESSES
    assert rules.of(ip_address("192.0.2.2"), 443) == 1
    assert rules.of(ip_address("198.51.2.255"), 443) == 1


def test_aliases_are_followed_in_one_answer_and_in_several() -> None:
    rules = rules_of(RuleRequest(host="updates.example", never=("lte0",)))
    # The ruled name is an alias, or another name is one of it.
    rules.told(told("updates.example", "192.0.2.1", aliases=("a.cdn.example", "b.cdn.example")))
    rules.told(told("mine.example", "192.0.2.2", aliases=("updates.example",)))
    # As a stub asks: one after the other.
    rules.told(told("dl.updates.example", aliases=("x.cdn.example",)))
    rules.told(told("x.cdn.example", aliases=("y.cdn.example",)))
    assert rules.told(told("y.cdn.example", "192.0.2.3"))
    assert [rules.of(ip_address(f"192.0.2.{n}"), 1) for n in (1, 2, 3)] == [1, 1, 1]
    # A circle ends.
    rules.told(told("r.example", aliases=("s.example",)))
    assert not rules.told(told("s.example", "192.0.2.9", aliases=("r.example",)))


def test_a_rule_covers_what_was_looked_up_before_it_and_names_of_the_hosts_file() -> None:
    rules = UserRules()
    rules.told(told("dl.updates.example", "192.0.2.1"))
    rules.told(told("other.example", "192.0.2.2"))
    assert not rules.hosts_read({"lan.updates.example": [ip_address("10.0.0.7")]})
    rules.add(RuleRequest(host="updates.example", never=("lte0",), addresses=("192.0.2.3",)))
    covered = ("192.0.2.1", "10.0.0.7", "192.0.2.3")
    assert [rules.of(ip_address(each), 443) for each in covered] == [1, 1, 1]
    assert rules.of(ip_address("192.0.2.2"), 443) is None
    assert rules.hosts_read({"updates.example": [ip_address("10.0.0.8")]})
    assert rules.of(ip_address("10.0.0.8"), 443) == 1


def test_of_two_rules_for_one_address_one_applies_everywhere() -> None:
    rules = rules_of(
        RuleRequest(host="mirror.updates.example", only=("wlan0",), addresses=("192.0.2.1",)),
        RuleRequest(host="updates.example", only=("lte0",), addresses=("192.0.2.1", "192.0.2.2")),
        RuleRequest(host="192.0.2.2", only=("eth0",)),
        RuleRequest(host="192.0.2.0/24", never=("lte0",)),
    )
    assert rules.of(ip_address("192.0.2.1"), 443) == 1, "the closest name"
    assert rules.of(ip_address("192.0.2.2"), 443) == 3, "an address before a name"
    assert rules.of(ip_address("192.0.2.9"), 443) == 4
    assert rules.named("eu.mirror.updates.example") == 1
    assert rules.named("eu.updates.example") == 2
    # What is steered is what is said.
    steered = dict(rules.places())
    for place in ("192.0.2.1", "192.0.2.2"):
        assert steered[f"{place}/32", None] == rules.of(ip_address(place), 443)


def test_rules_are_kept() -> None:
    kept: list[object] = []
    rules = UserRules(None, kept.append)
    assert rules.add(RuleRequest(host="192.0.2.1", never=("lte0",))) == 1
    assert rules.add(RuleRequest(host="192.0.2.1", port=22, never=("lte0",))) == 2
    assert rules.add(RuleRequest(host="192.0.2.1", only=("lte0",))) == 1, "it is changed"
    again = UserRules(msgspec.json.decode(msgspec.json.encode(kept[-1])))
    assert again.rules == rules.rules
    assert again.rules[1].words == "only lte0"
    rules.remove(1)
    assert "1" not in kept[-1]  # type: ignore[operator]
    with pytest.raises(NotFoundError, match="there is no rule 1"):
        rules.remove(1)
    for number in range(MOST - 1):
        rules.add(RuleRequest(host=f"10.0.0.{number}", never=("lte0",)))
    with pytest.raises(ConfigError, match=f"{MOST} rules already"):
        rules.add(RuleRequest(host="10.1.0.1", never=("lte0",)))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner),
    )
)
def test_a_file_with_anything_in_it_gives_no_rules(kept: object) -> None:
    assert UserRules(kept).rules == {}


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
    ],
)
def test_what_cannot_be_a_rule_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, RuleRequest)


@pytest.fixture
def ruled(stage: Stage) -> Stage:
    """A stage whose server is never reached over LTE."""
    rules = rules_of(RuleRequest(host=stage.server, never=("metered",)))
    stage.director = Director(stage.steer, stage.flows, stage.sizes, stage.director.decider, rules)
    stage.director.networks_changed([stage.wlan, stage.lte])
    return stage


async def test_it_goes_to_the_best_of_what_is_allowed(ruled: Stage) -> None:
    ruled.model.rtt_s["wifi"] = 0.5
    await ruled.reconsider()
    assert ruled.asked() == [
        ("destination", f"{ruled.server}/32", None, "wlan0"),
        ("default", "lte0"),
    ]
    (told,) = ruled.director.ruled.messages({})
    assert told.network == "wlan0"
    assert told.why == ("Your rule 1: never metered. wlan0 is the only network that it allows")
    flow = ruled.connection()
    assert flow.decision == ruled.director.ruled.decision(ruled.key).number
    await ruled.reconsider()
    assert ruled.asked() == [], "nothing changed"


async def test_without_an_allowed_network_it_is_refused(ruled: Stage) -> None:
    await ruled.reconsider()
    ruled.asked()
    ruled.director.networks_changed([replace(ruled.wlan, up=False), ruled.lte])
    await ruled.reconsider()
    assert ruled.asked()[0] == ("destination", f"{ruled.server}/32", None, "")
    (told,) = ruled.director.ruled.messages({})
    assert told.network is None
    assert "connections are refused" in told.why
    assert ruled.director.ruled.decision(ruled.key).choice.kind is StrategyKind.DEFER
    assert not ruled.director.ruled.may_use(ruled.key, "lte0")
    assert ruled.director.ruled.may_use(
        FlowKey(ruled.key.local, 1, ip_address("192.0.2.9"), 80), "lte0"
    )


async def test_what_a_vpn_carries_instead_is_said(ruled: Stage) -> None:
    ruled.director.ruled.rules.add(RuleRequest(host="2001:db8:7::/48", never=("lte0",)))
    await ruled.reconsider()
    kept = {4: HostDefault("wg0", vpn=True, what="wireguard")}
    four, six = ruled.director.ruled.messages(kept)
    assert (four.vpn, six.vpn) == ({"4": "wg0"}, {})
    kept = {6: HostDefault("br0", vpn=False, what="bridge")}
    four, six = ruled.director.ruled.messages(kept)
    assert (four.host_defaults, six.host_defaults, six.vpn) == ({}, {"6": "br0"}, {})


async def test_an_address_that_its_network_cannot_reach_is_refused(ruled: Stage) -> None:
    """By IPv6, that is, which only LTE has: the kernel would look for the next best way."""
    lte = replace(ruled.lte, addresses=(*ruled.lte.addresses, ip_interface("2001:db8::2/64")))
    ruled.director.networks_changed([ruled.wlan, lte])
    ruled.director.ruled.rules.add(RuleRequest(host="2001:db8:7::/48", never=("lte0",)))
    await ruled.reconsider()
    assert ("destination", "2001:db8:7::/48", None, "") in ruled.asked()


async def test_what_is_known_of_a_destination_leads_it_no_more(ruled: Stage) -> None:
    """LTE is quicker for what it sends; the rule counts."""
    ruled.connection()
    await ruled.reconsider()
    ruled.sizes.learn(ruled.server, 80, Direction.DOWN, 4_000_000)
    await ruled.reconsider()
    assert ("destination", f"{ruled.server}/32", 80, "lte0") not in ruled.asked()
    ruled.director.ruled.rules.remove(1)
    await ruled.reconsider()
    assert ruled.asked() == [
        ("destination", f"{ruled.server}/32", None, None),
        ("destination", f"{ruled.server}/32", 80, "lte0"),
    ]


async def test_a_living_connection_leaves_a_network_that_it_may_not_use(stage: Stage) -> None:
    """It began before its name was known to lead there."""
    flow = stage.connection(movable=True)
    await stage.reconsider()
    stage.asked()
    stage.director.ruled.rules.add(RuleRequest(host=stage.server, never=("wlan0",)))
    await stage.reconsider()
    asked = [each for each in stage.asked() if each[0] in ("connection", "release")]
    assert asked == [
        ("connection", 7, Strategy(StrategyKind.SINGLE, ("lte0",))),
        ("release", 7, "wlan0"),
    ]
    assert flow.strategy == Strategy(StrategyKind.SINGLE, ("lte0",))


async def test_a_claimed_name_counts_for_its_connection_alone(stage: Stage) -> None:
    flow = stage.connection(movable=True)
    await stage.reconsider()
    stage.director.ruled.rules.add(RuleRequest(host="updates.example", never=("wlan0",)))
    flow.server_name = "dl.updates.example"
    await stage.reconsider()
    assert ("release", 7, "wlan0") in stage.asked()
    assert flow.strategy == Strategy(StrategyKind.SINGLE, ("lte0",))
    assert stage.director.ruled.rules.rules[1].addresses == ()
    assert not stage.director.ruled.covers(ip_address(stage.server), 443)


async def test_a_living_connection_stays_where_no_network_is_allowed(stage: Stage) -> None:
    stage.connection(movable=True)
    stage.director.ruled.rules.add(RuleRequest(host=stage.server, never=("wlan0", "lte0")))
    await stage.reconsider()
    assert not [each for each in stage.asked() if each[0] in ("connection", "release")]


async def captive(stage: Stage, life: NetworkLife = NetworkLife.CAPTIVE) -> None:
    """Decide while Wi-Fi is in that state."""
    verdict = NetworkVerdict(life, "the test page was redirected", 4.0)
    await stage.director.reconsider(Context(10.0, {}, verdicts={"wlan0": verdict}))


async def test_hosts_of_a_portal_lead_over_its_network_until_the_log_in(stage: Stage) -> None:
    kept: list[object] = []
    rules = UserRules(keep=kept.append)
    stage.director = Director(stage.steer, stage.flows, stage.sizes, stage.director.decider, rules)
    stage.director.networks_changed([stage.wlan, stage.lte])
    rules.portals([("wlan0", [ip_address(stage.server), ip_address("198.51.100.2")])])
    await captive(stage)
    assert stage.asked() == [
        ("destination", "198.51.100.1/32", None, "wlan0"),
        ("destination", "198.51.100.2/32", None, "wlan0"),
        ("default", "lte0"),
    ]
    why = stage.director.ruled.decision(stage.key).reason
    assert why == (
        "wlan0 wants a log-in, and 198.51.100.1 is on the way to it."
        " wlan0 carries nothing but the log-in until then"
    )
    assert not stage.director.ruled.may_use(stage.key, "lte0"), "no rescue leads it elsewhere"
    rules.portals([])
    await stage.reconsider()
    assert sorted(stage.asked()) == [
        ("default", "wlan0"),
        ("destination", "198.51.100.1/32", None, None),
        ("destination", "198.51.100.2/32", None, None),
    ]
    assert kept == []


async def test_the_users_rule_counts_before_the_portals(stage: Stage) -> None:
    rules = rules_of(RuleRequest(host=stage.server, only=("lte0",)))
    stage.director = Director(stage.steer, stage.flows, stage.sizes, stage.director.decider, rules)
    stage.director.networks_changed([stage.wlan, stage.lte])
    rules.portals([("wlan0", [ip_address(stage.server)])])
    await captive(stage)
    assert stage.director.ruled.decision(stage.key).choice.networks == ("lte0",)
    assert list(rules.state()) == ["1"]
    rules.portals([("wlan0", [ip_address("203.0.113.1")])])
    assert rules.add(RuleRequest(host="203.0.113.1", never=("lte0",))) == 2


@pytest.mark.parametrize("prefix", ["198.51.100.0/24", "198.51.100.1/32", "0.0.0.0/0"])
async def test_a_portal_takes_no_host_out_of_the_users_prefix(stage: Stage, prefix: str) -> None:
    """The kernel takes the longest prefix: a portal may name any address."""
    rules = rules_of(RuleRequest(host=prefix, never=("wlan0",)))
    stage.director = Director(stage.steer, stage.flows, stage.sizes, stage.director.decider, rules)
    stage.director.networks_changed([stage.wlan, stage.lte])
    rules.portals([("wlan0", [ip_address(stage.server), ip_address("2001:db8::1")])])
    await captive(stage)
    assert not stage.director.ruled.may_use(stage.key, "wlan0")
    led = {each[1]: each[3] for each in stage.asked() if each[0] == "destination"}
    assert led.pop(prefix) == "lte0"
    assert list(led) == ["2001:db8::1/128"], "another host on the way leads there as before"


def test_names_below_a_ruled_host_do_not_push_out_its_own_address() -> None:
    rules = rules_of(RuleRequest(host="cloud.example", never=("lte0",)))
    rules.told(told("cloud.example", "203.0.113.1"))
    for number in range(MOST_ADDRESSES + 1):
        rules.told(told(f"host{number}.cloud.example", str(ip_address(0xC6336400 + number))))
    assert rules.of(ip_address("203.0.113.1"), 443) == 1
    assert len(rules.rules[1].addresses) == MOST_ADDRESSES


async def test_a_rule_for_a_captive_network_alone_leads_there(ruled: Stage) -> None:
    await captive(ruled)
    assert ruled.asked()[0] == ("destination", f"{ruled.server}/32", None, "wlan0")
    (told,) = ruled.director.ruled.messages({})
    assert told.why == "Your rule 1: never metered. wlan0 carries nothing but the log-in until then"
    await captive(ruled, NetworkLife.DEAD)
    (told,) = ruled.director.ruled.messages({})
    assert told.network is None
    assert told.why.endswith("wlan0 does not answer, so connections are refused")


def test_only_so_many_hosts_are_a_portals() -> None:
    rules = UserRules()
    rules.portals([("wlan0", [ip_address(0xC6336400 + n) for n in range(MOST + 9)])])
    assert len(rules.rules) == MOST
    assert max(rules.rules) < 0


async def test_a_host_is_explained_by_the_rule_that_applies(stage: Stage) -> None:
    """Of two rules the other one was named; of a refused host an old decision was shown."""
    ruled = stage.director.ruled
    ruled.rules.add(RuleRequest(host="updates.example", never=("metered",)))
    ruled.rules.add(RuleRequest(host="updates.example", port=22, only=("lte0",)))
    ruled.rules.add(RuleRequest(host="mirror.updates.example", only=("eth7",)))
    ruled.rules.add(RuleRequest(host="198.51.100.0/24", only=("lte0",)))
    ruled.rules.told(told("updates.example", "198.51.100.7"))
    await ruled.reconsider(stage.context())

    def rule(asked: str) -> str | None:
        decision = ruled.about(asked)
        return None if decision is None else decision.reason.partition(":")[0]

    assert rule("updates.example") == rule("dl.updates.example:443") == "Your rule 1"
    assert (
        rule("Updates.Example.:22")
        == rule("updates.example:22")
        == rule("198.51.100.7:22")
        == "Your rule 2"
    )
    assert rule("198.51.100.7") == rule("198.51.100.7:443") == "Your rule 1"
    assert rule("198.51.100.8:443") == "Your rule 4"
    assert rule("other.example") is rule("203.0.113.1") is rule("[2001:db8::1]:443") is None
    refused = ruled.about("eu.mirror.updates.example")
    assert refused is not None
    assert "so connections are refused" in refused.reason
