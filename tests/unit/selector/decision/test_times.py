"""The time that a transfer loses to this host's other transfers."""

from ipaddress import ip_address
from math import inf

import pytest

from cedos.model import (
    CompetingTransfer,
    Context,
    Direction,
    FlowKey,
    Indicator,
    SizeEstimate,
    Transfer,
)
from cedos.selector.decision.case import Case, assign
from cedos.selector.decision.decide import decide
from cedos.selector.decision.times import (
    competitors,
    lengthen_by_queue,
    lengthen_by_sharing,
    own_queues,
    with_empty_paths,
)
from predictors.base import Distribution

MB = 1_000_000


ALONE = Distribution((1.0, 2.0))


def key(port):
    return FlowKey(ip_address("10.0.0.2"), port, ip_address("198.51.100.1"), 443)


def transfer(size_bytes=MB, flow=None):
    return Transfer(SizeEstimate(size_bytes, size_bytes, size_bytes, "content-length"), flow=flow)


def context(*others, direction=Direction.DOWN):
    known = {"past1_bps": 8e6, "rtt_s": 0.05, "rtt_min_s": 0.05}
    return Context(
        100.0,
        {"wlan0": {name: Indicator(value, 99.9) for name, value in known.items()}},
        competing={"wlan0": {direction: others}},
    )


@pytest.fixture
def roles(host):
    return assign(host.both)


def over_wifi(known, roles, *, size_bytes=MB):
    asked = transfer(size_bytes)
    return lengthen_by_sharing(
        ("wifi",), ALONE, size_bytes, competitors(known, roles, asked)
    ).samples


def test_two_alike_take_half_as_long_again_but_for_the_way(roles):
    """Twice as long by processor sharing; of what that adds, live transfers needed about a half."""
    other = CompetingTransfer(key(1), MB, 8e6)
    assert over_wifi(context(other), roles) == pytest.approx((1.45, 2.95))


@pytest.mark.parametrize(("left", "times"), [(MB / 2, (1.225, 2.475)), (50 * MB, (1.45, 2.95))])
def test_another_counts_with_what_it_has_left_at_most(left, times, roles):
    assert over_wifi(context(CompetingTransfer(key(1), left)), roles) == pytest.approx(times)


def test_over_two_networks_half_of_it_meets_the_others(roles):
    other = CompetingTransfer(key(1), 50 * MB, inf)
    found = competitors(context(other), roles, transfer())
    both = lengthen_by_sharing(("wifi", "cellular"), ALONE, MB, found)
    assert both.samples == pytest.approx((1.225, 2.475))


def test_a_busy_network_is_left_to_those_who_are_there(host):
    """Wi-Fi is a little quicker alone; with another download on it, LTE is."""
    model = host.oracle(wifi=1.0, cellular=1.3)
    other = CompetingTransfer(key(1), 5 * MB)
    for known, chosen in ((context(), "wlan0"), (context(other), "lte0")):
        case = Case(transfer(), known, host.both, model)
        assert decide(case).choice.networks[0] == chosen


NOW_S = 100.0


def context_of_queue(*, delivery_age_s=0.1, **indicators):
    """A cellular network with a round trip of 300 ms, and of 60 ms when it is empty."""
    known = {"rtt_s": 0.3, "rtt_min_s": 0.06} | indicators
    indicators = {
        name: Indicator(value, NOW_S - (delivery_age_s if "delivery" in name else 0.1))
        for name, value in known.items()
    }
    return Context(NOW_S, {"lte0": indicators})


@pytest.mark.parametrize(
    "not_ours",
    [
        context_of_queue(),
        context_of_queue(past1_bps=1e7),
        context_of_queue(past1_bps=1e7, delivery_down_bps=4e6),
        context_of_queue(past1_bps=1e7, delivery_down_bps=8e6, delivery_age_s=2.0),
        context_of_queue(past1_bps=1e7, delivery_down_bps=8e6, rtt_s=0.07),
        context_of_queue(delivery_down_bps=8e6),
        Context(NOW_S, {}),
    ],
)
def test_what_we_did_not_fill_is_long_for_its_own_reasons(not_ours, roles):
    assert own_queues(not_ours, roles) == {}


def test_models_see_the_empty_path_and_the_queue_is_added(roles):
    columns = {"size_bytes": 3e3, "cellular_rtt_s": 0.3, "wifi_rtt_s": 0.02}
    queues_s = {"cellular": 0.24}
    shown = with_empty_paths(columns, queues_s)
    assert shown == columns | {"cellular_rtt_s": pytest.approx(0.06)}
    assert with_empty_paths({"size_bytes": 3e3}, queues_s) == {"size_bytes": 3e3}
    time = Distribution((0.1, 0.2))
    assert lengthen_by_queue(("cellular",), time, queues_s).samples == pytest.approx((0.58, 0.68))
    assert lengthen_by_queue(("cellular", "wifi"), time, queues_s).samples == pytest.approx(
        (0.58, 0.68)
    )
    assert lengthen_by_queue(("wifi", "cellular"), time, queues_s) is time


class TwoRoundTrips:
    """Predictors that know of nothing but round trips."""

    features = ("size_bytes", "wifi_rtt_s", "cellular_rtt_s")

    def predict(self, columns, /):
        return {
            role: Distribution(tuple(2.0 * columns[f"{role}_rtt_s"] for _ in range(5)))
            for role in ("wifi", "cellular")
        }


def test_a_decision_counts_the_queue_once(host):
    known = context_of_queue(past1_bps=1e7, delivery_down_bps=8e6).networks
    wifi = {"rtt_s": Indicator(0.02, NOW_S)}
    both = Context(NOW_S, {**known, "wlan0": wifi})
    decision = decide(
        Case(host.transfer(3_000), both, host.both, TwoRoundTrips(), number=1, made_unix_s=1.0)
    )
    times = {each.strategy.networks: each.time_s for each in decision.evaluations}
    assert times["lte0",] == pytest.approx(2 * 0.06 + 2 * 0.24)
    assert times["wlan0",] == pytest.approx(0.04)
