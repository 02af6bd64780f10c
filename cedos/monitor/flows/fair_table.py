"""A table of flows that strangers can fill: bounded, and no sender drives out another's. Pure."""

import secrets
from collections import OrderedDict
from typing import Generic, TypeVar

from cedos.model import FlowKey

T = TypeVar("T")

_BUCKETS = 32


class FairTable(Generic[T]):
    """What is known by flow, at most `limit` in all.

    Each other end has its share by a salted hash of its address (as in stochastic fair queueing, McKenney
    1990): whoever sends much drives out the oldest of those that share it, one in 32 of all others.
    """

    def __init__(self, limit: int) -> None:
        self._salt = secrets.randbits(64)
        self._share = max(limit // _BUCKETS, 1)
        self._buckets: list[OrderedDict[FlowKey, T]] = [OrderedDict() for _ in range(_BUCKETS)]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def __contains__(self, key: FlowKey) -> bool:
        return key in self._bucket(key)

    def put(self, key: FlowKey, value: T) -> FlowKey | None:
        """Adds or replaces; the flow that had to go for it, if any."""
        bucket = self._bucket(key)
        bucket[key] = value
        return bucket.popitem(last=False)[0] if len(bucket) > self._share else None

    def pop(self, key: FlowKey) -> T | None:
        return self._bucket(key).pop(key, None)

    def _bucket(self, key: FlowKey) -> "OrderedDict[FlowKey, T]":
        return self._buckets[hash((self._salt, key.remote)) % _BUCKETS]
