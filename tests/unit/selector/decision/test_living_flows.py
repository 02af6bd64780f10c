"""Deciding again: a flow that is under way stays, or moves because that is clearly better."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.models import shipped

from cedos.model import Context, Strategy, StrategyKind
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide_again
from cedos.selector.decision.living import Living, Reevaluation, rest_of, tipping_point
from cedos.selector.objective import MaxS, MaxSPerE, WeightedCost

CASE = {each.name for each in fields(Case)}


RECORD = {"number": 7, "made_unix_s": 1.7e9}


NOTHING = Context(1000.0, {})


STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")


four_times = st.fixed_dictionaries(dict.fromkeys(STRATEGIES, st.floats(0.01, 100)))


objectives = st.one_of(
    st.just(MaxS()),
    st.builds(WeightedCost, st.floats(0, 10), st.floats(0, 1e-5)),
    st.builds(MaxSPerE, st.floats(0.1, 2), st.floats(0, 2), st.floats(0, 2)),
)


def again(host, model, current, **options):
    """Decides again for a flow on `wlan0`, `lte0`, or both with the primary named first."""
    names = tuple(current.split("+"))
    kind = StrategyKind.SINGLE if len(names) == 1 else StrategyKind.MPTCP
    given = {
        "context": NOTHING,
        "networks": host.both,
        "bytes_remaining": 1_000_000,
        "switch_cost_s": 0.2,
        **options,
    }
    case = Case(
        rest_of(host.transfer(), given.pop("bytes_remaining")),
        given.pop("context"),
        given.pop("networks"),
        model,
        **{name: given.pop(name) for name in [*given] if name in CASE},
        **RECORD,
    )
    return decide_again(case, Living(Strategy(kind, names), **given))


def test_a_small_gain_moves_nobody(host):
    decision = again(host, host.oracle(wifi=1.0, cellular=0.71), "wlan0")
    assert str(decision.choice) == "single(wlan0)"
    assert "stays on wlan0: 1.00 s left, against 0.91 s with a move to lte0" in decision.reason
    decision = again(host, host.oracle(wifi=1.0, cellular=0.69), "wlan0")
    assert str(decision.choice) == "single(lte0)"
    assert "0.89 s left, the move included, against 1.00 s on wlan0" in decision.reason


def test_the_rest_of_the_transfer_is_what_counts(host):
    model = host.oracle(wifi=1.0, cellular=0.1)
    decision = again(host, model, "wlan0", bytes_remaining=12_345)
    assert model.asked[0]["size_bytes"] == 12_345
    assert decision.transfer.size.median_bytes == 12_345
    assert decision.transfer.size.source == "progress"
    again(host, model, "wlan0", bytes_remaining=0)
    assert model.asked[1]["size_bytes"] == 1, "no predictor has to know the logarithm of 0"


def test_the_switch_is_charged_only_where_no_path_is_kept(host):
    model = host.oracle(wifi=1.0, cellular=1.0, mptcp_wifi=1.0, mptcp_cellular=1.0)
    times = {str(each.strategy): each.time_s for each in again(host, model, "wlan0").evaluations}
    assert times == {"single(wlan0)": 1.0, "single(lte0)": 1.2, "mptcp(wlan0, lte0)": 1.0}
    times = {
        str(each.strategy): each.time_s for each in again(host, model, "lte0+wlan0").evaluations
    }
    assert times == {"single(wlan0)": 1.0, "single(lte0)": 1.0, "mptcp(lte0, wlan0)": 1.0}


def test_a_slow_second_is_not_taken_for_a_slow_minute(host):
    """Staying was expected to take what the last second's rate makes of the rest: seven times as long
    as it did (docs/decisions/staying.md)."""
    model = host.oracle(wifi=1.0, cellular=3.0)
    slow = again(host, model, "wlan0", observed_bps=1e6)
    assert str(slow.choice) == "single(wlan0)"
    assert slow.evaluations[0].time_s == pytest.approx(8.0 ** (1 / 3))


def test_a_slow_second_of_both_networks_is_one_of_each(host):
    """LTE paused for two seconds, and a download went from both networks to a fading Wi-Fi: what both
    together had not carried was expected of that alone (docs/decisions/staying.md)."""
    model = host.oracle(wifi=10.8, cellular=24.6, mptcp_wifi=11.7, mptcp_cellular=11.7)
    slow = again(host, model, "lte0+wlan0", bytes_remaining=9_870_000, observed_bps=2.26e6)
    assert str(slow.choice) == "mptcp(lte0, wlan0)"
    ratio = (8 * 9.87e6 / 2.26e6 / 11.7) ** (1 / 3)
    times = {str(each.strategy): each.time_s for each in slow.evaluations}
    assert times["single(wlan0)"] == pytest.approx(10.8 * ratio)
    assert times["mptcp(lte0, wlan0)"] == pytest.approx(11.7 * ratio)
    # A second in which they were faster than predicted says nothing of the one alone.
    fast = again(host, model, "lte0+wlan0", bytes_remaining=9_870_000, observed_bps=80e6)
    assert {str(e.strategy): e.time_s for e in fast.evaluations}["single(wlan0)"] == 10.8
    # What is predicted of one of them alone still counts.
    creeps = host.oracle(wifi=30.0, cellular=2.0, mptcp_wifi=6.0, mptcp_cellular=6.0)
    left = again(host, creeps, "wlan0+lte0", bytes_remaining=2_000_000, observed_bps=1e6)
    assert str(left.choice) == "single(lte0)"


def test_a_second_network_helps_no_sooner_than_it_is_there(host):
    """Some kilobytes were late, 38 ms were expected of both networks, and the phone's radio woke for
    nothing: the connection was over before it had answered."""

    def both_s(**told):
        times = {"wifi": 0.04, "cellular": 0.22, "mptcp_wifi": 0.04, "mptcp_cellular": 0.05}
        decision = again(host, host.oracle(**{**times, **told.pop("times", {})}), "wlan0", **told)
        return next(
            float(each.time_s)
            for each in decision.evaluations
            if each.strategy.kind is StrategyKind.MPTCP
        )

    # A new transfer would take 0.04 s; by its own pace this one takes 0.31.
    slow = 8e6 / (0.31 * (0.31 / 0.04) ** 2)
    late_s = both_s(observed_bps=slow)
    assert 0.15 < late_s < 0.22
    assert both_s(observed_bps=slow, switch_cost_s=0.0) == pytest.approx(0.31 * 0.22 / 0.53)
    assert both_s(observed_bps=slow, switch_cost_s=9.0) == pytest.approx(0.22), "it alone, then"
    # Nothing is added to what is predicted where that is what both can do.
    large = {"wifi": 4.0, "cellular": 5.0, "mptcp_wifi": 2.6, "mptcp_cellular": 2.7}
    assert both_s(times=large) == 2.6
    assert both_s(times={"cellular": 60.0}) == pytest.approx(0.04), "never later than staying"


@pytest.mark.parametrize("current", ["wlan0", "wlan0+lte0"])
def test_a_dead_or_vanished_network_is_left_at_once(host, current):
    model = host.oracle(wifi=0.1, cellular=100.0, mptcp_wifi=0.1, mptcp_cellular=0.1)
    dead = again(host, model, current, context=host.context(wlan0_available=0.0))
    assert str(dead.choice) == "single(lte0)"
    assert ": wlan0 does not answer" in dead.reason
    vanished = again(host, model, current, networks=(replace(host.wlan, up=False), host.lte))
    assert str(vanished.choice) == "single(lte0)"
    assert vanished.reason.startswith("leaves wlan0")
    gone = again(host, model, current, networks=(host.lte,))
    assert str(gone.choice) == "single(lte0)"


def test_without_any_network_the_flow_waits_where_it_is(host):
    decision = again(host, host.oracle(), "wlan0", networks=())
    assert str(decision.choice) == "single(wlan0)"
    assert "waits" in decision.reason


@given(four_times, objectives, st.sampled_from(["wlan0", "lte0", "wlan0+lte0", "lte0+wlan0"]))
def test_nobody_flaps(host, times, objective, current):
    """With the same facts every move gains, so that a flow comes to rest."""
    model = host.oracle(**times)
    seen = []
    while current not in seen:
        seen.append(current)
        decision = again(host, model, current, objective=objective, switch_cost_s=0.1)
        current = "+".join(decision.choice.networks)
    assert current == seen[-1], "came back to where it had been"


def test_a_program_that_reads_slowly_is_worth_no_metered_data(host):
    """It was done no sooner with the phone beside, and a third of a film came over it."""
    model = host.oracle(wifi=8.0, cellular=12.0, mptcp_wifi=4.0, mptcp_cellular=4.0)
    priced = {"objective": WeightedCost(0.01, 2e-7), "bytes_remaining": 10_000_000}
    assert str(again(host, model, "wlan0", **priced).choice) == "mptcp(wlan0, lte0)"
    stays = again(host, model, "wlan0", pace_bps=4e6, **priced)
    assert str(stays.choice) == "single(wlan0)"
    assert all(each.time_s == pytest.approx(20.0) for each in stays.evaluations)
    assert "The program itself reads 4 Mbit/s" in stays.reason
    leaves = again(host, model, "wlan0+lte0", pace_bps=4e6, **priced)
    assert str(leaves.choice) == "single(wlan0)", "though that saves only a tenth of 20 s"
    assert "but cheaper" in leaves.reason
    assert str(again(host, model, "wlan0", pace_bps=100e6, **priced).choice) == "mptcp(wlan0, lte0)"


def test_while_much_lies_unread_it_can_be_tried_whether_one_network_is_enough(host):
    """Of Wi-Fi little was known, and the phone helped on until nearly all was there."""
    model = host.oracle(wifi=40.0, cellular=40.0, mptcp_wifi=8.0, mptcp_cellular=8.0)
    priced = {"objective": WeightedCost(0.01, 2e-7), "bytes_remaining": 10_000_000}
    assert str(again(host, model, "wlan0+lte0", **priced).choice) == "mptcp(wlan0, lte0)"
    known = again(host, model, "wlan0+lte0", pace_bps=4e6, **priced)
    assert str(known.choice) == "mptcp(wlan0, lte0)", "it was tried a moment ago, or little waits"
    tried = again(host, model, "wlan0+lte0", pace_bps=4e6, may_try={"wlan0"}, **priced)
    assert str(tried.choice) == "single(wlan0)"
    assert tried.evaluations[0].time_s == pytest.approx(20.0)


def test_while_much_lies_unread_the_networks_in_use_are_enough(host):
    """Once Wi-Fi was not sure to be enough, and the phone was back a second after it was left."""
    model = host.oracle(wifi=40.0, cellular=40.0, mptcp_wifi=8.0, mptcp_cellular=8.0)
    priced = {"objective": WeightedCost(0.01, 2e-7), "bytes_remaining": 10_000_000}
    assert "lte0" in again(host, model, "wlan0", pace_bps=4e6, **priced).choice.networks
    stays = again(host, model, "wlan0", pace_bps=4e6, unread=True, **priced)
    assert str(stays.choice) == "single(wlan0)"
    assert stays.evaluations[0].time_s == pytest.approx(20.0)


@pytest.mark.parametrize("current", ["wlan0", "wlan1"])
def test_a_large_download_does_not_flap_between_networks_that_are_alike(host, current):
    """Of a gigabyte, a third of its time was expected of both, and of the one in use, whose rate is
    seen, more: whichever carried it was left for the other."""
    networks = (host.network("wlan0"), host.network("wlan1"))
    known = dict.fromkeys(("past1_bps", "past5_bps", "past10_bps"), 20e6) | {
        "rtt_s": 0.02, "rtt_min_s": 0.02, "ping_loss": 0.0, "available": 1.0,
    }  # fmt: skip
    context = host.context(
        **{f"{each.name}_{name}": value for each in networks for name, value in known.items()}
    )
    decision = again(
        host,
        shipped(),
        current,
        context=context,
        networks=networks,
        bytes_remaining=1_000_000_000,
        observed_bps=20e6,
        kinds={StrategyKind.SINGLE},
    )
    assert str(decision.choice) == f"single({current})"
    assert all(400 < each.time_s < 800 for each in decision.evaluations)


def test_a_program_that_pauses_comes_home(host):
    model = host.oracle(wifi=8.0, cellular=4.0, mptcp_wifi=4.0, mptcp_cellular=4.0)
    priced = {"objective": WeightedCost(0.01, 2e-7), "bytes_remaining": 10_000_000}
    home = again(host, model, "lte0", pace_bps=0.0, **priced)
    assert str(home.choice) == "single(wlan0)"
    assert "does not read on" in home.reason


def test_a_slow_program_on_a_network_that_is_slower_still_is_helped(host):
    model = host.oracle(wifi=60.0, cellular=3.0, mptcp_wifi=3.0, mptcp_cellular=3.0)
    priced = {"objective": WeightedCost(0.01, 2e-7), "bytes_remaining": 10_000_000}
    assert "lte0" in again(host, model, "wlan0", pace_bps=4e6, **priced).choice.networks


def test_silence_is_news_after_twice_the_expected_time_and_then_every_200_ms():
    watch = Reevaluation(10.0, 0.5)
    assert not watch.due(10.9)
    assert not watch.is_late(10.9)
    assert watch.is_late(11.0)
    assert watch.due(11.0)
    assert not watch.due(11.1)
    assert watch.due(11.2)
    assert watch.next_at_s == pytest.approx(11.4)
    assert watch.due(20.0)
    assert watch.next_at_s == pytest.approx(20.2), "what was missed is not made up for"


@given(st.floats(0.5, 99.5), st.floats(0.001, 0.5))
def test_the_tipping_point_is_found_as_exactly_as_asked(tips_at, granularity):
    found = tipping_point(lambda x: x >= tips_at, 0.0, 100.0, granularity)
    assert tips_at <= found <= tips_at + granularity


def test_what_does_not_tip_has_no_tipping_point():
    assert tipping_point(lambda _: "stay", 0.0, 100.0, 0.1) is None


def test_it_ends_even_where_no_granularity_can_be_reached():
    assert tipping_point(lambda x: x > 0.3, 0.0, 1.0, 0.0) == pytest.approx(0.3)
