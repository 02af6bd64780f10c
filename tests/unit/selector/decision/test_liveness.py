"""Barred networks: they count as down, and nothing else changes."""

from dataclasses import replace

import pytest

from cedos.model import NetworkKind, NetworkLife, NetworkVerdict, Strategy, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide, decide_again
from cedos.selector.decision.liveness import format_age, is_captive, longer_s, why_dead
from cedos.selector.decision.living import Living, rest_of


@pytest.mark.parametrize(
    ("life", "dead"),
    [
        (NetworkLife.UNKNOWN, False),
        (NetworkLife.ALIVE, False),
        (NetworkLife.SILENT, False),
        (NetworkLife.DEAD, True),
        (NetworkLife.CAPTIVE, True),
    ],
)
def test_a_verdict_says_what_is_dead(host, life, dead):
    context = host.context(wlan0_ping_loss=1.0, wlan0_available=float(not dead))
    context = replace(
        context, verdicts={"wlan0": NetworkVerdict(life, "no answer to pings", 88.0)}, at_s=90.0
    )
    words = {
        NetworkLife.DEAD: "wlan0: no answer to pings for 2 s",
        NetworkLife.CAPTIVE: "wlan0 has wanted a log-in for 2 s",
    }
    assert why_dead(context, "wlan0") == words.get(life)
    assert is_captive(context, "wlan0") is (life is NetworkLife.CAPTIVE)
    assert why_dead(context, "lte0") is None


@pytest.mark.parametrize(
    ("indicators", "dead"),
    [
        ({}, False),
        ({"wlan0_available": 1.0}, False),
        ({"wlan0_available": 0.0}, True),
        ({"wlan0_ping_loss": 0.9}, False),
        ({"lte0_available": 0.0}, False),
    ],
)
def test_in_a_data_set_what_is_not_available_is_dead(host, indicators, dead):
    why = why_dead(host.context(**indicators), "wlan0")
    assert why == ("wlan0 was not available 0.4 s ago" if dead else None)


@pytest.mark.parametrize(
    ("age_s", "words"),
    [
        (-0.1, "just now"),
        (0.04, "just now"),
        (0.4, "0.4 s ago"),
        (9.96, "10 s ago"),
        (60.0, "60 s ago"),
    ],
)
def test_how_long_ago_is_told_as_exactly_as_it_matters(age_s, words):
    assert format_age(age_s) == words


RECORD = {"number": 7, "made_unix_s": 1.7e9}


def test_the_rest_of_a_silence_is_what_was_measured():
    """The means in the module's text, within a quarter."""
    for kind, measured in (
        (NetworkKind.WIFI, {0.35: 5.63, 0.5: 6.02, 1.0: 7.95, 2.0: 11.4}),
        (NetworkKind.CELLULAR, {0.35: 0.88, 0.5: 0.96, 1.0: 1.17, 2.0: 1.44}),
    ):
        for silent_s, rest_s in measured.items():
            assert longer_s(kind, silent_s) == pytest.approx(rest_s, rel=0.25)


def test_pauses_of_its_own_keep_transfers_on_a_network(host):
    for pauses, chosen in (((), "single(lte0)"), ((0.6, 0.7, 0.6), "single(wlan0)")):
        context = replace(host.context(wlan0_silence_s=0.5), pauses={"wlan0": pauses})
        model = host.oracle(wifi=0.2, cellular=4.0)
        decision = decide(Case(host.transfer(), context, host.both, model, **RECORD))
        assert str(decision.choice) == chosen


@pytest.mark.parametrize(
    ("kind", "chosen"), [("wifi", "single(eth0)"), ("cellular", "single(usb0)")]
)
def test_a_network_is_silent_for_as_long_as_its_kind_whatever_part_it_plays(host, kind, chosen):
    """Beside Ethernet, Wi-Fi plays the predictors' cellular network; of two phones one plays Wi-Fi."""
    other, role = ("eth0", "cellular") if kind == "wifi" else ("usb1", "wifi")
    networks = [
        host.network("usb0", kind),
        host.network(other, "ethernet" if role == "cellular" else kind),
    ]
    context = host.context(usb0_silence_s=0.5)
    elsewhere = {"wifi": "cellular", "cellular": "wifi"}[role]
    model = host.oracle(**{role: 0.2, elsewhere: 3.0})
    decision = decide(Case(host.transfer(), context, networks, model, **RECORD))
    assert str(decision.choice) == chosen
    living = Living(Strategy(StrategyKind.SINGLE, ("usb0",)), 0.1, observed_bps=0.0, stalled_s=0.5)
    case = Case(rest_of(host.transfer(), 100_000), host.context(), networks, model, **RECORD)
    assert str(decide_again(case, living).choice) == chosen


def choice(host, which, silent_s, **times):
    context = host.context(**{f"{which}_silence_s": silent_s})
    decision = decide(Case(host.transfer(), context, host.both, host.oracle(**times), **RECORD))
    return str(decision.choice), decision.reason


def test_a_silent_wifi_is_left_and_a_silent_phone_waited_for(host):
    assert choice(host, "wlan0", 0.4, wifi=0.2, cellular=4.0)[0] == "single(lte0)"
    chosen, why = choice(host, "lte0", 0.4, wifi=4.0, cellular=0.2)
    assert chosen == "single(lte0)"
    assert "lte0: no reply for 0.4 s (probably another 1 s)" in why
    assert choice(host, "lte0", 0.4, wifi=0.5, cellular=0.2)[0] == "single(wlan0)"


@pytest.mark.parametrize(
    ("current", "stalled_s", "elsewhere_s", "moves"),
    [("wlan0", 0.5, 4.0, True), ("lte0", 0.5, 4.0, False), ("lte0", 5.0, 4.0, True)],
)
def test_a_stalled_flow_moves_where_waiting_costs_more(
    host, current, stalled_s, elsewhere_s, moves
):
    names = {"wlan0": ("wifi", "cellular"), "lte0": ("cellular", "wifi")}[current]
    model = host.oracle(**dict(zip(names, (0.5, elsewhere_s), strict=True)))
    living = Living(
        Strategy(StrategyKind.SINGLE, (current,)), 0.1, observed_bps=0.0, stalled_s=stalled_s
    )
    rest = rest_of(host.transfer(), 100_000)
    decision = decide_again(Case(rest, host.context(), host.both, model, **RECORD), living)
    assert (decision.choice.networks[0] != current) is moves


def test_mptcp_waits_for_the_path_that_it_begins_on(host):
    context = host.context(lte0_silence_s=0.5)
    model = host.oracle(wifi=9.0, cellular=9.0, mptcp_wifi=1.0, mptcp_cellular=1.0)
    decision = decide(Case(host.transfer(), context, host.both, model, **RECORD))
    assert str(decision.choice) == "mptcp(wlan0, lte0)"
    times = [each.time_s for each in decision.evaluations]
    assert times[2] == 1.0
    assert times[3] > 1.8


def test_where_every_network_is_silent_that_is_what_is_told(host):
    """Not that one of them is faster than the other."""
    context = host.context(wlan0_silence_s=1.1, lte0_silence_s=0.4, lte0_rtt_s=0.02)
    model = host.oracle(wifi=0.5, cellular=0.2)
    decision = decide(Case(host.transfer(), context, host.both, model, **RECORD))
    assert decision.reason == (
        "No network answers now: wlan0 silent for 1.1 s; lte0 silent for 0.4 s"
    )
    dead = NetworkVerdict(NetworkLife.DEAD, "no answer to pings", context.at_s - 14.0)
    context = replace(context, verdicts={"wlan0": dead})
    decision = decide(Case(host.transfer(), context, host.both, model, **RECORD))
    assert str(decision.choice) == "single(lte0)"
    assert decision.reason == (
        "No network answers now: wlan0: no answer to pings for 14 s; lte0 silent for 0.4 s"
    )
