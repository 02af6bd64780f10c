"""Lost seconds by cause, from made run folders."""

from pathlib import Path

import pytest

from cedos.model import Direction
from emu.runs import lost
from emu.runs.mobility import FIXED
from emu.runs.runs import Recorded
from emu.runs.scenario import Load, Scenario

LOAD = Load("x", "198.51.100.2", Direction.DOWN, 1000, 1000, slot_s=1.0)
WIFI, LTE = "192.168.43.2", "192.168.44.2"
# Wi-Fi is dead in seconds 4 and 5.
CAPACITY = [
    {"network": name, "at_s": float(second), "rate_bps": 0.0 if second in dead else 8e6}
    for name, dead in (("wifi", (4, 5)), ("cellular", ()))
    for second in range(20)
]


def run(*ours, fixed_s=1.0, policies=(*FIXED, "cedos")):
    """A run of transfers of 100 kB, which take each fixed policy so long, and ours what they say."""
    usual = {
        "repeat": 0, "started_s": 0.0, "time_s": fixed_s, "mptcp": False, "size_bytes": 100_000,
        "local_ip": WIFI, "wifi_bytes": 100_000, "cellular_bytes": 0,
    }  # fmt: skip
    flows = [
        {**usual, "policy": policy, "number": number, **(each if policy == "cedos" else {})}
        for policy in policies
        for number, each in enumerate(ours)
    ]
    scenario = Scenario(load=(LOAD,), place="here", policies=policies)
    return Recorded(Path("folder"), scenario, {"duration_s": 20.0}, {}, flows, (), (), CAPACITY, ())


@pytest.mark.parametrize(
    ("transfer", "cause"),
    [
        ({"started_s": 5.2, "time_s": 2.0}, "wifi-dead-before"),
        ({"started_s": 4.2, "time_s": 3.0}, "wifi-died"),
        ({"started_s": 2.0, "time_s": 4.0}, "wifi-died"),
        ({"started_s": 8.0, "time_s": 2.0}, "wifi-slower"),
        ({"started_s": 8.0, "time_s": 2.0, "size_bytes": 2_000_000}, "price"),
        ({"started_s": 8.0, "time_s": 2.0, "wifi_bytes": 0, "cellular_bytes": 1000}, "lte-slower"),
        ({"started_s": 4.5, "time_s": 9.0, "wifi_bytes": 0, "local_ip": LTE}, "lte-slower"),
        ({"started_s": 4.5, "time_s": 9.0, "wifi_bytes": 0}, "wifi-died"),
        ({"started_s": 8.0, "time_s": 2.0, "cellular_bytes": 50_000}, "both"),
    ],
)
def test_a_loss_has_one_cause(transfer, cause):
    found = lost.figures([run(transfer)])
    assert list(found["causes"]["plain"]) == [cause]
    of_cause = found["causes"]["plain"][cause]
    assert of_cause["n"] == 1
    assert of_cause["lost_s"] == transfer["time_s"] - 1.0
    assert of_cause["share"] == 1.0
    assert found["causes"]["mptcp"] == {}
    assert lost.figures([run({**transfer, "mptcp": True})])["causes"]["plain"] == {}


def test_what_is_hardly_slower_is_no_loss_and_sums_are_told():
    found = lost.figures([run({"time_s": 1.1}, {"time_s": 3.0}), run({"time_s": 0.5})])
    assert found["causes"]["plain"]["wifi-slower"]["n"] == 1
    assert found["seconds"]["cedos"] == pytest.approx(4.6)
    assert found["seconds"]["oracle"] == found["seconds"]["best_of_place"] == 3.0
    assert (found["repeats"], found["transfers"]) == (2, 3)
    assert any("plain  wifi-slower" in line for line in lost.lines(found))
