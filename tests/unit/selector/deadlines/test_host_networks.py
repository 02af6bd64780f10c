"""What is expected of a network of which nothing is known but that it is there, or has just gone."""

from cedos.model import Direction
from cedos.selector.deadlines.host_networks import HostNetworks, SeenNetwork


def carried(now: float, *, gone_s: float, within_s: float, q: float) -> float:
    """Its share of the time, of a Wi-Fi that was there since anybody looked, and has gone lately."""
    networks = HostNetworks()
    networks.measured("wlan0", Direction.DOWN, 8e6, 1.0, 0.0)
    for at_s in range(int(now) + 1):
        networks.watched([SeenNetwork("wlan0", at_s < now - gone_s, 0.0)], float(at_s))
    seen = SeenNetwork("wlan0", gone_s == 0.0, 0.0)
    (state,) = networks.states([seen], Direction.DOWN, now)
    there = state.supply.there_s  # type: ignore[attr-defined]
    return float(there(within_s, q)) / within_s


def test_one_that_is_there_may_falter_but_is_not_taken_to_leave_for_ever() -> None:
    assert 0.3 < carried(100.0, gone_s=0.0, within_s=300.0, q=0.01) < 0.95


def test_one_that_has_just_gone_may_be_back_in_a_moment() -> None:
    assert carried(100.0, gone_s=3.0, within_s=120.0, q=0.5) > 0.5
    assert carried(100.0, gone_s=3.0, within_s=120.0, q=0.01) == 0.0


def test_one_that_has_been_away_for_long_is_not_waited_for() -> None:
    assert carried(700.0, gone_s=600.0, within_s=600.0, q=0.01) == 0.0
    assert carried(700.0, gone_s=600.0, within_s=60.0, q=0.3) == 0.0
