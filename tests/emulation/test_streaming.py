"""`cedos-get --bitrate` while Wi-Fi goes and comes back: no stall, and hardly a metered byte too many."""

import time
from pathlib import Path

import pytest
from emu.experiments.streaming.ride import carried, ride

from cedos.model import NetworkKind
from emu.experiments.streaming.optimum import Playback
from emu.places.traces import Trace
from emu.testbed.access import Access
from emu.testbed.phones import LTE, WLAN, Laptop

FAST = Trace.constant(12e6)
WIFI = Access(NetworkKind.WIFI, up=FAST, down=FAST, rtt_s=0.020)
CELLULAR = Access(NetworkKind.CELLULAR, up=FAST, down=FAST, rtt_s=0.060)
RATE = 1.6e6  # 200 kB a second
AWAY_S = 7.0


@pytest.mark.long
@pytest.mark.usefixtures("registry")
def test_the_phone_brings_only_what_wifi_cannot(tmp_path: Path) -> None:
    seen: list[int] = []
    with Laptop(WIFI, CELLULAR, source_rules=True) as laptop:

        def meanwhile() -> None:
            ends_s = time.monotonic() + 30
            while carried(laptop)[WLAN] < 900_000 and time.monotonic() < ends_s:
                time.sleep(0.1)
            seen.append(carried(laptop)[LTE])
            laptop.detach(NetworkKind.WIFI)
            time.sleep(AWAY_S)
            laptop.attach(WIFI)

        # A store of 4 s: after that the phone has to bring what is played until Wi-Fi is back.
        found = ride(laptop, tmp_path, Playback(RATE, 14.0, store_bytes=800_000), meanwhile)
    assert found.played_bytes == 2_800_000
    assert found.stalls == 0
    assert seen[0] < 60_000  # none of it is begun while Wi-Fi is up
    assert 100_000 < found.metered_bytes < 200_000 * AWAY_S
    assert found.unmetered_bytes > 1_400_000
