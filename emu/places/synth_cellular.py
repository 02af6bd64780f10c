"""Synthetic cellular networks: rates down and up, and the phone's indicators.

One radio factor is shared by the rate and all indicators, everything else is their own noise. The
weights give the rank correlations of the real drives (RSRP 0.37-0.48, RSRQ 0.35-0.61, SINR 0.43-0.49,
CQI 0.40-0.50 with the rate), and the time constants their autocorrelations (0.93/0.76/0.64 after
1/5/10 s for RSRP). Walks and rests correlate less, as measured in the walking loops (0.26-0.38).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from emu.places.synth_random import Mixture, autoregressive, blend, geometric, interpolated, mixture

_RADIO: Mixture = ((0.85, 60.0), (0.15, 3.0))
# Column -> weight of the radio factor, the rest's own autocorrelation, centre, lowest and highest.
_INDICATORS: dict[str, tuple[float, Mixture, float, float, float]] = {
    "rsrp_dbm": (0.64, _RADIO, -95.0, -125.0, -60.0),
    "rsrq_db": (0.72, ((0.45, 60.0), (0.55, 2.5)), -11.0, -20.0, -4.0),
    "sinr_db": (0.68, ((0.3, 60.0), (0.7, 2.0)), 6.0, -10.0, 30.0),
    "cqi": (0.65, ((0.5, 60.0), (0.5, 2.5)), 11.0, 1.0, 15.0),
}
# Median bandwidth of LTE by RSRP across places, and the spread around it in the logarithm: the 10th
# and the 90th percentile lie a factor of 30 to 50 apart.
_BANDWIDTH_LOG = ((-115.0, math.log(8.0)), (-75.0, math.log(49.0)))
_BANDWIDTH_SPREAD_LOG = 1.4
_RANGE_MBPS = (1.0, 45.0)


@dataclass(frozen=True, slots=True)
class CellularKind:
    """What a way to move does to a cellular network.

    Attributes:
        spread_log: lowest and highest standard deviation of the rate's logarithm.
        radio_weight: how much of it the radio factor explains (a correlation).
        load_tau_s: time constant of the rest.
        spreads: standard deviation of RSRP (dB), RSRQ (dB), SINR (dB) and CQI.
        holes_per_s: how often service breaks off at a middling signal.
        hole_s: mean duration of such an outage.
    """

    spread_log: tuple[float, float]
    radio_weight: float
    load_tau_s: float
    spreads: tuple[float, float, float, float]
    holes_per_s: float
    hole_s: float


RESTING = CellularKind((0.30, 0.50), 0.45, 1.3, (2.0, 1.2, 3.0, 1.2), 0.003, 1.0)
WALKING = CellularKind((0.30, 0.60), 0.50, 2.5, (4.6, 1.8, 5.0, 2.0), 0.003, 1.3)
DRIVING = CellularKind((0.75, 1.10), 0.72, 6.0, (11.0, 2.4, 7.2, 2.9), 0.003, 2.5)
RIDING = CellularKind((0.75, 1.00), 0.68, 4.5, (10.0, 2.4, 7.0, 2.8), 0.006, 2.0)


@dataclass(frozen=True, slots=True)
class Cellular:
    """One value per second; indicators under their columns, whole numbers as phones report them."""

    down_mbps: list[float]
    up_mbps: list[float]
    indicators: dict[str, list[float]]


def cellular(
    rng: random.Random, kind: CellularKind, other: Sequence[float], coupling: float
) -> Cellular:
    """Draws the seconds of one place.

    `other` is the standardized signal of the Wi-Fi network, `coupling` the radio factor's
    correlation with it: leaving a building changes both networks, in the same direction or in
    opposite ones.
    """
    count = len(other)
    radio = blend(coupling, other, mixture(rng, count, _RADIO))
    load_down = autoregressive(rng, count, kind.load_tau_s)
    load_up = blend(0.3, load_down, autoregressive(rng, count, kind.load_tau_s))
    spread_log = rng.uniform(*kind.spread_log)
    place_rsrp_dbm = rng.gauss(-95.0, 10.0)
    median_log = interpolated(_BANDWIDTH_LOG, place_rsrp_dbm) + rng.gauss(
        0.0, _BANDWIDTH_SPREAD_LOG
    )
    median_mbps = min(max(math.exp(median_log), _RANGE_MBPS[0]), _RANGE_MBPS[1])
    uplink_share = rng.uniform(0.4, 1.1)
    out = _holes(rng, kind, radio)

    def rates(factor: float, load: Sequence[float]) -> list[float]:
        mixed = blend(kind.radio_weight, radio, load)
        # The cell's capacity ends above sooner than its queue does below: a skewed logarithm.
        bent = [value if value < 0.0 else 0.7 * value for value in mixed]
        return [
            0.0 if gone else factor * median_mbps * math.exp(spread_log * value)
            for value, gone in zip(bent, out, strict=True)
        ]

    indicators = {}
    for (column, (weight, own, centre, low, high)), spread in zip(
        _INDICATORS.items(), kind.spreads, strict=True
    ):
        middle = place_rsrp_dbm if column == "rsrp_dbm" else centre
        indicators[column] = [
            float(min(max(round(middle + spread * value), low), high))
            for value in blend(weight, radio, mixture(rng, count, own))
        ]
    return Cellular(rates(1.0, load_down), rates(uplink_share, load_up), indicators)


def _holes(rng: random.Random, kind: CellularKind, radio: Sequence[float]) -> list[bool]:
    out = []
    left_s = 0
    for value in radio:
        if left_s == 0 and rng.random() < kind.holes_per_s * math.exp(-0.8 * value):
            left_s = geometric(rng, kind.hole_s)
        out.append(left_s > 0)
        left_s = max(0, left_s - 1)
    return out
