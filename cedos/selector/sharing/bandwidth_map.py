"""The gateway's bandwidth map: what each helper's path carried, where, and at what time of the day.

CBSP takes it from Yao et al. (its reference 30). A place is the keyed hash of a cell of some 200 m: who
reads the map without the gateway's secret learns no place. The map is bounded, in helpers and in cells of
each, so that one helper cannot push out what is known of the others.
"""

import hmac
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final, NamedTuple

_CELL_DEGREES: Final = 0.002
_PARTS_OF_DAY: Final = 4
_OLD_S: Final = 30 * 86_400.0
_LEAST_WEIGHT: Final = 0.2
NOWHERE: Final = b""


class MapRecord(NamedTuple):
    """The smoothed rate of a helper's path in one cell and part of the day."""

    helper: bytes
    place: bytes
    part: int
    rate_bps: float
    samples: int
    at_s: float


class BandwidthMap:
    """The records of many helpers; the least recently used ones are forgotten first."""

    def __init__(self, secret: bytes, *, helpers: int = 2048, cells: int = 64) -> None:
        self._secret, self._most_helpers, self._most_cells = secret, helpers, cells
        self._records: OrderedDict[bytes, OrderedDict[tuple[bytes, int], MapRecord]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def place(self, latitude: float, longitude: float) -> bytes:
        """Return the hash of the cell around a point, in degrees."""
        north = math.floor(latitude / _CELL_DEGREES)
        # Towards the poles a degree of longitude is shorter; cells of a row are all alike.
        across = max(math.cos(math.radians(north * _CELL_DEGREES)), 0.01)
        east = math.floor(longitude * across / _CELL_DEGREES)
        return hmac.digest(self._secret, f"{north} {east}".encode(), "sha256")[:8]

    def on_carried(self, helper: bytes, place: bytes, rate_bps: float, now_s: float) -> None:
        """Learn a rate. `place`: `NOWHERE` where it is not known."""
        cell = (place, _part(now_s))
        theirs = self._records.setdefault(helper, OrderedDict())
        before = theirs.get(cell)
        if before is None or now_s - before.at_s > _OLD_S:
            before = MapRecord(helper, *cell, rate_bps, 0, now_s)
        # A plain mean of the first samples, then an exponential one.
        samples = before.samples + 1
        weight = max(1 / samples, _LEAST_WEIGHT)
        smoothed = before.rate_bps + weight * (rate_bps - before.rate_bps)
        self._put(MapRecord(helper, *cell, smoothed, samples, now_s))

    def rate_bps(self, helper: bytes, place: bytes, now_s: float) -> float | None:
        """Return the nearest known rate: this cell at this time of day, this cell, anywhere; or None."""
        theirs = self._records.get(helper, OrderedDict())
        known = [each for each in theirs.values() if now_s - each.at_s <= _OLD_S]
        if not known:
            return None
        part = _part(now_s)

        def nearness(it: MapRecord) -> tuple[bool, bool, float]:
            here = it.place == place and place != NOWHERE
            return here, it.part == part, it.at_s

        return max(known, key=nearness).rate_bps

    def records(self) -> Iterator[MapRecord]:
        """Yield all records, the least recently used first, for the gateway's file."""
        for theirs in self._records.values():
            yield from theirs.values()

    def restore(self, record: MapRecord) -> None:
        """Take a record of `records` again."""
        self._put(record)

    def _put(self, record: MapRecord) -> None:
        theirs = self._records.setdefault(record.helper, OrderedDict())
        theirs[record.place, record.part] = record
        theirs.move_to_end((record.place, record.part))
        if len(theirs) > self._most_cells:
            theirs.popitem(last=False)
        self._records.move_to_end(record.helper)
        if len(self._records) > self._most_helpers:
            self._records.popitem(last=False)


def _part(now_s: float) -> int:
    return int(now_s % 86_400 * _PARTS_OF_DAY // 86_400)
