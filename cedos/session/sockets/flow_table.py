"""The accepting end's flows: those that live, and those that sleep in a file.

A flow has three states:

| state | next | when |
|---|---|---|
| active | written down | no data waits for a moment, and the application rests between two requests |
| written down | active | data is sent or received: its record counts no more, before anyone acts on it |
| written down | asleep | it has no path for some seconds: nothing of it stays in memory |
| asleep | active | its peer resumes it: its record counts no more |

A program that begins anew, after `kill -9` say, knows the flows that were written down or asleep. It has
no others: what their applications had begun is lost, so their peers have to begin anew, too.
"""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heapreplace
from itertools import islice
from pathlib import Path
from typing import Final

from cedos.errors import SessionAsleepError, SessionError
from cedos.session.io.driver import Driver
from cedos.session.io.flow import FlowObserver
from cedos.session.io.idle_sessions import IdleSessions
from cedos.session.io.path import SessionPath
from cedos.session.protocol.frames import Sync
from cedos.session.protocol.handshake.accepting import (
    FlowGrant,
    FlowRefusal,
    FlowRefusalReason,
    OpenRequest,
)
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.protocol.handshake.limits import HostLedger, network_of
from cedos.session.protocol.handshake.outcome import Opened
from cedos.session.protocol.life import SessionLimits
from cedos.session.protocol.schedulers.interface import Scheduler
from cedos.session.protocol.session import Session
from cedos.session.sockets.connection import Connection
from cedos.session.unhurried_clock import UnhurriedClock

LONGEST_S: Final = 30 * 86_400
_AGAIN_S: Final = 60
_SOON_S: Final = 0.02  # between two requests a flow is quiet for so long, or it costs too much
_AT_ONCE: Final = 256  # flows that are looked at in a turn of the event loop
_LOOKS: Final = 25  # so often: what was sent last may be acknowledged only a round trip later
_NOTE_S: Final = 1.0
_ASLEEP_S: Final = 3.0
# The number of ended sessions after which Python's garbage collector runs. Their objects refer to
# each other, and the collector starts only when objects are made. Each run looks at all that live,
# so it is not run for a few.
_COLLECTED: Final = 64
_COLLECTED_SHARE: Final = 4


class FlowTable:
    """The flows by their id; sleeping ones are in the file `idle`, if any.

    `allow`: whether the holder of a public key may open flows; everyone without.

    SessionError: the file cannot be used.
    """

    def __init__(
        self,
        driver: Driver,
        allow: Callable[[bytes], bool] | None,
        ledger: HostLedger,
        idle: Path | None,
    ) -> None:
        self._driver = driver
        self._allow = allow
        self._ledger = ledger
        self._living: dict[bytes, Connection] = {}
        self._idle = None if idle is None else IdleSessions(idle, ledger.limits.asleep)
        # The one that was quiet for the longest time first; how often it was not idle since then.
        self._active: dict[bytes, int] = {}
        self._written: dict[bytes, Sync] = {}  # where the flows are whose records count
        self._not_idle: set[bytes] = (
            set()
        )  # quiet ones that could not be written down, or have no path
        self._soon: asyncio.TimerHandle | None = None
        self._absent: dict[bytes, None] = {}  # flows without a path, the longest time first
        self._timer: asyncio.TimerHandle | None = None
        self._slept = 0  # since what they were was collected
        self._clock = UnhurriedClock()
        self._ended = False
        if self._idle is not None:
            if allow is not None:  # who was let in once may not be any more
                self._idle.keep_only(allow)
            self._plan()

    def find(self, flow_id: bytes) -> Credentials | None:
        connection = self._living.get(flow_id)
        if connection is not None:
            return connection.flow.credentials
        return None if self._idle is None else self._idle.find(flow_id)

    def get(self, flow_id: bytes) -> Connection | None:
        return self._living.get(flow_id)

    def peer_of(self, key: bytes, address: str) -> str:
        """Return who a connection counts for.

        Where strangers are let in, keys cost nothing: then an address is one peer.
        """
        return key.hex() if self._allow is not None else network_of(address)

    def has_room(self, flow_id: bytes, peer: str, *, only: bool) -> bool:
        """Return whether a peer's connection may become a path of this flow (its `only` one)."""
        living = self._living.get(flow_id)
        replaces = only and living is not None and bool(living.flow.paths)
        return replaces or self._ledger.has_room(peer)

    def admit(self, request: OpenRequest) -> FlowGrant | FlowRefusal:
        if self.find(request.flow_id) is not None:
            return FlowRefusal(FlowRefusalReason.DUPLICATE)
        if self._allow is not None and not self._allow(request.peer_key):
            return FlowRefusal(FlowRefusalReason.NOT_ALLOWED)
        kept = 0 if self._idle is None else self._idle.of_host(request.peer_key)
        ledger, peer = self._ledger, self.peer_of(request.peer_key, request.address)
        if not (ledger.may_open(request.host_id, kept) and ledger.has_room(peer)):
            return FlowRefusal(FlowRefusalReason.LIMIT, _AGAIN_S)
        return FlowGrant(min(request.deadline_s, LONGEST_S))

    def add(
        self, opened: Opened, core: Session, peer_address: tuple[str, int], *, resumed: bool = False
    ) -> Connection:
        flow_id, host = opened.credentials.flow_id, opened.host_id

        def came(path: SessionPath) -> None:
            self._absent.pop(flow_id, None)
            connection.account = path.account
            self._ledger.add_connection(path.account)

        def went(path: SessionPath) -> None:
            self._ledger.take_connection(path.account)
            if not connection.flow.paths:
                self._absent[flow_id] = None

        def over() -> None:
            failure = self._living.pop(flow_id).failure
            self._absent.pop(flow_id, None)
            self._ledger.close_flow(host)
            self._active.pop(flow_id, None)
            self._not_idle.discard(flow_id)
            self._written.pop(flow_id, None)
            if self._idle is not None and not isinstance(failure, SessionAsleepError):
                self._idle.forget(flow_id)

        def active(sends: bool) -> None:
            there = self._written.get(flow_id)
            if there is not None and (sends or self._living[flow_id].flow.core.has_moved(there)):
                self._withdraw(flow_id)
            self._active.pop(flow_id, None)
            self._active[flow_id] = 0
            if self._soon is None and not self._ended:
                self._soon = self._driver.loop.call_later(_SOON_S, self._note_quiet)

        connection = self._living[flow_id] = Connection(
            self._driver,
            core,
            credentials=opened.credentials,
            resumed=resumed,
            peer_address=peer_address,
            observer=FlowObserver(came, went, None if self._idle is None else active, over),
        )
        self._ledger.open_flow(host)
        self._plan()
        if self._idle is not None and not resumed:
            self._idle.note(opened.credentials, opened.deadline_s, time.time())
        return connection

    def wake(
        self,
        opened: Opened,
        peer_address: tuple[str, int],
        scheduler: Callable[[], Scheduler],
        limits: SessionLimits,
    ) -> Connection | None:
        """Return a connection for a flow that slept; None: it has expired meanwhile."""
        if self._idle is None:
            return None
        found = self._idle.wake(
            opened.credentials.flow_id, scheduler(), self._driver.now(), self._clock.now_s(),
            limits=limits, memory=self._driver.memory,
        )  # fmt: skip
        if found is None:
            return None
        core, state = found
        connection = self.add(opened, core, peer_address, resumed=True)
        connection.kept_state = state
        return connection

    def _plan(self) -> None:
        if self._timer is None and not self._ended:
            self._timer = self._driver.loop.call_later(_NOTE_S, self._check)

    def _check(self) -> None:
        """Bound what hosts cost; write down idle flows. There may be 100,000: a few in each turn."""
        self._look(iter(list(self._living)), [])

    def _look(self, left: Iterator[bytes], unread: list[tuple[Connection, int]]) -> None:
        """Look at a few of the flows that are left; at the end judge what all had `unread`."""
        few = list(islice(left, _AT_ONCE))
        # What comes next does not depend on what becomes of this.
        if few:
            self._driver.loop.call_soon(self._look, left, unread)
        else:
            self._timer = None
            if self._idle is not None or self._living:
                self._plan()
            self._bound(unread)
            self._forget()
        living = filter(None, map(self._living.get, few))
        unread += [(connection, connection.unread_bytes) for connection in living]
        self._write_down(self._not_idle.intersection(few))

    def _bound(self, unread: list[tuple[Connection, int]]) -> None:
        """End flows of hosts that cost more memory than they may, the largest of the busiest first.

        An attacker may ask for very much on many flows and go (DTP, section 7, "State Explosion
        Attacks"), or send on many flows what the application does not read.
        """
        limits = self._ledger.limits
        most_bytes = limits.idle_bytes_per_host
        why = f"its host is away and has more than {most_bytes} bytes kept here for it"
        _end_largest([(self._living[each], self._living[each].held_bytes) for each in self._absent],
                     most_bytes, why)  # fmt: skip
        _end_oldest([self._living[each] for each in self._absent], limits.absent)
        most_bytes = limits.unread_bytes_per_host
        why = f"its host has sent more than {most_bytes} bytes that are not read here"
        _end_largest(unread, most_bytes, why)
        most_bytes = limits.unread_bytes
        why = f"more than {most_bytes} bytes of all hosts are not read here"
        _end_largest(unread, most_bytes, why, together=True)

    def _note_quiet(self) -> None:
        """Write down flows that have just fallen quiet."""
        self._soon = None
        now, unix_s = self._driver.now(), time.time()
        for _ in range(_AT_ONCE):
            if not self._active or self._idle is None:
                return
            # The flow that was quiet for the longest time comes first.
            flow_id = next(iter(self._active))
            flow = self._living[flow_id].flow
            if (left_s := flow.active_s + _SOON_S - now) > 0:
                self._soon = self._driver.loop.call_later(left_s, self._note_quiet)
                return
            looks = self._active.pop(flow_id)
            kept = self._keep(flow_id, now, unix_s)
            # Not idle yet: its last bytes may be acknowledged a round trip later.
            if not kept and flow.paths and looks < _LOOKS:
                flow.active_s = now
                self._active[flow_id] = looks + 1
            elif not kept or not flow.paths:
                self._not_idle.add(flow_id)
        self._soon = self._driver.loop.call_later(0.0, self._note_quiet)

    def _write_down(self, flows: set[bytes]) -> None:
        """Write down those of flows that have become idle, and put those without a path to sleep."""
        now, unix_s = self._driver.now(), time.time()
        for flow_id in flows:
            connection = self._living[flow_id]
            flow = connection.flow
            if now - flow.active_s < _NOTE_S or flow.credentials is None:
                continue
            # Idle with a path: written down. Idle without one for a while: put to sleep.
            idle = self._keep(flow_id, now, unix_s)
            if idle and flow.paths:
                self._not_idle.discard(flow_id)
            elif idle and now - flow.active_s > _ASLEEP_S:
                connection.fail(SessionAsleepError("the session sleeps until a network comes back"))
                self._slept += 1

    def _forget(self) -> None:
        """Forget what has expired, and what fell asleep."""
        if self._idle is not None:
            self._idle.expire(self._clock.now_s(), self._living.__contains__)
        if self._slept >= max(_COLLECTED, len(self._living) // _COLLECTED_SHARE):
            self._slept = 0
            self._driver.loop.call_later(_NOTE_S, gc.collect)  # their tasks have ended by then

    def _keep(self, flow_id: bytes, now: float, unix_s: float) -> bool:
        if self._idle is None:
            return False
        connection = self._living[flow_id]
        kept = connection.keep(self._idle, now, unix_s)
        if kept:
            self._written[flow_id] = connection.flow.core.positions()
        elif flow_id in self._written:
            self._withdraw(flow_id)
        return kept

    def _withdraw(self, flow_id: bytes) -> None:
        """Let a record count no more: its flow goes on."""
        del self._written[flow_id]
        if self._idle is not None:
            self._idle.withdraw(flow_id)

    def close(self) -> None:
        """Write down idle flows without a path; the file keeps them. Others are told of the end here."""
        self._ended = True
        for timer in (self._timer, self._soon):
            if timer is not None:
                timer.cancel()
        self._timer = self._soon = None
        if self._idle is not None:
            for flow_id, connection in self._living.items():
                if connection.flow.paths:
                    self._idle.forget(flow_id)
                else:
                    self._keep(flow_id, self._driver.now(), time.time())
            self._idle.close()
            self._idle = None


def _end_largest(
    held: Sequence[tuple[Connection, int]], most_bytes: int, why: str, *, together: bool = False
) -> None:
    """End the largest flow of the host that holds most until it, or all `together`, hold no more."""
    # (Some ended since they were counted.)
    flows = [(bytes_, each) for each, bytes_ in held if bytes_ and not each.ended]
    of_host: Counter[str] = Counter()
    for bytes_, each in flows:
        of_host[each.account] += bytes_
    left = sum(of_host.values())
    if (left if together else max(of_host.values(), default=0)) <= most_bytes:
        return
    theirs: dict[str, list[tuple[int, Connection]]] = {host: [] for host in of_host}
    for flow in sorted(flows, key=lambda flow: flow[0]):
        theirs[flow[1].account].append(flow)
    busiest = [(-bytes_, host) for host, bytes_ in of_host.items()]
    heapify(busiest)
    while (left if together else -busiest[0][0]) > most_bytes:
        less, host = busiest[0]
        bytes_, each = theirs[host].pop()
        left -= bytes_
        heapreplace(busiest, (less + bytes_, host))
        each.fail(SessionError(why))


def _end_oldest(flows: list[Connection], most: int) -> None:
    """End the flows beyond `most`, the oldest first: those of hosts that have many before others."""
    if len(flows) <= most:
        return
    newer: Counter[str] = Counter()  # of the same host
    order: list[tuple[int, int, Connection]] = []
    for age, each in enumerate(reversed(flows)):
        order.append((newer[each.account], age, each))
        newer[each.account] += 1
    order.sort(key=lambda each: each[:2], reverse=True)
    for _, _, each in order[: len(flows) - most]:
        each.fail(SessionError(f"{most} sessions without a network are all that are kept here"))
