""""""

from dataclasses import replace

import pytest
from kit.models import shipped

from cedos.model import Attachment, Context, Direction, Indicator, Strategy, StrategyKind
from cedos.selector.decision.case import Case, assign, pairs, role_strategy, strategies
from cedos.selector.decision.decide import decide
from cedos.selector.decision.features import features, rates_of
from predictors.base import Distribution
from predictors.inputs import LARGEST_AGE_S


def test_a_model_gets_what_it_asks_for(host):
    context = host.context(age_s=7.0, wlan0_rtt_s=0.02, wlan0_rssi_dbm=-60.0, wlan0_past1_bps=1e6)
    asked = ("wifi_rtt_s", "wifi_rate_age_s", "cellular_rate_age_s")
    found = features(context, host.transfer(1, "up"), assign(host.both), asked)
    assert found == {
        "size_bytes": 1.0,
        "direction_up": 1.0,
        "wifi_rtt_s": 0.02,
        "wifi_rate_age_s": 7.0,
    }


def test_past_rates_are_those_in_the_transfers_direction(host):
    context = host.context(
        wlan0_past1_bps=9e6, wlan0_past1_up_bps=2e6, lte0_past1_bps=5e6, lte0_rtt_s=0.05
    )
    roles = assign(host.both)
    columns = ("wifi_past1_bps", "cellular_past1_bps", "cellular_rtt_s")
    down = features(context, host.transfer(1), roles, columns)
    up = features(context, host.transfer(1, "up"), roles, columns)
    assert (down["wifi_past1_bps"], up["wifi_past1_bps"]) == (9e6, 2e6)
    assert up["cellular_past1_bps"] == 5e6, "nothing better is known"
    assert up.keys() == down.keys()


def test_the_hosts_speed_is_the_newest_that_any_network_knows(host):
    context = Context(
        10.0,
        {"wlan0": {"speed_mps": Indicator(1.0, 5.0)}, "lte0": {"speed_mps": Indicator(9.0, 8.0)}},
    )
    found = features(context, host.transfer(), assign(host.both), ("speed_mps",))
    assert found == {"size_bytes": 100_000.0, "direction_up": 0.0, "speed_mps": 9.0}


NOW_S = 1000.0


DOWN, UP = Direction.DOWN, Direction.UP


def context(wifi, cellular):
    """(rate in bit/s, its age in s) of both networks; round trips are fresh."""
    return Context(
        NOW_S,
        {
            name: {
                "past5_bps": Indicator(rate_bps, NOW_S - age_s),
                "rtt_s": Indicator(0.03, NOW_S - 0.2),
            }
            for name, (rate_bps, age_s) in (("wlan0", wifi), ("lte0", cellular))
        },
    )


def told(known, network, **more):
    """With indicators more of a network: (value, age in s)."""
    found = {name: Indicator(value, NOW_S - age_s) for name, (value, age_s) in more.items()}
    return replace(known, networks=known.networks | {network: {**known.networks[network], **found}})


@pytest.fixture
def roles(host):
    return assign(host.both)


def test_rates_are_handed_on_as_they_were_measured_old_ones_with_their_age(roles):
    assert dict(rates_of(context((1e6, 0.4), (2e7, 12.0)), roles, DOWN)) == {
        "wifi_past5_bps": 1e6,
        "cellular_past5_bps": 2e7,
        "cellular_rate_age_s": 12.0,
    }


def test_what_was_measured_at_another_access_point_is_as_old_as_can_be(roles):
    seen = context((1e6, 0.4), (2e7, 0.4))
    seen = told(seen, "wlan0", recent_s=(0.2, 0.4), recent_bytes=(3000.0, 0.4))
    here = replace(seen, attachments={"wlan0": Attachment("aa:bb", "cafe", NOW_S - 60.0)})
    assert "wifi_rate_age_s" not in dict(rates_of(here, roles, DOWN))
    moved = replace(seen, attachments={"wlan0": Attachment("cc:dd", "cafe", NOW_S - 0.1)})
    found = dict(rates_of(moved, roles, DOWN))
    assert found["wifi_rate_age_s"] == LARGEST_AGE_S
    assert "wifi_recent_s" not in found
    assert "cellular_rate_age_s" not in found


def test_what_was_delivered_at_least_raises_an_old_rate_and_lowers_none(roles):
    old = context((2e7, 0.5), (1e6, 20.0))
    more = dict(rates_of(told(old, "lte0", delivery_down_bps=(3e7, 4.0)), roles, DOWN))
    assert (more["cellular_past5_bps"], more["cellular_rate_age_s"]) == (3e7, 4.0)
    little = told(old, "lte0", delivery_down_bps=(1e5, 0.0))
    assert dict(rates_of(little, roles, DOWN)) == dict(rates_of(old, roles, DOWN))
    # A fresh rate is known better; an uplink's delivery says nothing of the downlink.
    fresh = told(old, "wlan0", delivery_down_bps=(9e7, 0.0), delivery_up_bps=(9e7, 0.0))
    for direction in (DOWN, UP):
        assert dict(rates_of(fresh, roles, direction)) == dict(rates_of(old, roles, DOWN))
    upwards = told(old, "lte0", delivery_up_bps=(3e7, 0.0))
    assert dict(rates_of(upwards, roles, DOWN)) == dict(rates_of(old, roles, DOWN))
    assert dict(rates_of(upwards, roles, UP))["cellular_past5_bps"] == 3e7


def test_an_uplink_fades_with_the_downlink_that_was_seen_since(roles):
    seen = told(context((5e5, 0.5), (2e7, 0.5)), "wlan0", past5_up_bps=(8e6, 5.0))
    assert dict(rates_of(seen, roles, UP))["wifi_past5_bps"] == 5e5
    # A downlink that is better than the uplink was says nothing of it, and neither does an older one.
    for rate_bps, age_s in ((5e7, 0.5), (5e5, 6.0)):
        other = told(context((rate_bps, age_s), (2e7, 0.5)), "wlan0", past5_up_bps=(8e6, 5.0))
        found = dict(rates_of(other, roles, UP))
        assert (found["wifi_past5_bps"], found["wifi_rate_age_s"]) == (8e6, 5.0)


def test_of_a_network_never_filled_it_is_known_what_it_delivered_if_that_is_much(roles):
    known = Context(NOW_S, {"lte0": {"rtt_s": Indicator(0.03, NOW_S)}})
    assert dict(rates_of(told(known, "lte0", delivery_down_bps=(1e6, 0.0)), roles, DOWN)) == {}
    much = told(known, "lte0", delivery_down_bps=(5e7, 0.0))
    assert dict(rates_of(much, roles, DOWN))["cellular_past1_bps"] == 5e7
    elsewhere = replace(much, attachments={"lte0": Attachment("aa", "here", NOW_S + 0.1)})
    assert dict(rates_of(elsewhere, roles, DOWN)) == {}


def expected_s(host, known, network="wlan0"):
    """Mean and interval of 4.5 MB over a network, by the shipped predictors."""
    case = Case(host.transfer(4_500_000), known, host.both, shipped())
    of = {str(each.strategy): each for each in decide(case).evaluations}[f"single({network})"]
    return of.time_s, of.time_low_s, of.time_high_s


def test_an_old_rate_is_uncertain_and_not_slow(host):
    """42 Mbit/s of 12 s ago on a network that answers pings as ever: 20 s were expected of it once."""
    wide = []
    for age_s in (0.5, 12.0, 60.0):
        known = Context(
            NOW_S,
            {
                name: {
                    **{f"past{span}_bps": Indicator(bps, NOW_S - age) for span in (1, 5, 10)},
                    "rtt_s": Indicator(0.022, NOW_S - 0.2),
                    "rtt_min_s": Indicator(0.021, NOW_S - 0.2),
                    "ping_loss": Indicator(0.0, NOW_S - 0.2),
                    "available": Indicator(1.0, NOW_S - 0.2),
                }
                for name, bps, age in (("wlan0", 42e6, age_s), ("lte0", 16e6, 0.5))
            },
        )
        mean_s, low_s, high_s = expected_s(host, known)
        assert mean_s < 4.0
        wide.append(high_s / low_s)
    assert wide[0] < min(wide[1:])


def test_small_transfers_that_take_long_are_believed(host):
    known = context((2e7, 10.0), (1e7, 0.5))
    fine = told(known, "wlan0", recent_s=(0.09, 0.2), recent_bytes=(20_000.0, 0.2))
    late = told(known, "wlan0", recent_s=(3.0, 0.2), recent_bytes=(20_000.0, 0.2))
    assert expected_s(host, late)[0] > 1.5 * expected_s(host, fine)[0]


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
