"""Synthetic networks along a path: rates and indicators of Wi-Fi and of cellular.

Wi-Fi has the relations of the real collection (moving client past access points): the median PHY rate and
share of it per level, RSSI moving by 2.6-3.7 dB from one second to the next, a residual of about 0.7 in
the logarithm of the rate, the last RSSI before an outage at -78 dBm in the median. Part of the fading
that decides on the rate is hidden from the RSSI on purpose, so that no indicator correlates with the rate
better than a real one.

Cellular networks have one radio factor that the rate and all indicators share; everything else is their
own noise. The weights give the rank correlations of the real drives (RSRP 0.37-0.48, RSRQ 0.35-0.61, SINR
0.43-0.49, CQI 0.40-0.50 with the rate), and the time constants their autocorrelations (0.93/0.76/0.64
after 1/5/10 s for RSRP). Walks and rests correlate less, as in the walking loops (0.26-0.38).
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from emu.places.synth_paths import (
    JOIN_DBM,
    Mixture,
    autoregressive,
    blend,
    geometric,
    interpolated,
    mixture,
)

# Medians by signal level: PHY rate in Mbit/s, and the delivered share of it.
_LINK_MBPS = (
    (-90, 6.5),
    (-82.5, 7),
    (-77.5, 16),
    (-72.5, 33),
    (-67.5, 43),
    (-62.5, 53),
    (-57.5, 79),
    (-50, 100),
)
_LINK_TOP_MBPS = 150.0
_SHARE = ((-90, 0.02), (-82.5, 0.05), (-77.5, 0.22), (-70, 0.30), (-60, 0.36))
_SHADOW_DB, _SHADOW_TAU_S = 3.5, 7.0
_HIDDEN_DB, _HIDDEN_TAU_S = 2.6, 5.0
# An associated client loses the access point with 1/(1 + exp((level - LOSS) / SCALE)) per second.
_LOSS_DBM, _LOSS_SCALE_DB = -85.0, 2.2


@dataclass(frozen=True, slots=True)
class WifiPlace:
    """Properties of one place that stay the same."""

    # Logarithm of how much more than the median share of the PHY rate is delivered.
    share_offset: float
    noise_log: float  # standard deviation of the delivered share's logarithm from second to second
    noise_tau_s: float  # its time constant
    # What the access line behind the access point carries; infinite: more than Wi-Fi.
    line_mbps: float
    losses_per_s: float  # how often the access point is lost at any level
    stalls_per_s: float  # how often nothing is delivered for a moment although the radio is fine
    stall_s: float  # their mean duration
    step_db: float  # the white part of the RSSI's noise


@dataclass(frozen=True, slots=True)
class Wifi:
    """A Wi-Fi network's values per second; RSSI and PHY rate are None where no access point is joined."""

    rate_mbps: list[float]
    rssi_dbm: list[float | None]
    link_mbps: list[float | None]
    signal_dbm: list[float]


def walking(rng: random.Random) -> WifiPlace:
    """Return a place that one walks through: the radio decides, and changes slowly."""
    return WifiPlace(
        share_offset=rng.gauss(0.0, 0.3),
        noise_log=rng.uniform(0.25, 0.45),
        noise_tau_s=rng.uniform(3.0, 6.0),
        line_mbps=math.inf,
        losses_per_s=0.0005,
        stalls_per_s=0.001,
        stall_s=1.5,
        step_db=rng.uniform(1.3, 1.8),
    )


def passing(rng: random.Random) -> WifiPlace:
    """Return a place that one drives or rides through: the radio decides, and changes fast."""
    return WifiPlace(
        share_offset=rng.gauss(0.0, 0.3),
        noise_log=rng.uniform(0.45, 0.65),
        noise_tau_s=rng.uniform(1.5, 3.5),
        line_mbps=math.inf,
        losses_per_s=0.003,
        stalls_per_s=0.002,
        stall_s=1.5,
        step_db=rng.uniform(1.2, 1.7),
    )


def staying(rng: random.Random, level_dbm: float) -> WifiPlace:
    """Return a place that one stays at: the access line and the others decide.

    Across places the share of the PHY rate that arrives is 0.07, 0.33 and 0.7 at the 10th, 50th and
    90th percentile. Half of the places owe it to a line, which is steady, the others to contention,
    which is not and stalls now and then (as the cafes and the offices of the real collection).
    """
    draw = rng.gauss(0.0, 1.0)
    offset = draw * (1.21 if draw < 0.0 else 0.59)
    steady = rng.random() < 0.5
    link_mbps = interpolated(_LINK_MBPS, level_dbm)
    share = interpolated(_SHARE, level_dbm)
    return WifiPlace(
        share_offset=max(0.0, offset) if steady else offset,
        noise_log=rng.uniform(0.15, 0.30) if steady else rng.uniform(0.4, 0.8),
        noise_tau_s=rng.uniform(0.3, 1.2) if steady else rng.uniform(1.0, 3.0),
        line_mbps=max(1.0, link_mbps * share * math.exp(offset)) if steady else math.inf,
        losses_per_s=0.0005,
        stalls_per_s=rng.uniform(0.0, 0.003) if steady else rng.uniform(0.0, 0.05),
        stall_s=1.7,
        step_db=1.4,
    )


def wifi(rng: random.Random, place: WifiPlace, level_dbm: list[float]) -> Wifi:
    """Draw the seconds of one place, whose access point is heard at `level_dbm` in the mean."""
    count = len(level_dbm)
    shadow = autoregressive(rng, count, _SHADOW_TAU_S)
    hidden = autoregressive(rng, count, _HIDDEN_TAU_S)
    noise = autoregressive(rng, count, place.noise_tau_s)
    signal = [mean + _SHADOW_DB * fade for mean, fade in zip(level_dbm, shadow, strict=True)]
    result = Wifi([], [], [], signal)
    joined, wait_s, stalled_s = signal[0] > JOIN_DBM, 0, 0
    for second in range(count):
        # What decides on the rate is heard only in part.
        true_dbm = signal[second] + _HIDDEN_DB * hidden[second]
        loss = place.losses_per_s + 1.0 / (1.0 + math.exp((true_dbm - _LOSS_DBM) / _LOSS_SCALE_DB))
        if joined and rng.random() < loss:
            joined, wait_s = False, geometric(rng, 2.5)
        elif not joined:
            wait_s = max(0, wait_s - 1)
            joined = wait_s == 0 and signal[second] > JOIN_DBM
        if stalled_s == 0 and rng.random() < place.stalls_per_s:
            stalled_s = geometric(rng, place.stall_s)
        if not joined:
            result.rate_mbps.append(0.0)
            result.rssi_dbm.append(None)
            result.link_mbps.append(None)
            continue
        link_mbps = interpolated(_LINK_MBPS, true_dbm)
        # Rate adaptation wanders by about a fifth around the median of its level.
        link_mbps = min(_LINK_TOP_MBPS, max(6.5, link_mbps * math.exp(rng.gauss(0.0, 0.2))))
        share = interpolated(_SHARE, true_dbm)
        share *= math.exp(place.share_offset + place.noise_log * noise[second])
        line_mbps = place.line_mbps * math.exp(place.noise_log * min(0.0, noise[second]))
        rate_mbps = min(link_mbps * min(share, 0.75), line_mbps)
        result.rate_mbps.append(0.0 if stalled_s else rate_mbps)
        result.rssi_dbm.append(signal[second] + rng.gauss(0.0, place.step_db))
        result.link_mbps.append(link_mbps)
        stalled_s = max(0, stalled_s - 1)
    return result


_RADIO: Mixture = ((0.85, 60.0), (0.15, 3.0))
# Column: weight of the radio factor, autocorrelation of the rest, centre, lowest and highest
# value.
_INDICATORS: dict[str, tuple[float, Mixture, float, float, float]] = {
    "rsrp_dbm": (0.64, _RADIO, -95.0, -125.0, -60.0),
    "rsrq_db": (0.72, ((0.45, 60.0), (0.55, 2.5)), -11.0, -20.0, -4.0),
    "sinr_db": (0.68, ((0.3, 60.0), (0.7, 2.0)), 6.0, -10.0, 30.0),
    "cqi": (0.65, ((0.5, 60.0), (0.5, 2.5)), 11.0, 1.0, 15.0),
}
# The median bandwidth of LTE by RSRP over places, and its spread in the logarithm: the 10th and
# the 90th percentile are a factor of 30 to 50 apart.
_BANDWIDTH_LOG = ((-115.0, math.log(8.0)), (-75.0, math.log(49.0)))
_BANDWIDTH_SPREAD_LOG = 1.4
_RANGE_MBPS = (1.0, 45.0)


@dataclass(frozen=True, slots=True)
class CellularKind:
    """The effect of a way to move on a cellular network."""

    spread_log: tuple[float, float]  # lowest and highest standard deviation of the rate's logarithm
    radio_weight: float  # how much of it the radio factor explains (a correlation)
    load_tau_s: float  # time constant of the rest
    # Standard deviation of RSRP (dB), RSRQ (dB), SINR (dB) and CQI.
    spreads: tuple[float, float, float, float]
    holes_per_s: float  # how often service breaks off at a middling signal
    hole_s: float  # mean duration of such an outage


RESTING = CellularKind((0.30, 0.50), 0.45, 1.3, (2.0, 1.2, 3.0, 1.2), 0.003, 1.0)
WALKING = CellularKind((0.30, 0.60), 0.50, 2.5, (4.6, 1.8, 5.0, 2.0), 0.003, 1.3)
DRIVING = CellularKind((0.75, 1.10), 0.72, 6.0, (11.0, 2.4, 7.2, 2.9), 0.003, 2.5)
RIDING = CellularKind((0.75, 1.00), 0.68, 4.5, (10.0, 2.4, 7.0, 2.8), 0.006, 2.0)


@dataclass(frozen=True, slots=True)
class Cellular:
    """A cellular network's values per second; indicators as whole numbers, as phones report them."""

    down_mbps: list[float]
    up_mbps: list[float]
    indicators: dict[str, list[float]]


def cellular(
    rng: random.Random, kind: CellularKind, other: Sequence[float], coupling: float
) -> Cellular:
    """Draw the seconds of one place.

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
