"""The monitor's events: networks and flows."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Generic, Protocol, TypeVar

from cedos.model import FlowKey, Network


class Change(StrEnum):
    APPEARED = "appeared"
    CHANGED = "changed"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class NetworkEvent:
    """`before` is what it was, None when it appeared; `network` is its last state when it was lost."""

    change: Change
    network: Network
    before: Network | None
    at_s: float


@dataclass(frozen=True, slots=True)
class FlowOpened:
    """A flow's first packet left (or came). Of MPTCP it is a subflow; connections are steering's."""

    key: FlowKey
    at_s: float
    at_unix_s: float
    incoming: bool = False


@dataclass(frozen=True, slots=True)
class FlowClosed:
    """A flow's end with its final figures, seen from this host.

    Bytes are payload for TCP, where a handshake or an end may count as one byte more; for UDP they
    are whole packets. `exact` is False where the final figures are not known: the notification was
    lost (then they are the last ones seen), or the kernel does not count UDP
    (`nf_conntrack_acct=0`: then 0). A UDP flow ends when connection tracking gives it up, 30 to
    120 s after its last packet. Unknown values are None; `started_unix_s` is, for flows older than
    the monitor. `idle_down_s` and `idle_ack_s` are as in `FlowSample`, at the end.
    """

    key: FlowKey
    ended_unix_s: float
    bytes_down: int
    bytes_up: int
    rtt_s: float | None = None
    rtt_min_s: float | None = None
    delivery_rate_bps: float | None = None
    retransmits: int = 0
    at_s: float = 0.0
    started_unix_s: float | None = None
    exact: bool = True
    idle_down_s: float | None = None
    idle_ack_s: float | None = None


FlowEvent = FlowOpened | FlowClosed


@dataclass(frozen=True, slots=True)
class FlowSample:
    """A living TCP flow or MPTCP subflow (`token`: its connection's, as in path-manager events).

    `rtt_s` is the kernel's smoothed estimate, which only sending refreshes; `receive_rtt_s` the one
    that receiving refreshes. `idle_down_s` counts from the last data received, `idle_ack_s` from the
    last acknowledgement. `state` is the kernel's number. Of `segments` with data, `retransmits` were
    sent again. `unread`: the program is slower than the network (`kernel.tcp_info.unread`), or
    `window_limit_bytes`, which who reads at once is granted, grows and the window does not yet.
    """

    key: FlowKey
    at_s: float
    state: int
    token: int | None
    rtt_s: float | None
    rtt_min_s: float | None
    delivery_rate_bps: float | None
    bytes_down: int
    bytes_up: int
    retransmits: int
    idle_down_s: float
    unacknowledged: int
    idle_ack_s: float = inf
    receive_rtt_s: float | None = None
    segments: int = 0
    unread: bool = False
    window_limit_bytes: int = 0

    def grew(self, before: "FlowSample | None") -> bool:
        """Return whether the limit has grown since: then its program reads."""
        return before is not None and self.window_limit_bytes > before.window_limit_bytes


class FlowSnapshots(Protocol):
    """A source of samples of the living TCP flows (`flow_monitor.FlowMonitor`)."""

    async def snapshot(self) -> list[FlowSample]:
        """Raise OSError or TimeoutError where the kernel does not tell."""


T = TypeVar("T")


class Mailbox(Generic[T]):
    """Events on their way to one consumer. A consumer that stands still loses the oldest, counted."""

    def __init__(self, limit: int = 100_000) -> None:
        self.dropped = 0
        self._items: deque[T] = deque()
        self._limit = limit
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, item: T) -> None:
        if len(self._items) >= self._limit:
            self._items.popleft()
            self.dropped += 1
        self._items.append(item)
        self._wake.set()

    def close(self) -> None:
        """End the iteration once it is empty."""
        self._closed = True
        self._wake.set()

    async def iterate(self) -> AsyncIterator[T]:
        while True:
            while self._items:
                yield self._items.popleft()
            if self._closed:
                return
            self._wake.clear()
            await self._wake.wait()
