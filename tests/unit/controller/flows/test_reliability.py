from dataclasses import replace
from pathlib import Path

from cedos.controller.flows.reliability import TRANSFERS, Reliability
from cedos.model import Direction, FlowRecord, Prediction
from cedos.storage.history import History

EXPECTED = {"wifi": (0.5, 1.0, 2.0, 1.2), "mptcp_wifi": (0.5, 1.0, 2.0, 1.2)}
ONE = Prediction("wifi", "wlan0", Direction.DOWN, 3000, 1.0, 0.0, EXPECTED)


def record(prediction: Prediction | None) -> FlowRecord:
    return FlowRecord((), None, 1.0, 2.0, prediction=prediction)


def test_a_network_is_judged_by_the_last_transfers_over_it_alone() -> None:
    reliability = Reliability([record(replace(ONE, took_s=9.0))] * TRANSFERS)
    held = reliability.of("wlan0")
    assert held is not None
    assert (held.n, held.coverage90) == (TRANSFERS, 0.0)
    for _ in range(TRANSFERS):
        reliability.add(record(ONE))
    reliability.add(record(replace(ONE, strategy="mptcp_wifi", took_s=9.0)))
    reliability.add(record(None))
    held = reliability.of("wlan0")
    assert held is not None
    assert (held.n, held.coverage90) == (TRANSFERS, 1.0)
    assert reliability.of("lte0") is None


def test_so_many_networks_are_remembered_and_no_more() -> None:
    reliability = Reliability(record(replace(ONE, network=f"usb{k}")) for k in range(40))
    assert reliability.of("usb39") is not None
    assert reliability.of("usb0") is None


def test_the_next_daemon_knows_how_well_networks_were_predicted(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite")
    for took_s in (9.0, *[1.0] * TRANSFERS):
        history.add_flow(record(replace(ONE, took_s=took_s)))
    history.close()
    held = Reliability.of_history(History(tmp_path / "history.sqlite")).of("wlan0")
    assert held is not None
    assert (held.n, held.coverage90) == (TRANSFERS, 1.0), "the oldest one is left out"
    assert Reliability.of_history(None).of("wlan0") is None
