import pytest

from cedos.model import Strategy, StrategyKind
from cedos.selector.decision.case import Case, assign, pairs, role_strategy, strategies
from cedos.selector.decision.decide import decide
from predictors.base import Distribution

ALL = frozenset(StrategyKind)


def names(host, networks, dead=()):
    made = [host.network(name, kind, metered=metered) for name, kind, metered in networks]
    roles = assign(made, dead)
    return tuple(each and each.name for each in (roles.wifi, roles.cellular))


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        ([], (None, None)),
        ([("wlan0", "wifi", False)], ("wlan0", None)),
        ([("wlan0", "wifi", True)], ("wlan0", None)),
        ([("lte0", "cellular", True)], (None, "lte0")),
        ([("lte0", "cellular", False)], (None, "lte0")),
        ([("lte0", "cellular", True), ("wlan0", "wifi", False)], ("wlan0", "lte0")),
        ([("lte0", "cellular", False), ("wlan0", "wifi", True)], ("wlan0", "lte0")),
        ([("eth0", "ethernet", False), ("lte0", "cellular", True)], ("eth0", "lte0")),
        ([("wlan1", "wifi", False), ("wlan0", "wifi", False)], ("wlan0", "wlan1")),
        ([("wlan0", "wifi", True), ("wlan1", "wifi", False)], ("wlan1", "wlan0")),
        ([("lte1", "cellular", True), ("lte0", "cellular", True)], ("lte0", "lte1")),
        ([("lte0", "cellular", True), ("lte1", "cellular", False)], ("lte1", "lte0")),
        (
            [("eth0", "ethernet", False), ("wlan0", "wifi", False), ("lte0", "cellular", True)],
            ("eth0", "lte0"),
        ),
        (
            [("wlan0", "wifi", False), ("lte1", "cellular", True), ("lte0", "cellular", False)],
            ("wlan0", "lte0"),
        ),
    ],
)
def test_who_plays_what(host, networks, expected):
    assert names(host, networks) == expected
    assert names(host, networks[::-1]) == expected


def test_a_living_third_network_replaces_a_dead_one(host):
    three = [("eth0", "ethernet", False), ("wlan0", "wifi", False), ("lte0", "cellular", True)]
    assert names(host, three, dead=("eth0",)) == ("wlan0", "lte0")
    assert names(host, three, dead=("lte0",)) == ("eth0", "wlan0")
    two = [("wlan0", "wifi", False), ("lte0", "cellular", True)]
    assert names(host, two, dead=("wlan0",)) == ("wlan0", "lte0")
    assert names(host, two, dead=("lte0",)) == ("wlan0", "lte0")


def test_the_strategies_of_two_networks(host):
    roles = assign(host.both)
    found = dict(strategies(roles, ALL))
    assert {name: str(strategy) for name, strategy in found.items()} == {
        "wifi": "single(wlan0)",
        "cellular": "single(lte0)",
        "mptcp_wifi": "mptcp(wlan0, lte0)",
        "mptcp_cellular": "mptcp(lte0, wlan0)",
        "redundant": "redundant(wlan0, lte0)",
    }
    assert "redundant" not in dict(strategies(roles))
    assert list(dict(strategies(roles, {StrategyKind.MPTCP}))) == ["mptcp_wifi", "mptcp_cellular"]
    for name, strategy in found.items():
        assert role_strategy(strategy, roles) == name


def test_what_is_dead_may_join_later(host):
    both = assign(host.both)

    def open_to(kinds, *dead):
        found = strategies(both, kinds, dead=dead, awaited={"wlan0", "lte0"})
        return [(name, str(strategy)) for name, strategy in found]

    later = {StrategyKind.SINGLE, StrategyKind.MPTCP, StrategyKind.REDUNDANT}
    assert open_to(later, "wlan0") == [
        ("cellular", "single(lte0)"),
        ("mptcp_cellular", "mptcp(lte0, wlan0)"),
    ]
    assert open_to(later, "lte0") == [
        ("wifi", "single(wlan0)"),
        ("mptcp_wifi", "mptcp(wlan0, lte0)"),
    ]
    assert open_to({StrategyKind.SINGLE}, "lte0") == [("wifi", "single(wlan0)")]
    assert len(open_to(later, "wlan0", "lte0")) == 5
    assert len(open_to(later)) == 5


def test_a_strategy_of_others_has_no_name(host):
    roles = assign(host.both)
    reverse = Strategy(StrategyKind.REDUNDANT, ("lte0", "wlan0"))
    assert role_strategy(reverse, roles) == "redundant"
    for strange in (Strategy(StrategyKind.DEFER, ()), Strategy(StrategyKind.SINGLE, ("eth9",))):
        with pytest.raises(ValueError, match="none of the strategies"):
            role_strategy(strange, roles)


def test_any_number_of_networks_plays_in_pairs(host):
    made = [
        host.network("eth0", "ethernet"),
        host.network("wlan0", "wifi"),
        host.network("lte0", "cellular", metered=True),
    ]

    def who(dead=()):
        return [
            tuple(each and each.name for each in (roles.wifi, roles.cellular))
            for roles in pairs(made, dead)
        ]

    assert who() == [("eth0", "lte0"), ("eth0", "wlan0"), ("wlan0", "lte0")]
    assert who(dead=("eth0",)) == [("wlan0", "lte0")]
    assert len(who(dead=("eth0", "wlan0"))) == 1
    assert len(who(dead=("eth0", "wlan0", "lte0"))) == 3, "where none lives, all may try"
    assert pairs(made[:2]) == (assign(made[:2]),)


class _ByRtt:
    """Predictors for which a network's round trip is all that counts."""

    features = ("size_bytes", "wifi_rtt_s", "cellular_rtt_s")

    def predict(self, features, /):
        rtt_s = {role: features[f"{role}_rtt_s"] for role in ("wifi", "cellular")}
        both_s = 0.9 * min(rtt_s.values())
        times_s = {**rtt_s, "mptcp_wifi": both_s + 0.1 * rtt_s["wifi"], "mptcp_cellular": 1.0}
        return {name: Distribution((time_s,)) for name, time_s in times_s.items()}


@pytest.mark.parametrize("best", ["wlan0", "wlan1", "lte0"])
def test_the_best_of_three_networks_is_found(host, best):
    made = [host.network("wlan0"), host.network("wlan1"), host.network("lte0", "cellular")]
    rtts_s = {network.name: 0.2 for network in made} | {best: 0.05}
    context = host.context(**{f"{name}_rtt_s": rtt_s for name, rtt_s in rtts_s.items()})
    decision = decide(Case(host.transfer(), context, made, _ByRtt(), number=1, made_unix_s=0.0))
    assert decision.choice.networks == (best,)
    strategies_seen = [each.strategy for each in decision.evaluations]
    assert len(set(strategies_seen)) == 3 + 6, "each alone, each ordered pair"
    assert [len(each.networks) for each in strategies_seen] == [1] * 3 + [2] * 6, "simplest first"
