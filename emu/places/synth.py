"""Synthetic places: Mahimahi traces and indicator series, drawn from a seed.

They follow published figures and statistics of real traces (`synth_wifi`, `synth_cellular`,
`synth_paths`) and are called synthetic wherever they are shown: `places.csv` says so. Like the real
rate samples they hold nothing faster than a second. The same arguments give the same bytes.
"""

import csv
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cedos.errors import PlaceError
from cedos.model import NetworkKind
from emu.places import synth_networks, synth_paths
from emu.places.places import drawn_rtt_s
from emu.places.stats import OUTAGE_BPS
from emu.places.synth_networks import Cellular, CellularKind, Wifi, WifiPlace
from emu.places.synth_paths import Movement, standardized
from emu.places.traces import OPPORTUNITY_BITS, Trace

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
class _Kind:
    move: Callable[[random.Random, int], Movement]
    wifi: Callable[[random.Random, Movement], WifiPlace]
    cellular: CellularKind
    note: str


KINDS = {
    "walk-away": _Kind(
        synth_paths.walk_away,
        lambda rng, _: synth_networks.walking(rng),
        synth_networks.WALKING,
        note="leaves a building, Wi-Fi fades away",
    ),
    "drive-past": _Kind(
        synth_paths.drive_past,
        lambda rng, _: synth_networks.passing(rng),
        synth_networks.DRIVING,
        note="short Wi-Fi contacts from a car",
    ),
    "static": _Kind(
        synth_paths.static,
        lambda rng, movement: synth_networks.staying(rng, movement.level_dbm[0]),
        synth_networks.RESTING,
        note="stays near one access point",
    ),
    "station": _Kind(
        synth_paths.station,
        lambda rng, _: synth_networks.passing(rng),
        synth_networks.RIDING,
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
    wifi = synth_networks.wifi(rng, spec.wifi(rng, movement), movement.level_dbm)
    # Measured together, the two are neither independent nor mirrored (rank correlations per walk
    # from -0.75 to 0.59): each place draws how much.
    cellular = synth_networks.cellular(
        rng, spec.cellular, standardized(wifi.signal_dbm), rng.uniform(-0.65, 0.65)
    )
    return Drawn(movement, wifi, cellular)


def generate(kind: str, seed: int, duration_s: int, out_dir: Path, name: str | None = None) -> str:
    """Make one place, which kind and seed decide, in the collection `out_dir` and return its name.

    `duration_s` is whole seconds, 10 to 3600; without a `name` it is KIND-sSEED.

    PlaceError: an unknown kind, a bad duration, a name that is taken, or a folder that holds something
    else or cannot be written.
    """
    drawn = draw(kind, seed, duration_s)
    name = name or f"{kind}-s{seed}"
    try:
        rows = _collection(out_dir / "places.csv")
        if any(row["place"] == name for row in rows):
            raise PlaceError(f"{out_dir} has a place {name!r} already; remove it or choose another")
        _write(drawn, out_dir, name)
        rows.append(_row(kind, seed, duration_s, name))
        with (out_dir / "places.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise PlaceError(f"{out_dir}: cannot write there: {error.strerror}") from error
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
        folder = out_dir / network
        folder.mkdir(parents=True, exist_ok=True)
        return folder / (_trace_name(name, network) + suffix)

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
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, SERIES_COLUMNS, lineterminator="\n")
        writer.writeheader()
        for second in range(len(rate_mbps)):
            row: dict[str, str] = {"t_s": str(second)}
            for column, values in columns.items():
                value = values[second]
                row[column] = "" if value is None else f"{value:.3f}".rstrip("0").rstrip(".")
            writer.writerow(row)
