"""Synthetic places: Mahimahi traces and indicator series, drawn from a seed.

They follow published figures and statistics of real traces (the movement: `synth_paths`), and are called
synthetic wherever they are shown: `places.csv` says so. Like the real rate samples they hold nothing
faster than a second. The same arguments give the same bytes.
"""

import csv
import io
import math
import random
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cedos.errors import DataSetError, PlaceError
from cedos.model import NetworkKind
from emu import console
from emu.places import synth_paths
from emu.places.places import drawn_rtt_s
from emu.places.stats import OUTAGE_BPS
from emu.places.synth_paths import (
    JOIN_DBM,
    Mixture,
    Movement,
    autoregressive,
    blend,
    geometric,
    interpolated,
    mixture,
    standardized,
)
from emu.places.traces import OPPORTUNITY_BITS, Trace

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
COLUMNS = (
    "place",
    "scenario",
    "simultaneous",
    "synthetic",
    "group",
    "wifi",
    "cellular",
    "common_s",
    "wifi_rtt_ms",
    "cellular_rtt_ms",
    "note",
)
SERIES_COLUMNS = (
    "t_s",
    "down_mbps",
    "up_mbps",
    "rtt_ms",
    "rssi_dbm",
    "rsrp_dbm",
    "rsrq_db",
    "sinr_db",
    "cqi",
    "available",
    "speed_mps",
    "link_mbps",
)
MIN_SECONDS, MAX_SECONDS = 10, 3600
# The distance of bursts of opportunities. Wi-Fi aggregates last as long, and files stay small.
_GRID_MS = 5


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


def wifi_series(rng: random.Random, place: WifiPlace, level_dbm: list[float]) -> Wifi:
    """Draw the seconds of one place, whose access point is heard at `level_dbm` in the mean.

    The relations are those of the real collection (a client that moves past access points): the median
    PHY rate and the share of it by level, an RSSI that moves by 2.6 to 3.7 dB a second, a residual of
    about 0.7 in the rate's logarithm, the last RSSI before an outage at -78 dBm in the median. The RSSI
    does not show part of the fading: no indicator correlates with the rate better than a real one.
    """
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


RIDING = CellularKind((0.75, 1.00), 0.68, 4.5, (10.0, 2.4, 7.0, 2.8), 0.006, 2.0)


DRIVING = CellularKind((0.75, 1.10), 0.72, 6.0, (11.0, 2.4, 7.2, 2.9), 0.003, 2.5)


WALKING = CellularKind((0.30, 0.60), 0.50, 2.5, (4.6, 1.8, 5.0, 2.0), 0.003, 1.3)


RESTING = CellularKind((0.30, 0.50), 0.45, 1.3, (2.0, 1.2, 3.0, 1.2), 0.003, 1.0)


@dataclass(frozen=True, slots=True)
class Cellular:
    """A cellular network's values per second; indicators as whole numbers, as phones report them."""

    down_mbps: list[float]
    up_mbps: list[float]
    indicators: dict[str, list[float]]


def cellular_series(
    rng: random.Random, kind: CellularKind, other: Sequence[float], coupling: float
) -> Cellular:
    """Draw the seconds of one place.

    The rate and all indicators share one radio factor; the rest of each is its own noise. The weights
    give the rank correlations of the real drives with the rate (RSRP 0.37 to 0.48, RSRQ 0.35 to 0.61,
    SINR 0.43 to 0.49, CQI 0.40 to 0.50), the time constants their autocorrelations (RSRP 0.93, 0.76 and
    0.64 after 1, 5 and 10 s). Walks and rests correlate less, as in the walking loops (0.26 to 0.38).

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


@dataclass(frozen=True, slots=True)
class _Kind:
    move: Callable[[random.Random, int], Movement]
    wifi: Callable[[random.Random, Movement], WifiPlace]
    cellular: CellularKind
    note: str


KINDS = {
    "walk-away": _Kind(
        synth_paths.walk_away,
        lambda rng, _: walking(rng),
        WALKING,
        note="leaves a building, Wi-Fi fades away",
    ),
    "drive-past": _Kind(
        synth_paths.drive_past,
        lambda rng, _: passing(rng),
        DRIVING,
        note="short Wi-Fi contacts from a car",
    ),
    "static": _Kind(
        synth_paths.static,
        lambda rng, movement: staying(rng, movement.level_dbm[0]),
        RESTING,
        note="stays near one access point",
    ),
    "station": _Kind(
        synth_paths.station,
        lambda rng, _: passing(rng),
        RIDING,
        note="a train, Wi-Fi at its stops only",
    ),
}


@dataclass(frozen=True, slots=True)
class Drawn:
    movement: Movement
    wifi: Wifi
    cellular: Cellular


def draw(kind: str, seed: int, duration_s: int) -> Drawn:
    """Draw the seconds of a place; no file is touched. Arguments and errors: see `generate`."""
    if kind not in KINDS:
        raise PlaceError(f"no kind {kind!r} of synthetic place; there are: {', '.join(KINDS)}")
    if not MIN_SECONDS <= duration_s <= MAX_SECONDS:
        raise PlaceError(
            f"a synthetic place of {duration_s} s; {MIN_SECONDS} to {MAX_SECONDS} would be right"
        )
    spec = KINDS[kind]
    # Independent of Python's own hashing, and different for each kind at the same seed.
    rng = random.Random(zlib.crc32(kind.encode()) * 1_000_003 + seed)
    movement = spec.move(rng, duration_s)
    wifi = wifi_series(rng, spec.wifi(rng, movement), movement.level_dbm)
    # Measured together, the two are neither independent nor mirrored (rank correlations per walk
    # from -0.75 to 0.59): each place draws how much.
    cellular = cellular_series(
        rng, spec.cellular, standardized(wifi.signal_dbm), rng.uniform(-0.65, 0.65)
    )
    return Drawn(movement, wifi, cellular)


def generate(kind: str, seed: int, duration_s: int, out_dir: Path) -> str:
    """Make one place, which kind and seed decide, in the collection `out_dir` and return its name.

    `duration_s` is whole seconds, 10 to 3600; the name is KIND-sSEED.

    PlaceError: an unknown kind, a bad duration, a place that is there already, or a folder that holds
    something else or cannot be written.
    """
    drawn = draw(kind, seed, duration_s)
    name = f"{kind}-s{seed}"
    try:
        rows = _collection(out_dir / "places.csv")
        if any(row["place"] == name for row in rows):
            raise PlaceError(f"{out_dir} has a place {name!r} already; remove it or choose another")
        _write(drawn, out_dir, name)
        rows.append(_row(kind, seed, duration_s, name))
        _write_rows(out_dir / "places.csv", COLUMNS, rows)
    except (OSError, DataSetError) as error:
        raise PlaceError(f"{out_dir}: cannot write there: {error}") from error
    return name


def _collection(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if tuple(reader.fieldnames or ()) != COLUMNS:
            raise PlaceError(f"{path} is not a synthetic collection; choose another folder")
        return list(reader)


def _row(kind: str, seed: int, duration_s: int, name: str) -> dict[str, str]:
    return {
        "place": name,
        "scenario": kind,
        "simultaneous": "no-synthetic",
        "synthetic": "yes",
        "group": name,
        "wifi": _trace_name(name, NetworkKind.WIFI),
        "cellular": _trace_name(name, NetworkKind.CELLULAR),
        "common_s": str(duration_s),
        "wifi_rtt_ms": f"{drawn_rtt_s(f'{kind} {seed}', NetworkKind.WIFI) * 1e3:.1f}",
        "cellular_rtt_ms": f"{drawn_rtt_s(f'{kind} {seed}', NetworkKind.CELLULAR) * 1e3:.1f}",
        "note": f"synthetic ({kind}, seed {seed}): {KINDS[kind].note}",
    }


def _trace_name(place: str, network: NetworkKind) -> str:
    return f"{place}-{network}"


def _write(drawn: Drawn, out_dir: Path, name: str) -> None:
    def path(network: NetworkKind, suffix: str) -> Path:
        return out_dir / network / (_trace_name(name, network) + suffix)

    wifi, cellular, speed_mps = drawn.wifi, drawn.cellular, drawn.movement.speed_mps
    opportunities(wifi.rate_mbps).write(path(NetworkKind.WIFI, ".trace.gz"))
    opportunities(cellular.down_mbps).write(path(NetworkKind.CELLULAR, ".down.gz"))
    opportunities(cellular.up_mbps).write(path(NetworkKind.CELLULAR, ".up.gz"))
    _write_series(
        path(NetworkKind.WIFI, ".csv"),
        wifi.rate_mbps,
        speed_mps=speed_mps,
        rssi_dbm=wifi.rssi_dbm,
        link_mbps=wifi.link_mbps,
    )
    _write_series(
        path(NetworkKind.CELLULAR, ".csv"),
        cellular.down_mbps,
        speed_mps=speed_mps,
        up_mbps=cellular.up_mbps,
        **cellular.indicators,
    )


def opportunities(rate_mbps: Sequence[float]) -> Trace:
    """Return the trace that delivers these rates, one per second, spread evenly within each second.

    What is less than a packet is owed to the next burst, so that the mean is kept at any rate.
    """
    bursts = 1000 // _GRID_MS
    per_burst = np.repeat(np.asarray(rate_mbps) * 1e6 / OPPORTUNITY_BITS / bursts, bursts)
    # A hair more, or rounding would hold back a packet that is due.
    due = np.floor(np.cumsum(per_burst) + 1e-9).astype(np.int64)
    at_ms = np.arange(1, len(due) + 1) * _GRID_MS
    return Trace(np.repeat(at_ms, np.diff(due, prepend=0)), len(rate_mbps) * 1000)


def _write_series(
    path: Path, rate_mbps: Sequence[float], **columns: Sequence[float | None]
) -> None:
    columns |= {
        "down_mbps": rate_mbps,
        "available": [float(rate * 1e6 >= OUTAGE_BPS) for rate in rate_mbps],
    }
    rows = []
    for second in range(len(rate_mbps)):
        rows.append({"t_s": str(second)})
        for column, values in columns.items():
            value = values[second]
            rows[-1][column] = "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
    _write_rows(path, SERIES_COLUMNS, rows)


def _write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    console.write(path, text.getvalue())
