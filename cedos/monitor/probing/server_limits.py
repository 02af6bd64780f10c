"""How much a probe server gives: token buckets, for each source and for all together. Pure."""

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network

from cedos.model import Address
from cedos.monitor.probing.wire import RefusalReason

_MOST_SOURCES = 4096
_V6_PREFIX = 64


@dataclass(slots=True)
class Bucket:
    """A rate with a burst. It begins full."""

    rate_bytes_s: float
    burst_bytes: float
    left_bytes: float
    at_s: float

    def filled(self, now_s: float) -> float:
        """The bytes that may be had now. A clock that went back fills nothing."""
        self.left_bytes += max(0.0, now_s - self.at_s) * self.rate_bytes_s
        self.left_bytes = min(self.left_bytes, self.burst_bytes)
        self.at_s = now_s
        return self.left_bytes


class ProbeLimits:
    """Rate limits of each source (IPv6: its /64) and of all; `burst_s` seconds may be had at once."""

    def __init__(self, source_bps: float, total_bps: float, burst_s: float = 5.0) -> None:
        self._source_bps = source_bps
        self._burst_s = burst_s
        self._total = self._bucket(total_bps, 0.0)
        # A source that was not heard of for longest is forgotten first. Only who holds the key and
        # has shown its address gets an entry, so nobody can wash others, or a debt, away cheaply.
        self._sources: OrderedDict[object, Bucket] = OrderedDict()

    def _bucket(self, rate_bps: float, now_s: float) -> Bucket:
        burst_bytes = rate_bps / 8 * self._burst_s
        return Bucket(rate_bps / 8, burst_bytes, burst_bytes, now_s)

    def __len__(self) -> int:
        return len(self._sources)

    def take(self, source: Address, count: int, now_s: float) -> tuple[RefusalReason, float] | None:
        """Takes `count` bytes; else why not, and the seconds until they will be there."""
        key: object = source
        if isinstance(source, IPv6Address):
            key = ip_network((source, _V6_PREFIX), strict=False)
        own = self._sources.get(key)
        if own is None:
            own = self._sources[key] = self._bucket(self._source_bps, now_s)
            if len(self._sources) > _MOST_SOURCES:
                self._sources.popitem(last=False)
        self._sources.move_to_end(key)
        for reason, bucket in (
            (RefusalReason.SOURCE_LIMIT, own),
            (RefusalReason.TOTAL_LIMIT, self._total),
        ):
            missing = count - bucket.filled(now_s)
            if count > bucket.burst_bytes:
                return RefusalReason.TOO_LARGE, 0.0
            if missing > 0:
                return reason, missing / bucket.rate_bytes_s
        own.left_bytes -= count
        self._total.left_bytes -= count
        return None
