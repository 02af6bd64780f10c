"""Files of indicator series: what was measured beside a trace, one CSV row per second (`t_s`).

A place's series of indicators as a provider: what a phone would have reported during the replay.

Second s is known once it is over: nothing here sees the future. Round-trip times are left out, because
the replay has its own, which probes measure.
"""

import csv
import io
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cedos.controller.networks.rates import SPANS_S
from cedos.errors import PlaceError
from cedos.model import Indicator, Network

# Columns that must contain numbers. Others may contain text.
NUMERIC = (
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
    "chan_util_pct",
    "filled",
)
# The largest second: a week. A larger one is a typing error.
MAX_SECONDS = 7 * 86_400
# The most values, those of missing seconds included: a week of 27 columns, 128 MB. A file of 170 kB could
# have 20,000 columns and one row, of the week's last second.
_MOST_VALUES = 1 << 24
# The most text of a file: a day of 27 columns is about 10 MiB.
_MOST_CHARACTERS = 16 << 20
# The series' columns as indicators of a `cedos.model.Context`: name there and factor. The rates are
# left out: they are what saturating transfers achieved, which no radio reports.
INDICATORS: Mapping[str, tuple[str, float]] = {
    "rtt_ms": ("rtt_s", 1e-3),
    "rssi_dbm": ("rssi_dbm", 1.0),
    "link_mbps": ("link_bps", 1e6),
    "chan_util_pct": ("chan_util", 1e-2),
    "rsrp_dbm": ("rsrp_dbm", 1.0),
    "rsrq_db": ("rsrq_db", 1.0),
    "sinr_db": ("sinr_db", 1.0),
    "cqi": ("cqi", 1.0),
    "available": ("available", 1.0),
    "speed_mps": ("speed_mps", 1.0),
}
_RADIO: Mapping[str, tuple[str, float]] = {
    column: named for column, named in INDICATORS.items() if column != "rtt_ms"
}
# Columns of rates, and the middle part of their indicators' names (`past1..._bps`).
_RATES = {"down_mbps": "", "up_mbps": "_up"}
_MARK = "filled"
# A missing value is replaced by the last one, with its age, up to this age.
MAX_AGE_S = 10


@dataclass(frozen=True)
class SeriesFile:
    """Column -> one value a second from 0 on, unknown ones NaN; `texts`: those of no numbers."""

    columns: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    seconds: int = 0

    def column(self, name: str) -> tuple[float, ...]:
        """Return the column, or NaN for every second where the file has none of that name."""
        return self.columns.get(name, (math.nan,) * self.seconds)

    def known_values(self, name: str) -> tuple[float, ...]:
        return tuple(value for value in self.column(name) if not math.isnan(value))

    def row(self, second: int) -> dict[str, float]:
        """Return what is known of one second, in the file's units; IndexError outside the series."""
        if not 0 <= second < self.seconds:
            raise IndexError(f"second {second} of a series of {self.seconds} s")
        return {
            name: values[second]
            for name, values in self.columns.items()
            if not math.isnan(values[second])
        }

    def indicators(self, second: int) -> dict[str, float]:
        """Return what is known of one second under the names and units of `cedos.model.Context`."""
        known = self.row(second)
        return {
            name: known[column] * factor
            for column, (name, factor) in INDICATORS.items()
            if column in known
        }


def csv_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return the rows of a CSV that are not empty, each with the number of its last line.

    csv.Error: it is no CSV, or too large.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        text = file.read(_MOST_CHARACTERS + 1)
    if len(text) > _MOST_CHARACTERS:
        raise csv.Error(f"more than {_MOST_CHARACTERS >> 20} MiB of text")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    return [(reader.line_num, row) for row in reader if row]


def read(path: Path) -> SeriesFile:
    """Read a series.

    Missing seconds are unknown; PlaceError names file, line and what would be right.
    """
    try:
        return _parse(csv_rows(path), path)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlaceError(
            f"{path}: unreadable ({error}); a CSV in UTF-8 is expected, one row per second"
        ) from error


def _parse(rows: list[tuple[int, list[str]]], path: Path) -> SeriesFile:
    header = rows[0][1] if rows else []
    if "t_s" not in header:
        raise PlaceError(f"{path}:1: no column t_s; the first line must name the columns")
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise PlaceError(f"{path}:1: column {twice!r} appears twice; each column once")
    lines: dict[int, list[str]] = {}
    where: dict[int, int] = {}
    last = -1
    for number, row in rows[1:]:
        here = f"{path}:{number}"
        if len(row) != len(header):
            raise PlaceError(f"{here}: {len(row)} fields, but the header has {len(header)}")
        second = _second(row[header.index("t_s")], here)
        if second <= last:
            raise PlaceError(f"{here}: t_s {second} after {last}; seconds must increase")
        last = second
        lines[second], where[second] = row, number
    columns: dict[str, tuple[float, ...]] = {}
    texts: dict[str, tuple[str, ...]] = {}
    seconds = last + 1
    if seconds * len(header) > _MOST_VALUES:
        raise PlaceError(
            f"{path}: {seconds} seconds of {len(header)} columns; {_MOST_VALUES} values in all are the"
            " most"
        )
    for position, name in enumerate(header):
        if name == "t_s":
            continue
        numbers = [math.nan] * seconds
        try:
            for second, row in lines.items():
                numbers[second] = _number(row[position])
        except ValueError:
            if name in NUMERIC:
                raise PlaceError(
                    f"{path}:{where[second]}: {name} is {row[position]!r}; a number, or empty "
                    "where unknown, would be right"
                ) from None
            texts[name] = tuple(
                lines[second][position] if second in lines else "" for second in range(seconds)
            )
        else:
            columns[name] = tuple(numbers)
    return SeriesFile(columns, texts, seconds)


def _second(text: str, here: str) -> int:
    try:
        value = float(text)
        if value == int(value) and 0 <= value < MAX_SECONDS:
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise PlaceError(
        f"{here}: t_s is {text!r}; whole seconds from 0 to {MAX_SECONDS - 1} would be right"
    )


def _number(text: str) -> float:
    if not text.strip():
        return math.nan
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


class Series:
    """The rows of a series, repeated after the last one. PlaceError: the file is none."""

    def __init__(self, path: Path) -> None:
        table = read(path)
        if not table.seconds:
            raise PlaceError(f"{path}: no rows; one a second would be right")
        self._rows = [table.row(second) for second in range(table.seconds)]

    def at(self, position_s: float) -> dict[str, tuple[float, float]]:
        """Return indicator -> (value, its age in seconds) at a position of the replay.

        That is in seconds since the series' second 0 began, further rounds included. Before the first
        second is over, nothing is known.
        """
        current = math.floor(position_s)
        known: dict[str, tuple[float, float]] = {}
        rates: dict[str, list[float]] = {column: [] for column in _RATES}
        for back in range(1, MAX_AGE_S + 1):
            ended_s = current - back + 1.0
            row = self._row_at(current - back)
            for column, (name, factor) in _RADIO.items():
                if name not in known and column in row:
                    known[name] = (row[column] * factor, position_s - ended_s)
            # A filled second's rate is not what was replayed; it is left out of the means.
            for column, way in _RATES.items():
                seen = rates[column]
                if column in row and not row.get(_MARK):
                    seen.append(row[column] * 1e6)
                    known.setdefault(f"past1{way}_bps", (seen[0], position_s - ended_s))
                if back in SPANS_S and seen:
                    age_s = known[f"past1{way}_bps"][1]
                    known[f"past{back}{way}_bps"] = (statistics.fmean(seen), age_s)
        return known

    def _row_at(self, second: int) -> Mapping[str, float]:
        return self._rows[second % len(self._rows)] if second >= 0 else {}


class SeriesProvider:
    """Gives the series of one place's network to the interface that replays it.

    `started_at_s`: the monotonic clock at its second 0. PlaceError: the file is no series.
    """

    def __init__(self, csv_path: Path, interface: str, started_at_s: float) -> None:
        self._series = Series(csv_path)
        self._interface = interface
        self._started_at_s = started_at_s

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        if network.interface != self._interface:
            return {}
        known = self._series.at(now_s - self._started_at_s)
        return {name: Indicator(value, now_s - age_s) for name, (value, age_s) in known.items()}

    async def close(self) -> None: ...
