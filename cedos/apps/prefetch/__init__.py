"""Prefetching for applications: hand over what may be needed later, and get it ahead of time, or not.

        page = prefetcher.prefetch(fetcher, size=120_000, cls="news")
        ...
        body = await page.get()

A `Fetcher` is the application's: `await fetch(turn)` returns the item.

The interface is IMP's (dissertation, 3.3.1); what is decided, and why, is in `cedos.selector.prefetch`.
"""

from cedos.apps.prefetch.prefetcher import Future, Prefetcher
from cedos.apps.prefetch.surroundings import (
    DaemonSurroundings,
    Fetcher,
    FetchError,
    NetworkFacts,
    NotThereError,
    Surroundings,
    Turn,
    View,
)

__all__ = [
    "DaemonSurroundings",
    "FetchError",
    "Fetcher",
    "Future",
    "NetworkFacts",
    "NotThereError",
    "Prefetcher",
    "Surroundings",
    "Turn",
    "View",
]
