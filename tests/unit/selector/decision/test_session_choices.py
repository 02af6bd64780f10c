"""Direct or by the gateway: one network or two, near or far, shells and pages."""

from dataclasses import replace

import pytest

from cedos.model import Context, Decision, Evaluation, Indicator, Strategy, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.sessions import AGAIN_S, LOOK_S, Detour, Looks, weigh

KINDS = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP, StrategyKind.REDUNDANT})


WEB, SHELL = 443, 22


def route(host, networks, rtt_s, port=WEB, **times):
    times = times or {"wifi": 0.2, "cellular": 0.4, "mptcp_wifi": 0.2, "mptcp_cellular": 0.4}
    context = host.context(**{f"{each.name}_rtt_s": 0.02 for each in networks})
    case = Case(host.transfer(30_000), context, networks, host.oracle(**times), kinds=KINDS)
    return weigh(decide(case), networks, Detour(rtt_s, port))


@pytest.mark.parametrize(
    ("names", "rtt_s", "port", "direct"),
    [
        ("wlan0 lte0", 0.02, WEB, False),
        ("wlan0 lte0", 0.30, WEB, False),
        ("wlan0 lte0", 0.60, WEB, True),  # a gateway on the other side of the world
        ("wlan0 lte0", 0.60, SHELL, False),
        ("wlan0", 0.02, WEB, False),  # it may have another address in a minute
        ("wlan0", 0.20, WEB, True),
        ("wlan0", 0.20, SHELL, False),
        ("eth0", 0.02, WEB, True),  # a cable alone
        ("eth0", 0.02, SHELL, False),
    ],
)
def test_where_it_goes(host, names, rtt_s, port, direct):
    known = {"wlan0": host.wlan, "lte0": host.lte, "eth0": host.network("eth0", "ethernet")}
    found = route(host, tuple(known[name] for name in names.split()), rtt_s, port)
    assert found.direct is direct, found.reason


def test_what_both_networks_gain_pays_for_a_long_way(host):
    times = {"wifi": 9.0, "cellular": 9.5, "mptcp_wifi": 5.0, "mptcp_cellular": 5.2}
    found = route(host, host.both, 0.6, **times)
    assert not found.direct
    assert "using several networks saves 4.00 s" in found.reason


def test_it_is_said_why(host):
    found = route(host, (host.network("eth0", "ethernet"),), 0.04)
    assert found.reason == (
        "direct: the way through the gateway takes 45 ms more and is worth 3 ms, and no other"
        " network is there to go on over"
    )


def test_without_a_usable_network_nothing_is_judged(host):
    down = host.network("wlan0", up=False)
    assert not route(host, (down,), 5.0).direct


SINGLE, MPTCP = StrategyKind.SINGLE, StrategyKind.MPTCP


LTE = Strategy(SINGLE, ("lte0",))


def evaluation(name, time_s, low_s):
    return Evaluation(Strategy(SINGLE, (name,)), time_s, low_s, 2 * time_s, 1.0, 0.0, time_s)


def decision(
    host, *, at_s = 100.0, age_s = 9.0, wifi_low_s = 6.0,
    lte_s = 6.0, deadline_s = None, silence_s = 0.0
):  # fmt: skip
    known = {"silence_s": Indicator(silence_s, at_s)}
    if age_s is not None:
        known["past1_bps"] = Indicator(4e6, at_s - age_s)
    transfer = replace(host.transfer(16_000_000), deadline_s=deadline_s)
    evaluations = (evaluation("lte0", lte_s, lte_s), evaluation("wlan0", 35.0, wifi_low_s))
    context = Context(at_s, {"wlan0": known, "lte0": {}})
    return Decision(1, 0.0, transfer, context, evaluations, LTE, "balanced", "lte0 is faster")


def beside(looks, host, made, **wifi):
    networks = [host.lte, replace(host.wlan, **wifi)]
    return looks.add_look(made, networks).choice.networks


def test_a_network_of_which_only_an_old_rate_is_known_joins(host):
    found = Looks().add_look(decision(host), [host.lte, host.wlan])
    assert found.choice == Strategy(MPTCP, ("lte0", "wlan0"))
    assert found.reason.endswith(
        "wlan0 joins for a moment to show what it does: its rate is 9.00 s old"
    )
    unknown = Looks().add_look(decision(host, age_s=None), [host.lte, host.wlan])
    assert unknown.reason.endswith("its rate is unknown")


@pytest.mark.parametrize(
    ("known", "wifi"),
    [
        ({"age_s": 4.0}, {}), ({"wifi_low_s": 33.0}, {}), ({"lte_s": 1.0}, {}),
        ({"deadline_s": 60.0}, {}), ({"silence_s": 0.5}, {}), ({}, {"metered": True}),
        ({}, {"up": False}),
    ],
    ids=["fresh", "surely slow", "soon over", "deadline", "silent", "metered", "down"],
)  # fmt: skip
def test_it_does_not_where_that_is_not_worth_it(host, known, wifi):
    assert beside(Looks(), host, decision(host, **known), **wifi) == ("lte0",)


def test_a_look_lasts_a_moment_and_is_not_repeated_at_once(host):
    looks = Looks()

    def at(at_s, **known):
        return "wlan0" in beside(looks, host, decision(host, at_s=at_s, **known))

    assert at(100.0)
    assert at(100.0 + LOOK_S, age_s=0.1), "its rate is new, and what is large goes on to look"
    assert not at(100.0 + LOOK_S, lte_s=0.1), "what is small does not"
    assert not at(100.1 + LOOK_S, age_s=LOOK_S + 6.0)
    assert not at(99.9 + AGAIN_S, age_s=AGAIN_S + 6.0)
    assert at(100.0 + AGAIN_S, age_s=AGAIN_S + 6.0)


def test_what_was_chosen_already_needs_no_look(host):
    both = replace(decision(host), choice=Strategy(MPTCP, ("lte0", "wlan0")))
    assert Looks().add_look(both, [host.lte, host.wlan]) is both
    twice = replace(decision(host), choice=Strategy(StrategyKind.REDUNDANT, ("lte0", "wlan0")))
    assert Looks().add_look(twice, [host.lte, host.wlan]) is twice
