from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.model import Attachment, Context, Direction, Indicator, Strategy, StrategyKind
from cedos.selector.decision.aging import DRIFTS, aged, widened
from cedos.selector.decision.case import Case
from cedos.selector.decision.decide import decide, decide_again
from cedos.selector.decision.living import Living, rest_of
from cedos.selector.decision.roles import Roles, assign
from predictors.base import Distribution

RECORD = {"number": 7, "made_unix_s": 1.7e9}
NOW_S = 1000.0
DOWN = Direction.DOWN


def context(wifi: tuple[float, float], cellular: tuple[float, float]) -> Context:
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


def columns(size_bytes: float, wifi: float, cellular: float) -> dict[str, float]:
    return {
        "size_bytes": size_bytes, "wifi_rtt_s": 0.03, "cellular_rtt_s": 0.03,
        "wifi_past5_bps": wifi, "cellular_past5_bps": cellular,
    }  # fmt: skip


@pytest.fixture
def roles(host: Any) -> Roles:
    return assign(host.both)


def test_fresh_rates_are_taken_as_they_are(roles: Roles) -> None:
    given_columns = columns(1e6, 1e6, 2e7)
    found, added = aged(given_columns, context((1e6, 0.4), (2e7, 1.2)), roles, DOWN)
    assert found is given_columns
    assert added == {}


def test_rates_of_another_access_point_are_worth_nothing_but_that_places_differ(
    roles: Roles,
) -> None:
    given_columns = columns(1e6, 1e6, 2e7)
    seen = context((1e6, 0.4), (2e7, 0.4))
    here = replace(seen, attachments={"wlan0": Attachment("aa:bb", "cafe", NOW_S - 60.0)})
    assert aged(given_columns, here, roles, DOWN) == (given_columns, {})
    moved = replace(seen, attachments={"wlan0": Attachment("cc:dd", "cafe", NOW_S - 0.1)})
    found, added = aged(given_columns, moved, roles, DOWN)
    assert found["wifi_past5_bps"] == pytest.approx(DRIFTS["wifi"].now_bps(1e6, 1e9))
    assert found["cellular_past5_bps"] == 2e7
    assert added.keys() == {"wifi"}
    assert added["wifi"] > 2.0, "nearly all of the variance over all places"


@given(st.floats(1e4, 1e9), st.floats(2.0, 1e5), st.sampled_from(["wifi", "cellular"]))
def test_old_rates_drift_to_the_usual_and_never_past_it(
    rate_bps: float, age_s: float, role: str
) -> None:
    drift = DRIFTS[role]
    now_bps = drift.now_bps(rate_bps, age_s)
    low, high = sorted((rate_bps, drift.usual_bps))
    assert low * (1 - 1e-9) <= now_bps <= high * (1 + 1e-9)
    assert drift.lost_variance(age_s) <= drift.sigma**2
    assert drift.lost_variance(age_s) >= drift.lost_variance(age_s / 2)


def test_what_was_measured_is_what_the_drift_says() -> None:
    """The correlations measured on the traces (the module's text), within 0.06."""
    for role, measured in (
        ("wifi", {1: 0.912, 2: 0.829, 5: 0.665, 10: 0.449, 20: 0.21, 30: 0.20, 60: 0.157}),
        ("cellular", {1: 0.931, 2: 0.877, 5: 0.80, 10: 0.71, 20: 0.653, 30: 0.601, 60: 0.587}),
    ):
        for lag_s, correlation in measured.items():
            assert DRIFTS[role].share_left(lag_s) == pytest.approx(correlation, abs=0.06)


def test_age_widens_what_the_rate_rules_and_only_that(roles: Roles) -> None:
    time = Distribution((0.9, 0.95, 1.0, 1.05, 1.1))
    old = context((1e6, 60.0), (2e7, 0.5))
    _, large = aged(columns(1e7, 1e6, 2e7), old, roles, DOWN)
    _, small = aged(columns(1000, 1e6, 2e7), old, roles, DOWN)
    assert set(large) == {"wifi"}
    wide, narrow = widened("wifi", time, large), widened("wifi", time, small)
    assert wide.samples[-1] > 5.0
    assert narrow.samples[-1] < 2.0
    assert wide.quantile(0.5) == pytest.approx(1.0)
    assert widened("cellular", time, large) is time
    assert time.samples[-1] < widened("mptcp_wifi", time, large).samples[-1] < wide.samples[-1]


def delivered(known: Context, network: str, **rates: tuple[float, float]) -> Context:
    """With indicators more of a network: (value, age in s)."""
    more = {name: Indicator(bps, NOW_S - age_s) for name, (bps, age_s) in rates.items()}
    return replace(known, networks=known.networks | {network: {**known.networks[network], **more}})


def test_what_was_delivered_at_least_raises_an_old_rate_and_lowers_none(roles: Roles) -> None:
    old = context((2e7, 0.5), (1e6, 20.0))
    given_columns = columns(1e6, 2e7, 1e6)
    alone, much = aged(given_columns, old, roles, DOWN)
    more, less = aged(
        given_columns, delivered(old, "lte0", delivery_down_bps=(3e7, 0.0)), roles, DOWN
    )
    assert alone["cellular_past5_bps"] < 1e7
    assert more["cellular_past5_bps"] == pytest.approx(3e7), "it has just done that"
    assert less["cellular"] < much["cellular"], "and that is more certain"
    # What it did a while ago counts for less, and never for less than nothing.
    past, _ = aged(
        given_columns, delivered(old, "lte0", delivery_down_bps=(3e7, 10.0)), roles, DOWN
    )
    assert alone["cellular_past5_bps"] < past["cellular_past5_bps"] < 3e7
    little = delivered(old, "lte0", delivery_down_bps=(1e5, 0.0))
    assert aged(given_columns, little, roles, DOWN) == (alone, much)
    # A fresh rate is known better; an uplink's delivery says nothing of the downlink.
    fresh = delivered(old, "wlan0", delivery_down_bps=(9e7, 0.0), delivery_up_bps=(9e7, 0.0))
    assert aged(given_columns, fresh, roles, DOWN)[0]["wifi_past5_bps"] == 2e7
    assert aged(given_columns, fresh, roles, Direction.UP)[0]["wifi_past5_bps"] == 2e7
    upwards = delivered(old, "lte0", delivery_up_bps=(3e7, 0.0))
    assert aged(given_columns, upwards, roles, DOWN)[0] == alone
    assert aged(given_columns, upwards, roles, Direction.UP)[0]["cellular_past5_bps"] == 3e7


def test_what_was_delivered_before_the_rate_was_measured_does_not_raise_it(roles: Roles) -> None:
    given_columns = columns(1e6, 1e6, 2e7)
    fading = context((1e6, 2.0), (2e7, 0.5))
    alone = aged(given_columns, fading, roles, DOWN)
    before = delivered(fading, "wlan0", delivery_down_bps=(1e7, 3.0))
    assert aged(given_columns, before, roles, DOWN) == alone
    since = delivered(fading, "wlan0", delivery_down_bps=(1e7, 1.9))
    assert aged(given_columns, since, roles, DOWN)[0]["wifi_past5_bps"] > 5e6
    # Nor what an uplink delivered before its downlink was seen to fade.
    upwards = delivered(fading, "wlan0", past5_up_bps=(8e6, 5.0), delivery_up_bps=(9e6, 3.0))
    found, _ = aged(given_columns, upwards, roles, Direction.UP)
    assert found["wifi_past5_bps"] == alone[0]["wifi_past5_bps"]


def test_an_uplink_fades_with_the_downlink_that_was_seen_since(roles: Roles) -> None:
    given_columns = columns(1e6, 8e6, 1e6)
    seen = delivered(context((5e5, 0.5), (2e7, 0.5)), "wlan0", past5_up_bps=(8e6, 5.0))
    found, _ = aged(given_columns, seen, roles, Direction.UP)
    assert found["wifi_past5_bps"] == 5e5, "it cannot be what it was 5 s ago"
    assert aged(given_columns, seen, roles, DOWN)[0] == given_columns
    # A downlink that is better than the uplink was says nothing of it, and neither does an older one.
    better = delivered(context((5e7, 0.5), (2e7, 0.5)), "wlan0", past5_up_bps=(8e6, 5.0))
    alone = DRIFTS["wifi"].now_bps(8e6, 5.0)
    assert aged(given_columns, better, roles, Direction.UP)[0]["wifi_past5_bps"] == alone
    older = delivered(context((5e5, 6.0), (2e7, 0.5)), "wlan0", past5_up_bps=(8e6, 5.0))
    assert aged(given_columns, older, roles, Direction.UP)[0]["wifi_past5_bps"] == alone


def test_of_a_network_never_filled_it_is_known_what_it_delivered_if_that_is_much(
    roles: Roles,
) -> None:
    known = Context(NOW_S, {"lte0": {"rtt_s": Indicator(0.03, NOW_S)}})
    given_columns = {"size_bytes": 1e6, "cellular_rtt_s": 0.03}
    little = delivered(known, "lte0", delivery_down_bps=(1e6, 0.0))
    assert aged(given_columns, little, roles, DOWN) == (given_columns, {})
    much = delivered(known, "lte0", delivery_down_bps=(5e7, 0.0))
    found, added = aged(given_columns, much, roles, DOWN)
    assert found["cellular_past1_bps"] == pytest.approx(5e7)
    assert added == {"cellular": 0.0}
    elsewhere = replace(much, attachments={"lte0": Attachment("aa", "here", NOW_S + 0.1)})
    assert aged(given_columns, elsewhere, roles, DOWN) == (given_columns, {})


class ByRate:
    """Predictors that believe the rates they are shown."""

    features = ("size_bytes", "wifi_past5_bps", "cellular_past5_bps")

    def predict(self, columns: Any, /) -> dict[str, Distribution]:
        return {
            role: Distribution(
                tuple(
                    factor * 8 * columns["size_bytes"] / columns[f"{role}_past5_bps"]
                    for factor in (0.9, 0.95, 1.0, 1.05, 1.1)
                )
            )
            for role in ("wifi", "cellular")
        }


def test_a_network_nobody_uses_is_tried_again(host: Any) -> None:
    """It was bad, and its neighbour is poor: with time the old number is not believed any more."""
    transfer = host.transfer(10_000_000)
    single = Strategy(StrategyKind.SINGLE, ("wlan0",))
    chosen = {}
    for age_s in (0.5, 60.0):
        known = context((2e6, 0.3), (0.3e6, age_s))
        case = Case(rest_of(transfer, 10_000_000), known, host.both, ByRate(), **RECORD)
        again = decide_again(case, Living(single, switch_cost_s=0.1, observed_bps=2e6))
        chosen[age_s] = str(again.choice)
    assert chosen == {0.5: "single(wlan0)", 60.0: "single(lte0)"}


def test_an_old_number_makes_the_interval_wider(host: Any) -> None:
    widths = []
    for age_s in (0.5, 5.0, 60.0):
        known = context((5e6, 0.3), (9e6, age_s))
        decision = decide(Case(host.transfer(10_000_000), known, host.both, ByRate(), **RECORD))
        lte = next(each for each in decision.evaluations if each.strategy.networks == ("lte0",))
        widths.append(lte.time_high_s / lte.time_low_s)
    assert widths == sorted(widths)
    assert widths[-1] > 3 * widths[0]
