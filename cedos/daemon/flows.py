"""The living flows as the daemon knows them: subflows joined, bytes counted, decisions remembered.

Pure: events in, records out. A TCP connection is one flow with one path; an MPTCP connection is one
flow with several, joined by its token.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cedos.model import (
    Address,
    Context,
    Decision,
    Direction,
    FlowKey,
    FlowRecord,
    Label,
    Network,
    SizeEstimate,
    Strategy,
    Subflow,
    Transfer,
)
from cedos.monitor.events import FlowClosed, FlowOpened, FlowSample
from cedos.profiler.profiler import SizeLearned
from cedos.selector.uncertainty.reevaluate import Reevaluation

STALLED_S = 0.4
"""A transfer that waits and has heard nothing for so long, and for `_STALLED_RTTS`, is stalled."""

_STALLED_RTTS = 4.0
_BUSY_IDLE_S = 0.15
_RATE_S = 1.0
"""Rates are taken over so long a time, as far as there are looks."""

_LEAST_RATE_S = 0.5
_HURRY_S = 5.0
"""Silence is answered in a hurry for so long; then it may be a program that does not read."""


@dataclass(slots=True)
class Path:
    """One subflow: the last look at it, and its final figures once it has ended."""

    key: FlowKey
    network: str | None
    sample: FlowSample | None = None
    closed: FlowClosed | None = None
    rescued: bool = False

    @property
    def bytes_down(self) -> int:
        """Payload bytes received so far."""
        last = self.closed or self.sample
        return last.bytes_down if last else 0

    @property
    def bytes_up(self) -> int:
        """Payload bytes acknowledged by the other side so far."""
        last = self.closed or self.sample
        return last.bytes_up if last else 0

    @property
    def heard_s(self) -> float:
        """Seconds, at the last look, since the other side was heard of on this path."""
        sample = self.sample
        return min(sample.idle_down_s, sample.idle_ack_s) if sample else math.inf


@dataclass(slots=True)
class LivingFlow:
    """A flow: its paths, the transfer it carries now, and what was decided about it.

    `base_bytes` is what the flow had carried, in the transfer's direction, when the transfer began;
    `transfers` counts those that have begun. `context` is what was known when the flow began.
    """

    key: FlowKey
    started_at_s: float
    started_unix_s: float | None
    incoming: bool = False
    token: int | None = None
    paths: dict[FlowKey, Path] = field(default_factory=dict)
    transfer: Transfer | None = None
    base_bytes: int = 0
    strategy: Strategy | None = None
    decision: int | None = None
    switches: list[tuple[float, Strategy]] = field(default_factory=list)
    server_name: str | None = None
    rate_bps: float | None = None
    stalled_s: float = 0.0
    transfers: int = 0
    context: Context | None = None
    _watch: Reevaluation | None = None
    _watched: tuple[float, int] = (0.0, 0)
    _looks: deque[tuple[float, int]] = field(default_factory=deque)
    _waiting_since_s: float | None = None

    def carried(self, direction: Direction) -> int:
        """Bytes of all paths in one direction."""
        return sum(
            path.bytes_down if direction is Direction.DOWN else path.bytes_up
            for path in self.paths.values()
        )

    @property
    def remaining_bytes(self) -> int | None:
        """How much of the transfer is still to come, by its median size; None without a transfer."""
        if self.transfer is None:
            return None
        carried = self.carried(self.transfer.direction) - self.base_bytes
        return max(self.transfer.size.median_bytes - carried, 0)

    @property
    def exact(self) -> bool:
        """Whether the size of the transfer under way is known for certain."""
        return self.transfer is not None and self.transfer.size.source == "content-length"

    def waits_on(self, path: Path) -> bool:
        """Whether something must come back on this path: an acknowledgement, or the rest of an answer.

        Nothing can be said of a download of unknown length: its server may have no more to say.
        """
        sample = path.sample
        if sample is None or path.closed is not None:
            return False
        if sample.unacknowledged:
            return True
        if self.transfer is None or self.transfer.direction is Direction.UP or not self.exact:
            return False
        active = self.strategy is None or path.network in self.strategy.networks
        return active and bool(self.remaining_bytes)

    @property
    def under_way(self) -> bool:
        """Whether it is worth a close look: more than a moment's worth is still to come."""
        return bool(self.exact and self.remaining_bytes) or any(
            path.sample.unacknowledged for path in self.paths.values() if path.sample
        )

    def expects(self, rest_s: float, now_s: float) -> None:
        """The rest is expected to take so long; what was expected before holds while nothing comes."""
        if self._watch is None or self._has_come():
            self._watch = Reevaluation(now_s, rest_s)
            self._watched = (now_s, self._carried_now())

    def waited_s(self, now_s: float) -> float:
        """For how long nothing has come since something was expected of it; 0 where it was not."""
        if self._watch is None or not self.under_way or self._has_come():
            return 0.0
        return max(now_s - self._watched[0], 0.0)

    def late(self, now_s: float) -> bool:
        """Whether nothing has come for so much longer than expected that it is a reason to doubt."""
        return self.waited_s(now_s) > 0.0 and self._watch is not None and self._watch.late(now_s)

    def overdue(self, now_s: float) -> bool:
        """Whether silence is a reason to decide again now; that is taken, and comes again in a while."""
        watch = self._watch
        if watch is None or now_s > watch.late_at_s + _HURRY_S:
            return False
        return self.waited_s(now_s) > 0.0 and watch.due(now_s)

    def _has_come(self) -> bool:
        return self._carried_now() > self._watched[1]

    def _carried_now(self) -> int:
        return self.carried(self.transfer.direction) if self.transfer else 0

    def begin_anew(self) -> None:
        """Another transfer begins on this flow: what the last one's rate was says nothing of it."""
        self._watch = None
        self.rate_bps = self._waiting_since_s = None
        self._looks.clear()
        self.transfers += 1

    def decided(self, decision: Decision) -> None:
        """It is carried by this decision from now on."""
        self.strategy, self.decision = decision.choice, decision.number
        self.switches.append((decision.made_unix_s, decision.choice))

    def moved(self) -> None:
        """It goes another way now: what its rate was says nothing of that."""
        self._watch = None
        self.rate_bps = self._waiting_since_s = None
        self._looks.clear()

    def looked(self, now_s: float) -> None:
        """Notes the rate of the last second, where the network and not the program set it.

        A download that receives at a look goes as fast as it can; a transfer that must hear of the
        other side on all the paths that it uses, and does not, is stalled. Nothing can be said of
        others: a program may be pausing.
        """
        direction = self.transfer.direction if self.transfer else Direction.DOWN
        self._looks.append((now_s, self.carried(direction)))
        while len(self._looks) > 2 and self._looks[1][0] <= now_s - _RATE_S:
            self._looks.popleft()
        self.rate_bps = None
        self.stalled_s = 0.0
        if self.transfer is None:
            return
        if (stalled_s := self._stall_s(now_s)) is not None:
            self.rate_bps, self.stalled_s = 0.0, stalled_s
            return
        (before_at_s, before), (_, carried) = self._looks[0], self._looks[-1]
        if now_s - before_at_s < _LEAST_RATE_S or carried <= before:
            return
        samples = [path.sample for path in self.paths.values() if path.sample]
        if direction is Direction.UP:
            busy = any(sample.unacknowledged for sample in samples)
        else:
            busy = self.exact and bool(self.remaining_bytes)
            busy = busy and min(each.idle_down_s for each in samples) < _BUSY_IDLE_S
        if busy:
            self.rate_bps = 8.0 * (carried - before) / (now_s - before_at_s)

    def _stall_s(self, now_s: float) -> float | None:
        waiting = [path for path in self.paths.values() if self.waits_on(path)]
        if not waiting:
            self._waiting_since_s = None
            return None
        if self._waiting_since_s is None:
            self._waiting_since_s = now_s
        # What comes on any path shows that the transfer goes on.
        open_paths = [path for path in self.paths.values() if path.closed is None]
        heard_s = min(path.heard_s for path in open_paths)
        rtt_s = max((path.sample.rtt_s or 0.0 for path in waiting if path.sample), default=0.0)
        patience_s = max(STALLED_S, _STALLED_RTTS * rtt_s)
        stalled_s = min(heard_s, now_s - self._waiting_since_s)
        return stalled_s if stalled_s > patience_s else None


class Flows:
    """All living flows. Every method takes events; none does I/O."""

    def __init__(self) -> None:
        self._by_key: dict[FlowKey, LivingFlow] = {}
        self._by_token: dict[int, LivingFlow] = {}
        self._owners: Mapping[Address, str] = {}
        self._used_at_s: dict[str, float] = {}

    def idle_s(self, now_s: float) -> dict[str, float]:
        """Network -> seconds since a flow last moved bytes over it; absent: not since the start."""
        return {name: max(0.0, now_s - at_s) for name, at_s in self._used_at_s.items()}

    def __iter__(self) -> Iterator[LivingFlow]:
        seen: set[int] = set()
        for flow in list(self._by_key.values()):
            if id(flow) not in seen:
                seen.add(id(flow))
                yield flow

    def __len__(self) -> int:
        return len({id(flow) for flow in self._by_key.values()})

    def networks_changed(self, networks: Iterable[Network]) -> None:
        """Takes all networks: a path belongs to the one that has its local address."""
        self._owners = {address.ip: each.name for each in networks for address in each.addresses}

    def find(self, key: FlowKey) -> LivingFlow | None:
        """The flow that has this path."""
        return self._by_key.get(key)

    def rescued(self, key: FlowKey, network: str) -> LivingFlow | None:
        """A path is carried by another network than its local address says (`daemon.rescue`)."""
        flow = self._by_key.get(key)
        if flow is not None:
            path = flow.paths[key]
            path.network, path.rescued = network, network != self._owners.get(key.local)
        return flow

    def at_home(self, samples: Iterable[FlowSample]) -> list[FlowSample]:
        """The samples of paths whose local address is that of the network that carries them."""
        return [sample for sample in samples if not self._is_rescued(sample.key)]

    def _is_rescued(self, key: FlowKey) -> bool:
        flow = self._by_key.get(key)
        return flow is not None and key in flow.paths and flow.paths[key].rescued

    def opened(self, event: FlowOpened) -> LivingFlow:
        """A first packet was seen. A further subflow is told apart when its token is known."""
        flow = self._by_key.get(event.key)
        if flow is None:
            flow = LivingFlow(event.key, event.at_s, event.at_unix_s, event.incoming)
            self._add_path(flow, event.key)
        self._used(flow.paths[event.key], event.at_s)
        return flow

    def joined(self, token: int, key: FlowKey, now_s: float) -> LivingFlow:
        """The subflow `key` belongs to the MPTCP connection `token`, which may be new."""
        flow = self._by_token.get(token)
        found = self._by_key.get(key)
        if flow is None:
            flow = found or LivingFlow(key, now_s, None)
            flow.token = token
            self._by_token[token] = flow
        if found is not flow:
            self._add_path(flow, key)
        return flow

    def sampled(self, samples: Iterable[FlowSample], now_s: float) -> list[LivingFlow]:
        """Takes a look at all sockets; returns the flows that were seen."""
        seen: dict[int, LivingFlow] = {}
        for sample in samples:
            if sample.token is not None:
                flow = self.joined(sample.token, sample.key, now_s)
            else:
                known = self._by_key.get(sample.key)
                if known is None:  # older than the daemon
                    known = LivingFlow(sample.key, now_s, None)
                    self._add_path(known, sample.key)
                flow = known
            path = flow.paths[sample.key]
            before = path.bytes_down + path.bytes_up
            path.sample = sample
            if path.bytes_down + path.bytes_up > before:
                self._used(path, now_s)
            seen[id(flow)] = flow
        for flow in seen.values():
            flow.looked(now_s)
        return list(seen.values())

    def learned(self, event: SizeLearned) -> LivingFlow | None:
        """The size of a transfer that begins, or a better estimate of the one under way."""
        flow = self._by_key.get(event.key)
        if flow is None:
            return None
        before = flow.transfer
        better = event.size.source == "progress" or (
            before is not None and before.size.source in ("default", "history", "hint")
        )
        if before is None or before.direction is not event.direction or not better:
            flow.base_bytes = flow.carried(event.direction)
            flow.begin_anew()
        flow.server_name = event.server_name or flow.server_name
        flow.transfer = Transfer(
            size=event.size,
            direction=event.direction,
            label=event.label or Label(),
            deadline_s=event.deadline_s,
            flow=flow.key,
            server_name=flow.server_name,
        )
        return flow

    def closed(self, event: FlowClosed) -> FlowRecord | None:
        """A path has ended; with a flow's last one its record comes back."""
        flow = self._by_key.get(event.key)
        if flow is None:
            return None
        path = flow.paths[event.key]
        path.closed = event
        self._used(path, event.at_s)
        if any(each.closed is None for each in flow.paths.values()):
            return None
        for key in flow.paths:
            self._by_key.pop(key, None)
        if flow.token is not None:
            self._by_token.pop(flow.token, None)
        return record(flow)

    def _used(self, path: Path, at_s: float) -> None:
        if path.network is not None:
            self._used_at_s[path.network] = max(at_s, self._used_at_s.get(path.network, at_s))

    def _add_path(self, flow: LivingFlow, key: FlowKey) -> None:
        flow.paths[key] = Path(key, self._owners.get(key.local))
        self._by_key[key] = flow


def record(flow: LivingFlow) -> FlowRecord:
    """The record of a flow whose paths have all ended."""
    ends = [path.closed for path in flow.paths.values() if path.closed is not None]
    started = [end.started_unix_s for end in ends if end.started_unix_s is not None]
    size: SizeEstimate | None = flow.transfer.size if flow.transfer else None
    return FlowRecord(
        subflows=tuple(
            Subflow(
                key=path.key,
                network=path.network,
                bytes_down=path.bytes_down,
                bytes_up=path.bytes_up,
                rtt_s=path.closed.rtt_s if path.closed else None,
                rtt_min_s=path.closed.rtt_min_s if path.closed else None,
                delivery_rate_bps=path.closed.delivery_rate_bps if path.closed else None,
                retransmits=path.closed.retransmits if path.closed else 0,
            )
            for path in flow.paths.values()
        ),
        token=flow.token,
        started_unix_s=flow.started_unix_s or min(started, default=None),
        ended_unix_s=max(end.ended_unix_s for end in ends),
        server_name=flow.server_name,
        decision=flow.decision,
        size=size,
        switches=tuple(flow.switches),
        exact=all(end.exact for end in ends),
    )
