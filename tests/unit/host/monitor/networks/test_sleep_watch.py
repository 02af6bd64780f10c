"""Sleep makes everything older, and another access point begins anew."""

import pytest

from cedos.controller.events import Witness
from cedos.controller.networks.context import ContextKeeper
from cedos.controller.networks.rates import RateSample
from cedos.model import Direction, Indicator, NetworkLife


def test_after_sleep_all_that_is_known_is_old():
    keeper = ContextKeeper()
    keeper.observe_up("wlan0", True, 90.0)
    keeper.update("wlan0", {"rssi_dbm": Indicator(-60.0, 99.0)})
    keeper.observe_ping("wlan0", 0.03, 99.5)
    keeper.observe_losses("wlan0", 100, 1, 99.0)
    for second in (97, 98, 99):
        keeper.observe_bytes("wlan0", second * 1_000_000, 0, float(second))
    keeper.observe_delivery(
        "wlan0", {Direction.DOWN: RateSample(98.0, 99.0, 1_000_000, saturated=True)}
    )
    keeper.observe_attachment("wlan0", "aa:bb", "home", 90.0)
    before = keeper.snapshot(100.0).networks["wlan0"]
    keeper.on_sleep(3600.0)
    after = keeper.snapshot(100.0).networks["wlan0"]
    # Pings that were not answered before the sleep say nothing of the network after it.
    assert before.keys() - after.keys() == {"ping_loss"}
    for name in after:
        age_s = before[name].measured_at_s - after[name].measured_at_s
        assert age_s == pytest.approx(3600.0 if name != "available" else 3609.5), name
        assert after[name].value == before[name].value
    # The counter went on by what was received before the sleep: no rate comes of it.
    keeper.observe_bytes("wlan0", 500_000_000, 0, 100.5)
    assert keeper.snapshot(101.0).networks["wlan0"]["delivery_down_bps"].value == pytest.approx(8e6)


def test_another_access_point_is_noticed_and_starts_with_a_clean_slate():
    keeper = ContextKeeper(pings=1)
    assert keeper.observe_attachment("wlan0", "aa:bb", "home", 1.0) is False
    assert keeper.observe_attachment("wlan0", "aa:bb", "home", 2.0) is False
    keeper.observe_ping("wlan0", None, 3.0)
    keeper.liveness("wlan0").on_intercepted(Witness.PAGE, 3.0, "a log-in page")
    assert keeper.snapshot(3.0).verdicts["wlan0"].life is NetworkLife.CAPTIVE
    assert keeper.observe_attachment("wlan0", "cc:dd", "home", 4.0) is True
    context = keeper.snapshot(5.0)
    assert context.networks["wlan0"] == {}
    assert context.verdicts["wlan0"].life is NetworkLife.UNKNOWN
    assert context.attachments["wlan0"].point == "cc:dd"
    assert context.attachments["wlan0"].since_s == 4.0
