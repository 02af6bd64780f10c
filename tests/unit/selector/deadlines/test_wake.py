"""Alarms: when a sleeping host must be woken for its transfers."""

import pytest

from cedos.model import Direction
from cedos.selector.deadlines.network_state import (
    ForecastSupply,
    NetworkState,
    SeenNetwork,
    SustainedRate,
)
from cedos.selector.deadlines.plan import DeadlineFlow
from cedos.selector.deadlines.prospect import WAKING_S, wake_in_s
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable


def known(rate_bps, until_s=1000.0):
    """A rate that never varied."""
    rate = SustainedRate()
    for at_s in range(int(until_s)):
        rate.observe(rate_bps, 1.0, float(at_s + 1))
    return rate


WIFI, PHONE = known(20e6), known(8e6)


def states(now, *, phone=True, wifi_up=True):
    found = [NetworkState("wifi", wifi_up, 0.0, 20e6, ForecastSupply(WIFI, now, up=wifi_up))]
    if phone:
        found.append(NetworkState("lte", True, 2e-7, 8e6, ForecastSupply(PHONE, now)))
    return found


def asked(*flows, **networks):
    return wake_in_s(flows, lambda s: states(1000.0 + s, **networks), 1000.0)


def in_s(*flows, **networks):
    found = asked(*flows, **networks)
    assert found is not None
    return found


def song(within_s, size_bytes=60e6, key="song"):
    return DeadlineFlow(key, size_bytes, 1000.0 + within_s)


def test_as_late_as_the_metered_network_allows_however_fast_wifi_is_now():
    """60 MB at 8 Mbit/s is a minute; what it may vary by meanwhile, and to wake, comes before."""
    wake = in_s(song(3600.0))
    assert 1800.0 < wake < 3600.0 - 60.0 - WAKING_S
    assert in_s(song(3600.0), wifi_up=False) == wake, "what comes over Wi-Fi now does not, asleep"


def test_those_with_earlier_deadlines_are_carried_before():
    alone = in_s(song(3600.0))
    both = in_s(song(3590.0, key="first"), song(3600.0))
    large = in_s(song(3600.0, 300e6), song(7200.0, key="later"))
    assert both < alone - 50.0
    assert large < alone - 200.0


def test_without_any_metered_network_it_counts_on_what_there_is():
    """60 MB at 20 Mbit/s: 24 s."""
    assert in_s(song(3600.0), phone=False) > in_s(song(3600.0))
    assert asked(song(3600.0), phone=False, wifi_up=False) == 0.0
    assert wake_in_s([song(3600.0)], lambda _: [], 1000.0) is None


@pytest.mark.parametrize("up", [False, True])
def test_the_table_knows_who_is_late_and_who_comes_first(up):
    table = TransferTable()
    seen = [SeenNetwork("wifi", up, 0.0, 20e6), SeenNetwork("lte", True, 2e-7, 8e6)]

    def told(key, size_bytes, within_s, way=Direction.DOWN):
        table.report(
            TableTransfer(key, 0, key, "there", way, size_bytes, 0, 5000.0 + within_s), 0.0
        )

    assert table.wake(0.0) is None
    told("hopeless", 10**9, 30.0)
    told("later", 10_000_000, 7200.0)
    told("first", 10_000_000, 3600.0)
    table.plan(seen, 5000.0, 0.0)
    wake = table.wake(0.0)
    assert wake.key == "first"
    assert 5000.0 + 1000.0 < wake.at_unix_s < 5000.0 + 3600.0 - 10.0
    told("upload", 10_000_000, 600.0, Direction.UP)
    table.plan(seen, 5000.0, 0.0)
    wake = table.wake(0.0)
    assert wake.key == "upload"
    # The hopeless one is carried, and does not wake anybody.
    assert table.moving(0.0) >= 1
    assert table.moving(100.0) == 0, "programs that say nothing do not run"
    assert table.wake(100.0) is None
