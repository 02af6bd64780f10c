"""Figure 8: a stream of 640 kbit/s on a subway, stations with Wi-Fi that works or does not.

Drawn with what Cedos published (V-B.1): 44 stops, attached for 56.4 s at each and 60.3 s without on
average, 9 of them carry anything, for 34.4 s at 6.29 Mbit/s. When within a stop they carry, how far stops
differ, and what LTE carried were not published: the middle, exponential spread, and 4.7 Mbit/s as in
Figure 6. Simulated, with the program's own `BufferManager`; its thresholds are computed, or the paper's.
"""

from random import Random
from typing import Any, Final

from cedos.session.protocol.buffer_manager import BufferManager
from emu.experiments.streaming.optimum import Playback, least_metered_bytes
from emu.experiments.streaming.simulated import WINDOW_BYTES, play

STOPS, WORKING = 44, 9
ATTACHED_S, BETWEEN_S, CARRIES_S = 56.4, 60.3, 34.4
WIFI_BPS, LTE_BPS, BITRATE_BPS = 6.29e6, 4.7e6, 640e3
PAPER_LOW_BYTES, PAPER_HIGH_BYTES = 200_000, 3_000_000
SHOWN_S: Final = 1200
_RTT_S: Final = 0.0429
_STORE_BYTES: Final = 64e6


def ride(seed: int) -> tuple[list[float], list[bool]]:
    """Wi-Fi's rate in each second, and whether there is an access point, working or not."""
    random = Random(seed)
    working = set(random.sample(range(STOPS), WORKING))
    rates: list[float] = []
    attached: list[bool] = []
    for stop in range(STOPS):
        away_s = 30 + round(random.expovariate(1.0 / (BETWEEN_S - 30)))
        stay_s = 36 + round(random.expovariate(1.0 / (ATTACHED_S - 36)))
        carries_s = round(CARRIES_S) if stop in working else 0
        before_s = (stay_s - carries_s) // 2
        rates += [0.0] * (away_s + before_s) + [WIFI_BPS] * carries_s
        rates += [0.0] * (stay_s - before_s - carries_s)
        attached += [False] * away_s + [True] * stay_s
    return rates, attached


def figures(seeds: int = 20) -> dict[str, Any]:
    """Shares over Wi-Fi by thresholds, and the beginning of one ride second by second."""
    found: dict[str, Any] = {}
    for name, given in (
        ("computed", {}),
        ("paper", {"low_bytes": PAPER_LOW_BYTES, "high_bytes": PAPER_HIGH_BYTES}),
    ):
        shares, stalls, lte_s, best = [], 0, [], []
        for seed in range(seeds):
            wifi, attached = ride(seed)
            lte = [LTE_BPS] * len(wifi)
            playback = Playback(BITRATE_BPS, len(wifi) - 10.0, store_bytes=_STORE_BYTES)
            manager = BufferManager(bitrate_bps=BITRATE_BPS, window_bytes=WINDOW_BYTES, **given)
            one = play(wifi, lte, playback, _RTT_S, manager)
            total = one.unmetered_bytes + one.metered_bytes
            shares.append(one.unmetered_bytes / total)
            stalls += one.stalls
            lte_s.append(one.metered_s)
            least = least_metered_bytes(wifi, lte, playback)
            best.append(1.0 - (least or 0.0) / total)
            if seed == 0:
                found[f"{name}_ride"] = {
                    "store_bytes": [round(each) for each in one.store_bytes[:SHOWN_S]],
                    "attached": [int(each) for each in attached[:SHOWN_S]],
                    "carries": [int(each > 0) for each in wifi[:SHOWN_S]],
                }
        found[name] = {
            "wifi_share": sum(shares) / seeds,
            "wifi_share_least_most": [min(shares), max(shares)],
            "clairvoyant_wifi_share": sum(best) / seeds,
            "stalls": stalls,
            "lte_s": sum(lte_s) / seeds,
            "rides": seeds,
        }
    return found
