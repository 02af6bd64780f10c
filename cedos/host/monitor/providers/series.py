"""A place's series of indicators as a provider: what a phone would have reported during the replay.

Second s is known once it is over: nothing here sees the future. Round-trip times are left out, because
the replay has its own, which probes measure.
"""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path

from cedos.controller.networks.rates import SPANS_S
from cedos.errors import PlaceError
from cedos.host.monitor.providers import series_file
from cedos.model import Indicator, Network

_RADIO: Mapping[str, tuple[str, float]] = {
    column: named for column, named in series_file.INDICATORS.items() if column != "rtt_ms"
}
# Columns of rates, and the middle part of their indicators' names (`past1..._bps`).
_RATES = {"down_mbps": "", "up_mbps": "_up"}

_MARK = "filled"
# A missing value is replaced by the last one, with its age, up to this age.
MAX_AGE_S = 10


class Series:
    """The rows of a series (second -> column -> value, known ones only), repeated after `period_s`."""

    def __init__(self, rows: Mapping[int, Mapping[str, float]], period_s: float) -> None:
        self._rows = rows
        self.period_s = period_s

    @classmethod
    def read(cls, path: Path, period_s: float | None = None) -> "Series":
        """Read a CSV; without `period_s` the series ends with its last second.

        PlaceError: no such CSV.
        """
        table = series_file.read(path)
        if not table.seconds:
            raise PlaceError(f"{path}: no rows; one a second would be right")
        if period_s is not None and not (math.isfinite(period_s) and period_s > 0):
            raise PlaceError(f"{path}: a period of {period_s} s; a positive number would be right")
        rows = {second: table.row(second) for second in range(table.seconds)}
        return cls(rows, period_s or float(table.seconds))

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
        # Rounds are `period_s` long, which need not be whole seconds: the row in whose second the
        # middle of the asked one lies.
        if second < 0:
            return {}
        return self._rows.get(math.floor(math.fmod(second + 0.5, self.period_s)), {})


class SeriesProvider:
    """Gives the series of one place's network to the interface that replays it.

    The replay began at `started_at_s` (monotonic), `offset_s` into the series. `synthetic`: the
    series was drawn, not measured. PlaceError: the file is no series.
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
        if network.interface != self._interface:
            return {}
        known = self._series.at(now_s - self._started_at_s + self._offset_s)
        return {
            name: Indicator(value, now_s - age_s, synthetic=self._synthetic)
            for name, (value, age_s) in known.items()
        }

    async def close(self) -> None: ...
