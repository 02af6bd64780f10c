"""Predictions are compared with what came of them."""

from dataclasses import replace

from cedos.controller.flows.learning import TRANSFERS, Reliability
from cedos.model import Direction, FlowRecord, Prediction

EXPECTED = {"wifi": (0.5, 1.0, 2.0, 1.2), "mptcp_wifi": (0.5, 1.0, 2.0, 1.2)}
ONE = Prediction("wifi", "wlan0", Direction.DOWN, 3000, 1.0, 0.0, EXPECTED)


def record(prediction):
    return FlowRecord((), None, 1.0, 2.0, prediction=prediction)


def test_a_network_is_judged_by_the_last_transfers_over_it_alone():
    reliability = Reliability([record(replace(ONE, took_s=9.0))] * TRANSFERS)
    held = reliability.of("wlan0")
    assert (held.n, held.coverage90) == (TRANSFERS, 0.0)
    for _ in range(TRANSFERS):
        reliability.add(record(ONE))
    reliability.add(record(replace(ONE, strategy="mptcp_wifi", took_s=9.0)))
    reliability.add(record(None))
    held = reliability.of("wlan0")
    assert (held.n, held.coverage90) == (TRANSFERS, 1.0)
    assert reliability.of("lte0") is None


def test_a_damaged_record_of_the_history_tells_nothing():
    """The daemon did not start any more after one letter on the disk had changed."""
    damaged = (replace(ONE, strategy="wigi"), replace(ONE, took_s=0.0), replace(ONE, took_s=-1.0))
    assert Reliability(map(record, damaged)).of("wlan0") is None


def test_so_many_networks_are_remembered_and_no_more():
    reliability = Reliability(record(replace(ONE, network=f"usb{k}")) for k in range(40))
    assert reliability.of("usb39") is not None
    assert reliability.of("usb0") is None
