import asyncio
import math

import pytest
from kit.monitor import PlayedProvider

from cedos.controller.networks.context import ContextKeeper
from cedos.host.monitor.providers.provider import AccessPoint, GuardedProvider, read_each
from cedos.model import Indicator, Network, NetworkKind

WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False)


class Broken:
    """Misbehaves in the given way; afterwards it works."""

    def __init__(self, way):
        self.way = way

    async def read(self, network, now_s):
        if self.way == "raise":
            raise RuntimeError("no such device")
        if self.way == "hang":
            await asyncio.sleep(100)
        return {"rssi_dbm": Indicator(-60.0, now_s)}

    async def close(self):
        if self.way == "raise":
            raise RuntimeError("cannot close either")


@pytest.mark.parametrize("way", ["raise", "hang"])
async def test_no_provider_breaks_the_guard(way):
    reports = []
    broken = Broken(way)
    guarded = GuardedProvider(broken, reports.append, timeout_s=0.02)
    for now_s in (1.0, 2.5):
        assert await guarded.read(WIFI, now_s) == {}
    assert len(reports) == 1
    assert reports[0].startswith("Broken: ")
    broken.way = ""
    assert (await guarded.read(WIFI, 5.0))["rssi_dbm"].value == -60.0
    broken.way = way
    await guarded.close()


async def test_a_provider_that_hangs_holds_up_no_other():
    taken = []
    hanging = GuardedProvider(Broken("hang"), lambda sentence: None, timeout_s=0.2)
    good = GuardedProvider(
        PlayedProvider({"home": {"cqi": Indicator(9.0, 5.0)}}), lambda sentence: None
    )
    reading = asyncio.create_task(read_each([hanging, good], WIFI, 5.0, taken.append))
    await asyncio.sleep(0.02)
    assert taken == [{"cqi": Indicator(9.0, 5.0)}]
    assert not reading.done()
    await reading
    assert len(taken) == 1


async def test_the_access_point_goes_through_the_guard():
    class Knowing(PlayedProvider):
        def access_point(self, network):
            return AccessPoint("00:11:22:33:44:55", "home")

    guarded = GuardedProvider(Knowing({}), lambda sentence: None)
    assert guarded.access_point(WIFI) == ("00:11:22:33:44:55", "home")
    assert GuardedProvider(PlayedProvider({}), lambda sentence: None).access_point(WIFI) is None


async def test_nonsense_is_left_out_and_reported_once_a_kind():
    reports = []
    told = {
        "rssi_dbm": Indicator(127.0, 5.0),
        "link_bps": Indicator(math.nan, 5.0),
        "rsrp_dbm": Indicator(-90.0, 500.0),
        "cqi": Indicator(9.0, 5.0),
        "new_indicator": Indicator(1.0, 5.0),
    }
    guarded = GuardedProvider(PlayedProvider({"home": told}), reports.append)
    for _ in range(2):
        assert set(await guarded.read(WIFI, 5.0)) == {"cqi", "new_indicator"}
    assert len(reports) == 3
    assert any("rssi_dbm = 127; -120 to 0 would be right" in report for report in reports)
    assert any("future" in report for report in reports)
    told["rssi_dbm"] = Indicator(-50.0, 5.0)
    assert "rssi_dbm" in await guarded.read(WIFI, 5.0)


async def test_of_several_providers_the_fresher_value_wins():
    old = PlayedProvider({"home": {"rssi_dbm": Indicator(-60.0, 1.0), "cqi": Indicator(9.0, 1.0)}})
    new = PlayedProvider({"home": {"rssi_dbm": Indicator(-70.0, 2.0)}})
    for order in ([old, new], [new, old]):
        keeper = ContextKeeper()
        await read_each(order, WIFI, 3.0, lambda found, keeper=keeper: keeper.update("home", found))
        found = keeper.snapshot(3.0).networks["home"]
        assert {name: i.value for name, i in found.items()} == {"rssi_dbm": -70.0, "cqi": 9.0}
