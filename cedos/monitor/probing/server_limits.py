"""How much a probe server gives: token buckets, for each source and for all together. Pure."""

from collections import OrderedDict
from ipaddress import IPv6Address, ip_network

from cedos.model import Address
from cedos.monitor.probing.wire import RefusalReason
from cedos.token_bucket import TokenBucket

_MOST_SOURCES = 4096
_V6_PREFIX = 64


class ProbeLimits:
    """Rate limits of each source (IPv6: its /64) and of all; `burst_s` seconds may be had at once."""

    def __init__(self, source_bps: float, total_bps: float, burst_s: float = 5.0) -> None:
        self._source_bps = source_bps
        self._burst_s = burst_s
        self._total = self._bucket(total_bps, 0.0)
        # A source that was not heard of for longest is forgotten first. Only who holds the key and
        # has shown its address gets an entry, so nobody can wash others, or a debt, away cheaply.
        self._sources: OrderedDict[object, TokenBucket] = OrderedDict()

    def _bucket(self, rate_bps: float, now_s: float) -> TokenBucket:
        burst_bytes = rate_bps / 8 * self._burst_s
        return TokenBucket(rate_bps / 8, burst_bytes, now_s)

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
            missing = count - bucket.available(now_s)
            if count > bucket.burst:
                return RefusalReason.TOO_LARGE, 0.0
            if missing > 0:
                return reason, missing / bucket.per_s
        own.take(now_s, count)
        self._total.take(now_s, count)
        return None
