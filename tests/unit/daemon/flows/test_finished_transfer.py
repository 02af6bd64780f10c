from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.daemon.flows.finished_transfer import FinishedTransfer
from cedos.model import (
    CompetingTransfer,
    Context,
    Direction,
    FlowKey,
    Indicator,
    Network,
    NetworkKind,
)
from cedos.storage import predictor_file
from predictors.completion import CompletionModel

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
BOTH = (WLAN, LTE)
OTHER = FlowKey(ip_address("10.0.0.2"), 4001, ip_address("198.51.100.1"), 80)
DONE = FinishedTransfer("wifi", "wlan0", Direction.DOWN, 100_000, 0.5)
KNOWN = Context(
    0.0,
    {
        name: {
            "rtt_s": Indicator(0.03, 0.0),
            "rtt_min_s": Indicator(0.03, 0.0),
            "past1_bps": Indicator(1e7, 0.0),
        }
        for name in ("wlan0", "lte0")
    },
)


@pytest.fixture(scope="module")
def model() -> CompletionModel:
    return predictor_file.load()


def test_it_is_kept_what_predictors_were_shown_and_what_others_made_of_it(
    model: CompletionModel,
) -> None:
    alone = DONE.expected(KNOWN, BOTH, model)
    assert alone is not None
    assert alone.lengthened == 1.0
    assert alone.columns["wifi_rtt_s"] == 0.03
    assert alone.columns["size_bytes"] == 100_000
    others = {"wlan0": {Direction.DOWN: (CompetingTransfer(OTHER, 1e6),)}}
    beside = DONE.expected(replace(KNOWN, competing=others), BOTH, model)
    assert beside is not None
    assert beside.columns == alone.columns
    assert beside.lengthened > 1.3
    usual_s, longer_s = alone.expected["wifi"][1], beside.expected["wifi"][1]
    assert longer_s / usual_s == pytest.approx(beside.lengthened)
    assert beside.expected["cellular"] == alone.expected["cellular"]


def test_predictors_are_not_shown_this_hosts_own_queue(model: CompletionModel) -> None:
    full = {
        "rtt_s": Indicator(0.13, 0.0),
        "delivery_down_bps": Indicator(1e7, 0.0),
    }
    networks = {**KNOWN.networks, "wlan0": {**KNOWN.networks["wlan0"], **full}}
    queued = DONE.expected(replace(KNOWN, networks=networks), BOTH, model)
    assert queued is not None
    assert queued.columns["wifi_rtt_s"] == pytest.approx(0.03)
    assert queued.lengthened > 1.0
