import asyncio
import math
from collections.abc import Mapping

import pytest

from cedos.model import Indicator, Network, NetworkKind
from cedos.monitor.doubles import PlayedProvider
from cedos.monitor.providers import Guarded, read_all

pytestmark = pytest.mark.anyio

WIFI = Network("home", "wlan0", 1, NetworkKind.WIFI, False)


class Broken:
    """Misbehaves in the given way; afterwards it works."""

    def __init__(self, way: str) -> None:
        self.way = way
        self.asked = 0

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        self.asked += 1
        if self.way == "raise":
            raise RuntimeError("no such device")
        if self.way == "hang":
            await asyncio.sleep(100)
        if self.way == "hang stubbornly":
            for _ in range(2):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    continue
        return {"rssi_dbm": Indicator(-60.0, now_s)}

    async def close(self) -> None:
        if self.way == "raise":
            raise RuntimeError("cannot close either")


@pytest.mark.parametrize("way", ["raise", "hang", "hang stubbornly"])
async def test_no_provider_breaks_the_guard(way: str) -> None:
    reports: list[str] = []
    broken = Broken(way)
    guarded = Guarded(broken, reports.append, timeout_s=0.02)
    for _ in range(3):
        assert await guarded.read(WIFI, 1.0) == {}
        await asyncio.sleep(0.001)
    assert len(reports) == 1
    assert reports[0].startswith("Broken: ")
    # One that hangs is not asked again and again.
    assert broken.asked == (1 if way == "hang stubbornly" else 3)
    await guarded.close()
    broken.way = ""
    await asyncio.sleep(0.01)
    assert (await guarded.read(WIFI, 1.0))["rssi_dbm"].value == -60.0


async def test_nonsense_is_left_out_and_reported_once_a_kind() -> None:
    reports: list[str] = []
    told = {
        "rssi_dbm": Indicator(127.0, 5.0),
        "link_bps": Indicator(math.nan, 5.0),
        "rsrp_dbm": Indicator(-90.0, 500.0),
        "cqi": Indicator(9.0, 5.0),
        "new_indicator": Indicator(1.0, 5.0),
    }
    guarded = Guarded(PlayedProvider({"home": told}), reports.append)
    for _ in range(2):
        assert set(await guarded.read(WIFI, 5.0)) == {"cqi", "new_indicator"}
    assert len(reports) == 3
    assert any("rssi_dbm = 127; -120 to 0 would be right" in report for report in reports)
    assert any("future" in report for report in reports)


async def test_of_several_providers_the_fresher_value_wins() -> None:
    old = PlayedProvider({"home": {"rssi_dbm": Indicator(-60.0, 1.0), "cqi": Indicator(9.0, 1.0)}})
    new = PlayedProvider({"home": {"rssi_dbm": Indicator(-70.0, 2.0)}})
    for order in ([old, new], [new, old]):
        found = await read_all(order, WIFI, 3.0)
        assert {name: i.value for name, i in found.items()} == {"rssi_dbm": -70.0, "cqi": 9.0}
