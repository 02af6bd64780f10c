import re
from dataclasses import replace
from random import Random

import pytest

from cedos.model import Evaluation, Strategy, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide, decide_again
from cedos.selector.decision.living import Living
from cedos.selector.decision.reason import describe_move, describe_staying, label, seconds
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost

ALL = frozenset({StrategyKind.SINGLE, StrategyKind.MPTCP, StrategyKind.REDUNDANT})


def why(host, model, size_bytes=3000, **options):
    options.setdefault("context", host.context(wlan0_rtt_s=0.018, lte0_rtt_s=0.052))
    context = options.pop("context")
    decision = decide(
        Case(
            host.transfer(size_bytes),
            context,
            options.pop("networks", host.both),
            model,
            number=1,
            made_unix_s=0.0,
            **options,
        )
    )
    return decision.reason


def test_faster(host):
    model = host.oracle(wifi=0.21, cellular=0.44, mptcp_wifi=0.22, mptcp_cellular=0.45)
    assert why(host, model) == (
        "wlan0: 0.21 s expected for 3 kB, 2.1 times faster than lte0 (0.44 s). "
        "The last ping over wlan0 took 18 ms, 0.4 s ago"
    )


def test_both_networks_are_compared_with_the_better_one_alone(host):
    model = host.oracle(wifi=3.0, cellular=2.0, mptcp_wifi=1.5, mptcp_cellular=1.0)
    assert why(host, model).startswith(
        "lte0 + wlan0 (together): 1.00 s expected for 3 kB, 2.0 times faster than lte0 (2.00 s). "
    )


def test_a_large_transfer_is_explained_by_the_rate(host):
    model = host.oracle(wifi=3.0, cellular=9.0)
    context = host.context(wlan0_rtt_s=0.018, wlan0_past5_bps=12.3e6)
    assert why(host, model, 5_000_000, context=context).endswith(
        "wlan0 carried 12.3 Mbit/s 0.4 s ago"
    )


def test_slower_but_cheaper(host):
    model = host.oracle(wifi=0.5, cellular=0.2)
    reason = why(host, model, objective=MaxSPerE())
    assert reason.startswith(
        "wlan0: 0.50 s expected for 3 kB, slower than lte0 (0.20 s), but cheaper: no metered data instead"
        " of 3 kB and 0.21 J instead of 6.8 J"
    )
    model = host.oracle(wifi=60.0, cellular=1.0)
    reason = why(host, model, 2_000_000, objective=WeightedCost(s_per_metered_byte=1e-4))
    assert "cheaper: no metered data instead of 2 MB. " in reason
    assert reason.endswith("Prices: a metered megabyte as 100 s")


def test_the_prices_that_decided_are_told(host):
    model = host.oracle(wifi=0.5, cellular=0.2)
    balanced = WeightedCost(0.01, 2e-7, noticeable_s=0.1)
    assert why(host, model, objective=balanced).endswith(
        "Prices: a joule counts as 10 ms, a metered megabyte as 0.20 s, any use of a metered network as"
        " 0.10 s"
    )
    assert "Prices" not in why(host, model, objective=balanced, networks=[host.wlan])


@pytest.mark.parametrize(
    ("staying_s", "moving_s", "joules", "words"),
    [
        (10.0, 12.0, (9.0, 1.0), "but cheaper: 1 J instead of 9 J"),
        (10.0, 5.0, (1.0, 1.0), "That saves 50 %, and a move must save 10 %"),
    ],
)
def test_a_move_is_explained_by_what_decided(staying_s, moving_s, joules, words):
    one, other = (
        Evaluation(
            Strategy(StrategyKind.SINGLE, (name,)), time_s, time_s, time_s, energy_j, 0.0, 0.0
        )
        for name, time_s, energy_j in zip(
            ("wlan0", "lte0"), (staying_s, moving_s), joules, strict=True
        )
    )
    assert describe_move(other, one, 0.1).endswith(words)


def test_staying_is_explained_by_what_decided():
    slow, quick = (
        Evaluation(
            Strategy(StrategyKind.SINGLE, (name,)), time_s, time_s, time_s, 1.0, metered, 0.0
        )
        for name, time_s, metered in (("wlan0", 10.0, 0.0), ("lte0", 2.0, 5e6))
    )
    assert describe_staying(slow, quick, 0.1).endswith(
        "but cheaper: no metered data instead of 5 MB"
    )
    little = replace(slow, time_s=9.5)
    assert describe_staying(slow, little, 0.1).endswith(
        "That would save 5 %, and a move must save 10 %"
    )
    assert describe_staying(slow, slow, 0.1).endswith(
        "That would save nothing, and a move must save 10 %"
    )


def single(name, time_s, cost, energy_j=1.0):
    strategy = Strategy(StrategyKind.SINGLE, (name,))
    return Evaluation(strategy, time_s, time_s, time_s, energy_j, 0.0, cost)


def test_a_move_that_saves_of_what_the_program_does_not_take_is_no_cheaper_one():
    """`But cheaper: 274 J instead of 76 J` was said of it."""
    words = describe_move(
        single("lte0", 160.0, 160.0, 274.0), single("wlan0", 178.0, 178.0), 0.3, least_s=140
    )
    assert "cheaper" not in words
    assert words.endswith(
        "on wlan0. Beyond the 140 s that the program itself takes, that saves 47 %, and a move must"
        " save 30 %"
    )


def test_moves_by_time_alone_are_explained_by_the_times_that_were_compared():
    slow, quick = single("wlan0", 25.0, 6.0, 48.0), single("lte0", 11.0, 8.0, 4.8)
    assert describe_staying(slow, quick, 0.1, only_time=True).endswith(
        "but usually faster (median 6.00 s against 8.00 s)"
    )
    assert describe_move(slow, replace(quick, time_s=25.5), 0.1, only_time=True).endswith(
        "but usually faster (median 6.00 s against 8.00 s)"
    )
    nearly = replace(quick, cost=5.7)
    assert describe_staying(slow, nearly, 0.1, only_time=True).endswith(
        "Usually that would save 5 %, and a move must save 10 %"
    )


@pytest.mark.parametrize(
    ("wifi", "cellular", "deadline_s", "words"),
    [
        ([2.0] * 10, [0.1] * 9 + [9.0], 5.0, ", but surely in time, where lte0 may take "),
        ([8.0] * 10, [4.0] * 9 + [20.0], 5.0, ", but at worst 8.00 s instead of "),
        (
            [3.0] * 10,
            [1.0] * 10,
            5.0,
            ", but cheaper: no metered data instead of 3 kB and 1.3 J instead",
        ),
    ],
)
@pytest.mark.parametrize("objective", [MaxS(), WeightedCost(0.01, 2e-7)])
def test_what_is_slower_and_chosen_for_a_deadline_says_so(
    host, objective, wifi, cellular, deadline_s, words
):
    """`Usually faster (median 60 s against 60 s)` was the deadline, twice."""
    context = host.context(wlan0_rtt_s=0.018, lte0_rtt_s=0.052)
    transfer = replace(host.transfer(3000), deadline_s=deadline_s)
    model = host.oracle(wifi=wifi, cellular=cellular)
    case = Case(transfer, context, host.both, model, objective, number=1, made_unix_s=0.0)
    reason = decide(case).reason
    assert reason.startswith("wlan0: ")
    assert words in reason
    assert "median" not in reason


def test_nothing_is_called_cheaper_that_takes_more_and_words_change_no_choice(host):
    draw = Random(1)
    for _ in range(500):
        samples = [
            [10 ** draw.uniform(-1, 1) * draw.lognormvariate(0, 1) for _ in range(10)]
            for _ in range(4)
        ]
        names = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
        model = host.oracle(**dict(zip(names, samples, strict=True)))
        objective = draw.choice([MaxS(), MaxSPerE(), WeightedCost(0.01, 2e-7, noticeable_s=0.1)])
        transfer = replace(host.transfer(300_000), deadline_s=draw.choice([None, 5.0, 60.0]))
        case = Case(
            *(transfer, host.context(), host.both, model, objective),
            kinds=ALL,
            number=1,
            made_unix_s=0.0,
        )
        living = Living(
            Strategy(StrategyKind.SINGLE, (draw.choice(["wlan0", "lte0", "gone0"]),)),
            switch_cost_s=0.1,
            pace_bps=draw.choice([None, 1e6]),
        )
        untold = replace(case, worded=False)
        assert decide(untold) == replace(decide(case), reason="")
        told = decide_again(case, living)
        stays = replace(told, reason="") if told.choice == living.current else told
        assert decide_again(untold, living) == stays
        for decision in (decide(case), decide_again(case, living)):
            for less, more in re.findall(r"([\d.]+) J instead of ([\d.]+) J", decision.reason):
                assert float(less) < float(more), decision.reason
            for less, more in re.findall(r"median (.+?) against (.+?)\)", decision.reason):
                assert less != more, decision.reason


def test_a_network_of_which_the_predictors_know_nothing_is_not_called_unusable(host):
    reason = why(host, host.oracle(cellular=0.5))
    assert reason.startswith(
        "lte0: 0.50 s expected for 3 kB. The predictors know no times for wlan0, which can therefore"
        " not be chosen. "
    )
    assert "only usable" not in reason
    gone = (replace(host.wlan, up=False), host.lte)
    assert "lte0 is the only usable network" in why(host, host.oracle(cellular=0.5), networks=gone)
    alone = Evaluation(Strategy(StrategyKind.SINGLE, ("lte0",)), 2.0, 2.0, 2.0, 1.0, 0.0, 0.0)
    assert describe_staying(alone, None, 0.1, ["wlan0"]) == (
        "stays on lte0: 2.00 s left. The predictors know no times for wlan0, which can therefore not"
        " be chosen"
    )
    assert (
        describe_staying(alone, None, 0.1) == "stays on lte0, the only usable network: 2.00 s left"
    )


def test_what_is_typically_faster_and_seldom_much_slower(host):
    gamble = [0.1] * 9 + [10.0]
    assert why(host, host.oracle(wifi=gamble, cellular=0.5)).startswith(
        "wlan0: 1.09 s expected for 3 kB, against 0.50 s on lte0, but usually faster (median 0.16 s "
    )


def test_redundancy_is_named(host):
    gamble = [0.1] * 9 + [10.0]
    reason = why(host, host.oracle(wifi=gamble, cellular=gamble), kinds=ALL)
    assert reason.startswith(
        "wlan0 + lte0 (sent twice): 0.20 s expected for 3 kB, 5.5 times faster"
    )
    assert (
        ". Sending twice saves 0.89 s on average over wlan0 alone, and costs 8.3 J and 3 kB of"
        " metered data more. The slowest 5 % take 2.23 s or longer, instead of 40 s"
    ) in reason


def test_hedging_that_is_too_dear_is_told_and_hedging_that_saves_nothing_is_not(host):
    gamble = [0.1] * 9 + [10.0]
    model, dear = host.oracle(wifi=gamble, cellular=gamble), WeightedCost(s_per_j=1.0)
    reason = why(host, model, kinds=ALL, objective=dear)
    assert reason.startswith("wlan0: 1.09 s expected for 3 kB")
    assert (
        ". wlan0 + lte0 (sent twice) would take 0.20 s, but is not worth 8.3 J and 3 kB of"
        " metered data more" in reason
    )
    assert "would take" not in why(host, host.oracle(wifi=0.1, cellular=1.0), kinds=ALL)
    assert "would take" not in why(host, model)


@pytest.mark.parametrize(
    ("time_s", "expected"),
    [
        (0.0004, "under 1 ms"), (0.0214, "21 ms"), (0.25, "0.25 s"), (9.876, "9.88 s"),
        (61.2, "61 s"), (5658.0, "94 minutes"), (86_400.0, "24 hours"),
    ],
)  # fmt: skip
def test_durations(time_s, expected):
    assert seconds(time_s) == expected


def test_labels():
    assert label(Strategy(StrategyKind.DEFER, ())) == "later"
    assert label(Strategy(StrategyKind.SINGLE, ("wlan0",))) == "wlan0"


def test_the_rate_in_the_transfers_direction_is_named_and_called_old_when_it_is(host):
    model = host.oracle(wifi=3.0, cellular=9.0)
    context = host.context(
        age_s=60.0, wlan0_rtt_s=0.018, wlan0_past5_bps=12.3e6, wlan0_past5_up_bps=2.5e6
    )
    decision = decide(
        Case(host.transfer(5_000_000, "up"), context, host.both, model, number=1, made_unix_s=0.0)
    )
    assert decision.reason.endswith("wlan0 carried 2.5 Mbit/s 60 s ago, too long ago to rely on")


def test_amounts_beyond_measure_are_no_powers_of_ten(host):
    reason = why(host, host.oracle(wifi=7.5e7, cellular=2.3e9), 900_000_000_000_000)
    assert reason.startswith(
        "wlan0: 868 days expected for 900 TB, 31 times faster than lte0 (26620 days)"
    )
