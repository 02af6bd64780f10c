"""The host's flows by netlink events: opened, sampled, closed.

- A flow that this host begins opens with connection tracking's NEW event, at the first packet.
- A flow from outside opens when a socket of this host answers for it. Packets alone, which any host can
  send, open nothing.
- A TCP flow or MPTCP subflow closes with sock_diag's destroy notification, which has its last `tcp_info`.
- A UDP flow closes when connection tracking gives it up.

Events of one flow have the same 4-tuple. If the kernel dropped events, or a flow is in doubt, the
monitor compares the flows that it knows with the sockets that there are (`_compare`).
"""

import asyncio
import contextlib
import errno
import math
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, TypeVar

from cedos.controller.events import FlowClosed, FlowEvent, FlowOpened
from cedos.host.monitor.events import Mailbox
from cedos.host.monitor.flow_source import FlowSource, KernelFlows, is_own
from cedos.kernel import conntrack, sock_diag
from cedos.model import Address, FlowKey, FlowSample

T = TypeVar("T")

_BUCKETS = 32


class FairTable(Generic[T]):
    """A table of flows that strangers may fill, of at most `limit` entries, shared fairly among peers.

    Each peer has a bucket by a salted hash of its address (as in stochastic fair queueing, McKenney
    1990). A peer that sends much drives out only the oldest entries of its own bucket, in which one in 32
    of the other peers has its entries, too.
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
        """Add or replace an entry; return the flow that was dropped for it, if any."""
        bucket = self._bucket(key)
        bucket[key] = value
        return bucket.popitem(last=False)[0] if len(bucket) > self._share else None

    def pop(self, key: FlowKey) -> T | None:
        return self._bucket(key).pop(key, None)

    def _bucket(self, key: FlowKey) -> "OrderedDict[FlowKey, T]":
        return self._buckets[hash((self._salt, key.remote)) % _BUCKETS]


# The least time between two comparisons. Each reads every socket and tracked flow.
_REST_S = 1.0
# A comparison waits this long for events of closed flows, which tell more than their absence.
_GRACE_S = 0.05
# An event of an opening is handled within this time; a socket that was seen earlier is known already.
_EVENT_S = 1.0
# The most flows from outside that wait for a socket, and the most known UDP flows of this host.
_MOST_CALLERS, _MOST_UDP = 1024, 2048
# The most flows that are followed. Beyond them a comparison finds those of each user that are.
_MOST_LIVING = sock_diag.MOST + _MOST_UDP
# A program can open flows faster than they are handled. Beyond so many waiting events openings are not
# told, as if the kernel had dropped them; a comparison finds the flows that live on.
_MOST_WAITING = 1024
_IS_LOOPBACK = attrgetter("is_loopback")
# The number of tracked flows that a comparison reads in one turn of the event loop.
_AT_ONCE = 256
# If openings were not seen at the start, test again after these times.
_CHECKED_AGAIN_S = (2.0, 4.0, 8.0)


@dataclass(slots=True)
class _Living:
    """A living flow.

    `opened_unix_s`: its opening as it was announced; None: it was not. `seen_at_s`: when its socket was
    first seen. `untold`: too many events waited when it opened; a comparison announces it.
    """

    opened_unix_s: float | None
    sample: FlowSample | None = None
    seen_at_s: float = -math.inf
    untold: bool = False


class FlowMonitor:
    """Flows opening, living and closing, as an asynchronous context manager.

    Flows whose address is not this host's own (loopback, containers, forwarded ones) are left out, and
    those that stay within the host, whose other end `is_here` too: they say nothing of a network.
    `overflows` counts how often the kernel dropped events; a comparison then finds what was missed.
    `problem` says why openings are not seen. HostError on entering: the kernel has no destroy
    notifications.
    """

    def __init__(
        self,
        is_local: Callable[[Address], bool],
        is_here: Callable[[Address], bool] | None = None,
        *,
        source: FlowSource | None = None,
    ) -> None:
        self.overflows = 0
        self.problem = ""
        self._is_local = is_local
        self._is_here = is_here or is_local
        # Living TCP flows within the host. They stay so if the other end loses its address.
        self._within: set[FlowKey] = set()
        self._given_source = source
        self._living: dict[FlowKey, _Living] = {}
        self._callers: FairTable[float] = FairTable(_MOST_CALLERS)
        self._udp: FairTable[None] = FairTable(_MOST_UDP)
        self._mailbox: Mailbox[FlowEvent] = Mailbox()
        self._doubt = asyncio.Event()
        self._missed = False
        self._checking: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "FlowMonitor":
        self._source = self._given_source or KernelFlows(is_local=self._is_local)
        try:
            self._source.start(self._on_tracked, self._on_destroyed, self._overflow)
            # Flows that are older than this monitor: remember them, so that their end is noticed, but do
            # not announce them.
            with contextlib.suppress(OSError, TimeoutError):
                await self.snapshot()
            for known in self._living.values():
                known.seen_at_s = -math.inf
            await self.check_tracking()
        except BaseException:
            self._source.close()
            raise
        self._task = asyncio.create_task(self._resync(), name="flows")
        if self.problem:
            self._checking = asyncio.create_task(self._check_again(), name="tracking")
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = {self._task} if self._checking is None else {self._task, self._checking}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._source.close()
        self._mailbox.close()

    def events(self) -> AsyncIterator[FlowEvent]:
        return self._mailbox.iterate()

    async def snapshot(self) -> list[FlowSample]:
        """Return the living TCP flows and subflows. Errors: OSError, TimeoutError."""
        before = frozenset(self._within)
        sockets = await self._source.sockets()
        self._within -= before.difference(each.key for each in sockets)
        at_s = time.monotonic()
        samples = []
        for sample in sockets:
            if self.is_within(sample.key):
                self._keep_within(sample.key)
                continue
            if not self._counts(sample.key):
                continue
            samples.append(sample)
            self._open_from_outside(sample.key)
            self._living.setdefault(sample.key, _Living(None, seen_at_s=at_s)).sample = sample
        return samples

    async def mark(self, key: FlowKey) -> int | None:
        """Return the mark (SO_MARK) of a living TCP flow's socket; None: it has none, or is gone."""
        try:
            return await self._source.mark(key) or None
        except (OSError, TimeoutError):
            return None

    async def check_tracking(self, timeout_s: float = 0.2) -> str:
        """Test with a datagram on the loopback whether openings are seen; return the new `problem`."""
        self.problem = await self._source.blindness(timeout_s)
        return self.problem

    async def _check_again(self) -> None:
        """Check again later: steering adds its tracking rules only after this monitor has begun."""
        for wait_s in _CHECKED_AGAIN_S:
            await asyncio.sleep(wait_s)
            if not await self.check_tracking():
                return

    def is_within(self, key: FlowKey) -> bool:
        """Return whether a flow stays within this host, by an own address or a container's."""
        ends = key.local, key.remote
        return key in self._within or any(map(_IS_LOOPBACK, ends)) or self._is_here(key.remote)

    def _keep_within(self, key: FlowKey) -> None:
        if key.protocol == "tcp" and len(self._within) < _MOST_LIVING:
            self._within.add(key)
        if key in self._living:  # it began before its other end was known to be here
            self._close(key, exact=False)

    def _counts(self, key: FlowKey) -> bool:
        return key in self._living or self._is_local(key.local)

    def _on_tracked(self, tracked: conntrack.Tracked) -> None:
        if (
            (tracked.ended or tracked.protocol != "tcp")
            and not self._is_local(tracked.original.source)
            and self._is_local(tracked.reply.source)
        ):
            # A stranger causes these events at will. Only an opening towards one of our sockets counts.
            return
        found = conntrack.flow_of(tracked, self._is_local)
        if found is None and tracked.ended:
            # Its local address may be gone by now. Accept any address: `_counts` knows its 4-tuple.
            found = conntrack.flow_of(tracked, lambda address: True)
        if found is None or not self._counts(found[0]):
            return
        key, incoming = found
        # (A rule of NAT may lead it to this host.)
        answers = tracked.original.source if incoming else tracked.reply.source
        if self.is_within(key) or answers.is_loopback or self._is_here(answers):
            if key in self._living or not tracked.ended:
                self._keep_within(key)
            return
        # It begins: a flow of ours opens at once, one from outside once a socket answers for it.
        if not tracked.ended:
            if not incoming:
                self._open(key, time.time())
            elif key not in self._living:
                self._callers.put(key, time.time())
                self._doubt.set()
        # It ends: connection tracking has counted a UDP flow's bytes; TCP's come from its socket.
        elif key.protocol == "udp":
            up, down = tracked.bytes_original, tracked.bytes_reply
            counted = up is not None and down is not None
            self._close(key, down or 0, up or 0, exact=counted)
        elif key in self._living:
            # A TCP flow should end with its socket. There may be none (a raw packet), or the entry was
            # deleted by hand: compare.
            self._doubt.set()

    def _open(self, key: FlowKey, at_unix_s: float, *, incoming: bool = False) -> None:
        known = self._living.get(key)
        # A look at the sockets may have come just before this event: then announce the flow now. One
        # that has lived for longer was announced, or is older than this monitor.
        if known is not None and (
            known.opened_unix_s is not None or time.monotonic() - known.seen_at_s > _EVENT_S
        ):
            return
        full = known is None and len(self._living) >= _MOST_LIVING
        if full or len(self._mailbox) >= _MOST_WAITING:
            if key.protocol == "tcp" and not full:  # only its socket shows that a flow still lives
                self._living.setdefault(key, _Living(None)).untold = True
            self._doubt.set()
            return
        self._living.setdefault(key, _Living(None)).opened_unix_s = at_unix_s
        self._mailbox.put(FlowOpened(key, time.monotonic(), at_unix_s, incoming, own=is_own(key)))
        if key.protocol == "udp" and (oldest := self._udp.put(key, None)) is not None:
            self._close(oldest, exact=False)

    def _open_from_outside(self, key: FlowKey) -> None:
        """Open a flow from outside, since a socket answers for it."""
        if (called_unix_s := self._callers.pop(key)) is not None:
            self._open(key, called_unix_s, incoming=True)

    def _on_destroyed(self, last: FlowSample) -> None:
        if self.is_within(last.key):
            self._keep_within(last.key)
            self._within.discard(last.key)
        elif self._counts(last.key):
            self._open_from_outside(last.key)
            self._close(last.key, last=last, exact=last.counted)

    def _close(
        self,
        key: FlowKey,
        bytes_down: int = 0,
        bytes_up: int = 0,
        *,
        exact: bool,
        last: FlowSample | None = None,
    ) -> None:
        """Announce a flow's end, with the figures of its last sample where there is one."""
        known = self._living.pop(key, None)
        if key.protocol == "udp":
            self._udp.pop(key)
        started = known.opened_unix_s if known is not None else None
        if started is None and len(self._mailbox) >= _MOST_WAITING:
            return  # its opening was not told either
        self._mailbox.put(
            FlowClosed(
                key,
                time.time(),
                bytes_down if last is None else last.bytes_down,
                bytes_up if last is None else last.bytes_up,
                rtt_s=None if last is None else last.rtt_s,
                rtt_min_s=None if last is None else last.rtt_min_s,
                delivery_rate_bps=None if last is None else last.delivery_rate_bps,
                retransmits=0 if last is None else last.retransmits,
                at_s=time.monotonic(),
                started_unix_s=started,
                exact=exact,
                idle_down_s=last.idle_down_s if last is not None and exact else None,
                idle_ack_s=last.idle_ack_s if last is not None and exact else None,
            )
        )

    def _overflow(self) -> None:
        self.overflows += 1
        self._missed = True
        self._doubt.set()

    async def _resync(self) -> None:
        while True:
            await self._doubt.wait()
            self._doubt.clear()
            try:
                await self._compare()
            except (OSError, TimeoutError):
                self._missed = True
                self._doubt.set()
            await asyncio.sleep(_REST_S)

    async def _compare(self) -> None:
        """Compare the known flows with those that there are, and announce what was missed."""
        before = dict(self._living)
        missed, self._missed = self._missed, False
        # 1. Connection tracking remembers flows for minutes after their end, so that it has many. Read
        # them only if events were dropped, for the UDP flows, which nothing else shows.
        try:
            entries = await self._source.entries() if missed else ()
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
            missed, entries = False, ()  # a program has filled the table
        if not missed:
            before = {key: known for key, known in before.items() if key.protocol == "tcp"}
        # 2. Open the flows that exist and were not known.
        present = {sample.key for sample in await self.snapshot()}
        for number, entry in enumerate(entries):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # there may be hundreds of thousands
            found = conntrack.flow_of(entry, self._is_local)
            if found is None or found[1] or found[0].protocol != "udp":
                continue
            if self._counts(found[0]) and not self.is_within(found[0]):
                present.add(found[0])
                self._open(found[0], time.time())
        for key in present:
            new = self._living.get(key)
            if new is None or new.opened_unix_s is not None or (key in before and not new.untold):
                continue
            new.untold = len(self._mailbox) >= _MOST_WAITING
            if new.untold:
                self._doubt.set()
                continue
            new.opened_unix_s = time.time()
            self._mailbox.put(FlowOpened(key, time.monotonic(), new.opened_unix_s, own=is_own(key)))
        # 3. Close the flows that were known and do not exist. Wait for events that may still come: they
        # have the flows' final counts.
        await asyncio.sleep(_GRACE_S)
        for key in before.keys() - present:
            if key in self._living:
                self._close(key, last=before[key].sample, exact=False)
