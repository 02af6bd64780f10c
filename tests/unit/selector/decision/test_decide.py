"""The methods of taking uncertainty, in the daemon's own decision: when each sends twice, and says so."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Context, NetworkKind, NetworkLife, NetworkVerdict, Strategy, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide
from cedos.selector.decision.evaluate import second_share
from cedos.selector.energy import DELPHI
from cedos.selector.objective import MaxS, MaxSPerE, Outcome, WeightedCost

ALL = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP, StrategyKind.REDUNDANT})


RECORD = {"number": 7, "made_unix_s": 1.7e9}


NOTHING = Context(1000.0, {})


EQUAL = {"wifi": 1.0, "cellular": 1.0, "mptcp_wifi": 1.0, "mptcp_cellular": 1.0}


seconds = st.floats(0.01, 100)


samples = st.lists(seconds, min_size=1, max_size=20)


four_samples = st.fixed_dictionaries(dict.fromkeys(EQUAL, samples))


objectives = st.one_of(
    st.just(MaxS()),
    st.builds(WeightedCost, st.floats(0, 10), st.floats(0, 1e-5)),
    st.builds(MaxSPerE, st.floats(0.1, 2), st.floats(0, 2), st.floats(0, 2)),
)


def choose(host, model, *arguments, **options):
    decision = decide(
        Case(host.transfer(), NOTHING, host.both, model, *arguments, **RECORD, **options)
    )
    return str(decision.choice)


@pytest.mark.parametrize(
    ("fastest", "expected"),
    [
        ("wifi", "single(wlan0)"),
        ("cellular", "single(lte0)"),
        ("mptcp_wifi", "mptcp(wlan0, lte0)"),
        ("mptcp_cellular", "mptcp(lte0, wlan0)"),
    ],
)
def test_the_fastest_wins(host, fastest, expected):
    assert choose(host, host.oracle(**{**EQUAL, fastest: 0.5})) == expected


def test_a_tie_goes_to_the_simpler_strategy(host):
    assert choose(host, host.oracle(**EQUAL), kinds=ALL) == "single(wlan0)"


@pytest.mark.parametrize(
    ("deadline_s", "expected"),
    [
        (None, "single(lte0)"),
        (60.0, "single(wlan0)"),  # both are in time: the one that spends least
        (5.0, "single(lte0)"),
        (0.5, "single(lte0)"),  # neither is: the sooner one
    ],
)
@pytest.mark.parametrize("objective", [MaxS(), WeightedCost(0.0, 2e-7)])
def test_sooner_than_wanted_saves_nothing(host, objective, deadline_s, expected):
    model = host.oracle(wifi=9.0, cellular=2.0)
    transfer = replace(host.transfer(3_000_000), deadline_s=deadline_s)
    decision = decide(Case(transfer, NOTHING, host.both, model, objective, **RECORD))
    assert str(decision.choice) == expected
    said = {
        None: "",
        60.0: "sooner saves nothing",
        5.0: "sooner saves nothing",
        0.5: "which is unlikely",
    }
    assert said[deadline_s] in decision.reason


def test_a_decision_is_a_record(host):
    context = host.context(wlan0_rtt_s=0.018, lte0_rtt_s=0.05)
    transfer = host.transfer(3000)
    model = host.oracle(**EQUAL)
    decision = decide(Case(transfer, context, host.both, model, number=7, made_unix_s=1.7e9))
    assert (decision.number, decision.made_unix_s) == (7, 1.7e9)
    assert decision.transfer is transfer
    assert decision.context is context
    assert decision.objective == "max-s"
    assert [str(each.strategy) for each in decision.evaluations] == [
        "single(wlan0)",
        "single(lte0)",
        "mptcp(wlan0, lte0)",
        "mptcp(lte0, wlan0)",
    ]
    assert model.asked == [
        {"size_bytes": 3000.0, "direction_up": 0.0, "wifi_rtt_s": 0.018, "cellular_rtt_s": 0.05}
    ]


def test_what_strategies_use(host):
    size = 1_000_000
    model = host.oracle(wifi=10.0, cellular=30.0, mptcp_wifi=7.5, mptcp_cellular=7.5)
    decision = decide(Case(host.transfer(size), NOTHING, host.both, model, kinds=ALL, **RECORD))
    wifi, cellular, mptcp_wifi, mptcp_cellular, redundant = decision.evaluations
    assert wifi.energy_j == pytest.approx(0.428 * 10)
    assert cellular.energy_j == pytest.approx(1.674 * 30 + 6.5)
    assert mptcp_wifi.energy_j == pytest.approx((0.428 + 1.674) * 7.5 + 6.5)
    assert redundant.energy_j == pytest.approx(wifi.energy_j + cellular.energy_j)
    assert redundant.time_s == 10.0
    assert wifi.metered_bytes == 0
    assert cellular.metered_bytes == redundant.metered_bytes == size
    assert mptcp_wifi.metered_bytes == pytest.approx(0.25 * size, rel=0.05)
    assert mptcp_cellular.metered_bytes == pytest.approx(0.25 * size, rel=0.10)
    assert mptcp_cellular.metered_bytes > mptcp_wifi.metered_bytes, "Wi-Fi joins later"


def test_energy_goes_by_the_radio_not_by_the_part_it_plays(host):
    phones = (
        host.network("lte0", "cellular", metered=True),
        host.network("lte1", "cellular", metered=True),
    )
    decision = decide(
        Case(host.transfer(), NOTHING, phones, host.oracle(**EQUAL), kinds=ALL, **RECORD)
    )
    assert [each.energy_j for each in decision.evaluations] == pytest.approx(
        [1.674 + 6.5] * 2 + [2 * (1.674 + 6.5)] * 3
    )
    assert all(each.metered_bytes == 100_000 or each.strategy.kind == StrategyKind.REDUNDANT
               for each in decision.evaluations)  # fmt: skip


def test_max_s_and_max_s_per_e_differ_as_in_the_paper(host):
    model = host.oracle(wifi=2.0, cellular=1.0, mptcp_wifi=0.9, mptcp_cellular=0.8)
    assert choose(host, model, MaxS()) == "mptcp(lte0, wlan0)"
    assert choose(host, model, MaxSPerE()) == "single(wlan0)"
    slow_wifi = host.oracle(wifi=40.0, cellular=1.0, mptcp_wifi=0.9, mptcp_cellular=0.8)
    assert choose(host, slow_wifi, MaxSPerE()) != "single(wlan0)"


def verdict(host, which, life):
    told = NetworkVerdict(life, "no answer to pings", host.at_s - 14.0)
    return replace(host.context(), verdicts={which: told})


@pytest.mark.parametrize("which", ["wlan0", "lte0"])
def test_a_dead_network_loses_whatever_the_model_says(host, which):
    other = {"wlan0": "lte0", "lte0": "wlan0"}[which]
    slow_other = {"wlan0": "cellular", "lte0": "wifi"}[which]
    model = host.oracle(**{**dict.fromkeys(EQUAL, 0.001), slow_other: 100.0})
    context = verdict(host, which, NetworkLife.DEAD)
    decision = decide(Case(host.transfer(), context, host.both, model, kinds=ALL, **RECORD))
    evaluated = [str(each.strategy) for each in decision.evaluations]
    assert evaluated == [f"single({other})", f"mptcp({other}, {which})"]
    assert str(decision.choice) == evaluated[1], "it joins when it lives again"
    assert f"{which}: no answer to pings for 14 s" in decision.reason
    assert "joins as soon as it answers again" in decision.reason
    only_single = decide(
        Case(host.transfer(), context, host.both, model, kinds={StrategyKind.SINGLE}, **RECORD)
    )
    assert str(only_single.choice) == f"single({other})"
    assert "joins" not in only_single.reason


def test_where_all_are_dead_all_may_try(host):
    context = verdict(host, "wlan0", NetworkLife.DEAD)
    context = replace(context, networks=host.context(lte0_available=0.0).networks)
    model = host.oracle(**{**EQUAL, "mptcp_cellular": 0.5})
    decision = decide(Case(host.transfer(), context, host.both, model, **RECORD))
    assert str(decision.choice) == "mptcp(lte0, wlan0)"
    assert (
        decision.reason
        == "No network works: wlan0: no answer to pings for 14 s; lte0 was not available 0.4 s ago"
    )


def test_a_dead_network_beside_a_barred_one_is_told_in_one_sentence(host):
    context = verdict(host, "wlan0", NetworkLife.DEAD)
    barred = {
        "lte0": 'Programs are blocked on lte0 until 23:00, because the budget "data" is used up'
    }
    networks = (host.wlan, replace(host.lte, up=False))
    case = Case(host.transfer(), context, networks, host.oracle(**EQUAL), barred=barred, **RECORD)
    assert decide(case).reason == (
        "No network works: wlan0: no answer to pings for 14 s; programs are blocked on lte0 until 23:00,"
        ' because the budget "data" is used up'
    )


def test_no_network_defers(host):
    decision = decide(
        Case(
            host.transfer(),
            NOTHING,
            (replace(host.wlan, up=False),),
            host.oracle(**EQUAL),
            **RECORD,
        )
    )
    assert decision.choice == Strategy(StrategyKind.DEFER, ())
    assert decision.evaluations == ()
    assert decision.reason == "no network is usable"


def test_only_what_can_be_carried_out_is_considered(host):
    model = host.oracle(**{**EQUAL, "mptcp_wifi": 0.1})
    assert choose(host, model, kinds={StrategyKind.SINGLE}) == "single(wlan0)"
    assert choose(host, model, kinds={StrategyKind.MPTCP}) == "mptcp(wlan0, lte0)"


def test_redundancy_pays_where_both_are_uncertain(host):
    gamble = [0.1] * 9 + [10.0]
    model = host.oracle(wifi=gamble, cellular=gamble, mptcp_wifi=1.0, mptcp_cellular=1.0)
    decision = decide(Case(host.transfer(), NOTHING, host.both, model, kinds=ALL, **RECORD))
    assert decision.choice == Strategy(StrategyKind.REDUNDANT, ("wlan0", "lte0"))
    assert decision.evaluations[-1].time_s == pytest.approx(0.01 * 10 + 0.99 * 0.1)
    assert choose(host, model) != "redundant(wlan0, lte0)", "only where it is asked for"


@given(four_samples, objectives, st.sampled_from(["down", "up"]), st.integers(1, 10**8))
def test_the_choice_is_that_of_brute_force(host, times, objective, direction, size):
    """Every strategy by hand: mean time, power times time, tail; then the least cost.

    Where ratios count, times are geometric means.
    """
    decision = decide(
        Case(
            host.transfer(size, direction),
            NOTHING,
            host.both,
            host.oracle(**times),
            objective,
            **RECORD,
        )
    )
    radios = {"wifi": DELPHI.radios[NetworkKind.WIFI], "lte": DELPHI.radios[NetworkKind.CELLULAR]}
    watts = {name: each.send_w if direction == "up" else each.receive_w
             for name, each in radios.items()}  # fmt: skip
    costs = []
    for name, evaluation in zip(EQUAL, decision.evaluations, strict=True):
        mean_s = sum(times[name]) / len(times[name])
        used = {"wifi": ["wifi"], "cellular": ["lte"]}.get(name, ["wifi", "lte"])
        energy_j = sum(watts[radio] * mean_s + radios[radio].tail_j for radio in used)
        assert evaluation.time_s == pytest.approx(mean_s)
        assert evaluation.energy_j == pytest.approx(energy_j)
        metered = evaluation.metered_bytes
        money = 0.01 * metered / 1e6
        if objective.relative:
            usual_s = math.prod(times[name]) ** (1 / len(times[name]))
            energy_j = sum(watts[radio] * usual_s + radios[radio].tail_j for radio in used)
            mean_s = usual_s
        costs.append(objective.cost(Outcome(mean_s, energy_j, metered, size, money)))
    chosen = [each.strategy for each in decision.evaluations].index(decision.choice)
    assert costs[chosen] == pytest.approx(min(costs))


HEDGED = frozenset({StrategyKind.SINGLE, StrategyKind.REDUNDANT})


# Wi-Fi is usually faster, and sometimes hangs; cellular is a little slower and sure.
WIFI = (0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 2.0)


SURE = (0.4,) * 10


def test_what_is_not_certain_is_sent_twice_where_that_is_free(host):
    decision = decide(Case(
        host.transfer(3_000), Context(1000.0, {}), host.both, host.oracle(wifi=WIFI, cellular=SURE),
        WeightedCost(0.0), number=1, made_unix_s=0.0, kinds=HEDGED,
    ))  # fmt: skip
    assert decision.choice.kind == StrategyKind.REDUNDANT


times = st.floats(0.001, 1000)


@given(times, times, times, st.floats(0, 1))
def test_a_share_is_a_share(primary_s, second_s, both_s, join_s):
    assert 0.0 <= second_share(primary_s, second_s, both_s, join_s) <= 1.0


@given(times, times, times, st.floats(0, 1), st.floats(0, 1))
def test_a_later_join_carries_less(primary_s, second_s, both_s, a_s, b_s):
    soon_s, late_s = sorted((a_s, b_s))
    soon = second_share(primary_s, second_s, both_s, soon_s)
    assert second_share(primary_s, second_s, both_s, late_s) <= soon
