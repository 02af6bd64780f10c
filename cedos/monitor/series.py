"""A place's series of indicators as a provider: what a phone would have reported during the replay.

The CSV has one row a second: `t_s,down_mbps,up_mbps,rtt_ms,rssi_dbm,rsrp_dbm,rsrq_db,sinr_db,cqi,
available,speed_mps`, perhaps `link_mbps,chan_util_pct,filled` and others, empty where not measured.
Second s is known once it is over, from s + 1 on: nothing here sees the future. Round-trip times are
left out, because the replay has its own, which probes measure.
"""

import csv
import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from cedos.errors import PlaceError
from cedos.model import Indicator, Network
from cedos.monitor.rates import SPANS_S

_RADIO: Mapping[str, tuple[str, float]] = {
    "available": ("available", 1.0),
    "rssi_dbm": ("rssi_dbm", 1.0),
    "link_mbps": ("link_bps", 1e6),
    "chan_util_pct": ("chan_util", 0.01),
    "rsrp_dbm": ("rsrp_dbm", 1.0),
    "rsrq_db": ("rsrq_db", 1.0),
    "sinr_db": ("sinr_db", 1.0),
    "cqi": ("cqi", 1.0),
    "speed_mps": ("speed_mps", 1.0),
}
_RATES = {"down_mbps": "", "up_mbps": "_up"}
"""Columns of rates -> what their indicators are called between `past1` and `_bps`."""

_MARK = "filled"
# A value that was not measured in the last second is the last one that was, with its age, up to here.
MAX_AGE_S = 10


class Series:
    """The rows of a series; pure once read.

    Args:
        rows: second -> column -> value, known ones only.
        period_s: length of the replay, after which it begins again.
    """

    def __init__(self, rows: Mapping[int, Mapping[str, float]], period_s: float) -> None:
        self._rows = rows
        self.period_s = period_s

    @classmethod
    def read(cls, path: Path, period_s: float | None = None) -> "Series":
        """Reads a CSV; without `period_s` the series ends with its last second.

        Raises:
            PlaceError: not such a CSV; names file, line and what would be right.
        """
        rows: dict[int, dict[str, float]] = {}
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                reader = csv.DictReader(file)
                if "t_s" not in (reader.fieldnames or ()):
                    raise PlaceError(
                        f"{path}:1: no column t_s; the first line must name the columns"
                    )
                for row in reader:
                    second, values = _row(row, f"{path}:{reader.line_num}")
                    rows[second] = values
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise PlaceError(f"{path}: unreadable ({error}); a CSV would be right") from error
        if not rows:
            raise PlaceError(f"{path}: no rows; one a second would be right")
        if period_s is not None and not (math.isfinite(period_s) and period_s > 0):
            raise PlaceError(f"{path}: a period of {period_s} s; a positive number would be right")
        return cls(rows, period_s or max(rows) + 1.0)

    def at(self, position_s: float) -> dict[str, tuple[float, float]]:
        """What is known at a position of the replay: indicator -> (value, its age in seconds).

        Args:
            position_s: seconds since the series' second 0 began, further rounds included. Before the
                first second is over, nothing is known.
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
        # Rounds are `period_s` long, which need not be whole seconds: the row in whose second the
        # middle of the asked one lies.
        if second < 0:
            return {}
        return self._rows.get(math.floor(math.fmod(second + 0.5, self.period_s)), {})


def _row(
    row: Mapping[str | None, str | list[str] | None], here: str
) -> tuple[int, dict[str, float]]:
    values: dict[str, float] = {}
    for column in ("t_s", *_RATES, _MARK, *_RADIO):
        text = row.get(column)
        if not isinstance(text, str) or not text.strip():
            continue
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise PlaceError(
                f"{here}: {column} is {text!r}; a number, or empty where unknown, would be right"
            )
        values[column] = value
    second = values.pop("t_s", -1.0)
    if second < 0 or second != int(second):
        raise PlaceError(f"{here}: t_s is {row.get('t_s')!r}; whole seconds from 0 would be right")
    return int(second), values


class SeriesProvider:
    """Gives the series of one place's network to the interface that replays it.

    Args:
        csv_path: the series.
        interface: the interface whose network it is; others are given nothing.
        started_at_s: the instant (`time.monotonic`) at which the replay began.
        offset_s: where in the series the replay began.
        period_s: the replay's length, None for the series' own.
        synthetic: the series was drawn, not measured.

    Raises:
        PlaceError: the file is no series.
    """

    def __init__(
        self,
        csv_path: Path,
        interface: str,
        started_at_s: float,
        offset_s: float = 0.0,
        *,
        period_s: float | None = None,
        synthetic: bool = False,
    ) -> None:
        self._series = Series.read(csv_path, period_s)
        self._interface = interface
        self._started_at_s = started_at_s
        self._offset_s = offset_s
        self._synthetic = synthetic

    async def read(self, network: Network, now_s: float) -> Mapping[str, Indicator]:
        """The indicators of the last completed seconds."""
        if network.interface != self._interface:
            return {}
        known = self._series.at(now_s - self._started_at_s + self._offset_s)
        return {
            name: Indicator(value, now_s - age_s, synthetic=self._synthetic)
            for name, (value, age_s) in known.items()
        }

    async def close(self) -> None:
        """Nothing to let go of."""
