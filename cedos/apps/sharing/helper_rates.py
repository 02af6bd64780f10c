"""The gateway's bandwidth map in a file: rates of helpers' paths, as sessions have measured them."""

from pathlib import Path
from typing import Final

import msgspec
import structlog

from cedos.kernel import own_file
from cedos.selector.sharing import NOWHERE, BandwidthMap, MapRecord

_MOST_BYTES: Final = 32 << 20
_APART_S: Final = 10.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class HelperRates:
    """The map, read at the start and written by `save`. A file that cannot be used is left out.

    Hosts tell no place yet, so that records are by helper and time of the day alone.
    """

    def __init__(self, path: Path, secret: bytes) -> None:
        self._path, self._map = path, BandwidthMap(secret)
        self._learnt_s: dict[bytes, float] = {}
        self._changed = False
        try:
            data = own_file.read(path, _MOST_BYTES)
            for record in msgspec.msgpack.decode(data, type=list[MapRecord]):
                self._map.restore(record)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, RecursionError) as error:
            _log.warning("the bandwidth map cannot be read", path=str(path), why=str(error))

    def learn(self, helper: bytes, rate_bps: float, now_s: float) -> None:
        """Take a rate that a session measured well; one in ten seconds of each helper counts."""
        if now_s - self._learnt_s.get(helper, float("-inf")) < _APART_S:
            return
        self._learnt_s = {
            each: at_s for each, at_s in self._learnt_s.items() if now_s - at_s < _APART_S
        }
        self._learnt_s[helper] = now_s
        self._map.on_carried(helper, NOWHERE, rate_bps, now_s)
        self._changed = True

    def rate_bps(self, helper: bytes, now_s: float) -> float | None:
        """Return the rate of a helper's path as the map has it; None: there is no history."""
        return self._map.rate_bps(helper, NOWHERE, now_s)

    def save(self) -> None:
        """Write the map if it has changed; a failure is logged, and tried again next time."""
        if not self._changed:
            return
        try:
            own_file.write(self._path, msgspec.msgpack.encode(list(self._map.records())))
        except OSError as error:
            _log.warning("the bandwidth map cannot be written", why=str(error))
        else:
            self._changed = False
