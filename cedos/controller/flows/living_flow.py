"""A living flow: its paths, what it carries, how fast, and whether it waits. Pure."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from cedos.controller.events import FlowClosed, SizeLearned
from cedos.controller.flows.reading_pace import ReadingPace
from cedos.model import (
    CompetingTransfer,
    Context,
    Decision,
    Direction,
    FlowKey,
    FlowRecord,
    FlowSample,
    Label,
    Strategy,
    StrategyKind,
    Subflow,
    Transfer,
)
from cedos.selector.decision.living import Reevaluation
from predictors.inputs import FIRST_WINDOW_BYTES

# A transfer is stalled if it waits and received nothing for this time and for `_STALLED_RTTS`.
STALLED_S = 0.4

_STALLED_RTTS = 4.0
_BUSY_IDLE_S = 0.15
# The time over which rates are measured, if there are looks that far back.
RATE_S = 1.0

_LEAST_RATE_S = 0.5
# The greatest age of a flow that no look has seen.
_NEW_S = 1.0
_REMEMBERED = 20
# A path that carried less than one full packet has no part of the current transfer.
_CARRIED_BYTES = 1_400

# The largest download that counts as small. Its duration shows the state of its network.
SMALL_BYTES = 100_000

# A connection without a transfer that received nothing for this time rests, or its server thinks.
RESTS_S = 1.0

# A resting program that sends more than this, and is answered, makes a new request. A FIN or a
# window update takes fewer bytes.
_ASKS_BYTES = 100

# Bytes after a rest of this length belong to another transfer.
_OVER_S = 30.0

# A path carries the flow if the peer was heard over it within this time.
_LATELY_S = 3.0

# Silence up to this long is urgent. After it the program may simply not read.
_HURRY_S = 5.0


class PathWait(NamedTuple):
    """An open path of a flow: when it last heard something, and whether it waits for something.

    `heard_at_s`: on the monotonic clock, s.
    """

    key: FlowKey
    network: str
    heard_at_s: float
    waits: bool


@dataclass(slots=True)
class FlowPath:
    """A subflow: the last look at it, and its final figures once it has ended.

    `near`: its other end is of the network's own prefix. `unread`: much of what came waited for its
    program at the last look.
    """

    key: FlowKey
    network: str | None
    sample: FlowSample | None = None
    closed: FlowClosed | None = None
    near: bool = False
    unread: bool = False

    def on_sample(self, sample: FlowSample) -> bool:
        """Take a look at its socket; return whether it moved bytes since the last one."""
        before, last = self.bytes_down + self.bytes_up, self.sample
        self.unread = sample.unread and not sample.has_grown(last)
        self.sample = sample
        return self.bytes_down + self.bytes_up > before

    def on_close(self, event: FlowClosed) -> None:
        self.closed = event

    @property
    def bytes_down(self) -> int:
        """Return the payload bytes received so far."""
        last = self.closed or self.sample
        return last.bytes_down if last else 0

    @property
    def bytes_up(self) -> int:
        """Return the payload bytes acknowledged by the peer so far."""
        last = self.closed or self.sample
        return last.bytes_up if last else 0

    @property
    def heard_s(self) -> float:
        """Return the seconds, at the last look, since the peer was heard on this path."""
        sample = self.sample
        return min(sample.idle_down_s, sample.idle_ack_s) if sample else math.inf


@dataclass(slots=True, eq=False)
class LivingFlow:
    """A flow: its paths, the transfer it carries now, and what was decided about it.

    `base_bytes` is what the flow had carried, in the transfer's direction, when the transfer began;
    `transfers` counts those that have begun, as far as that is seen; `tls`: it began with a handshake
    of TLS. `context` is what was known when the flow began, `pace` how fast its program reads,
    `read_slowly` whether that ever set the pace, `tries` whether it goes over fewer networks now to see
    if that is enough. `broken`: the daemon has closed it. `own`: the daemon made it, to learn about a
    network. `still`: nothing is under way, and for a second or more each look was like the one before; a
    further look that is, too, tells nothing of it.
    """

    key: FlowKey
    started_at_s: float
    started_unix_s: float | None
    incoming: bool = False
    token: int | None = None
    paths: dict[FlowKey, FlowPath] = field(default_factory=dict)
    transfer: Transfer | None = None
    base_bytes: int = 0
    strategy: Strategy | None = None
    decision: int | None = None
    first_decision: int | None = None
    switches: list[tuple[float, Strategy]] = field(default_factory=list)
    server_name: str | None = None
    rate_bps: float | None = None
    stalled_s: float = 0.0
    transfers: int = 0
    tls: bool = False
    context: Context | None = None
    pace: ReadingPace = field(default_factory=ReadingPace)
    read_slowly: bool = False
    tries: bool = False
    broken: bool = False
    own: bool = False
    still: bool = False
    _still_at_s: float | None = None
    _before: tuple[Strategy | None, int | None] | None = None
    _watch: Reevaluation | None = None
    _watched: tuple[float, int] = (0.0, 0)
    _carried_at: deque[tuple[float, int]] = field(default_factory=deque)
    _rested: tuple[int, int] | None = None
    _rested_s: float = 0.0
    _waiting_since_s: float | None = None
    _switched_at_s: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def add_path(self, key: FlowKey, network: str | None, *, near: bool = False) -> None:
        self.paths[key] = FlowPath(key, network, near=near)
        self.still = False

    def note_mptcp(self, token: int) -> None:
        """Note that the flow is an MPTCP connection."""
        self.token = token

    def cut(self) -> None:
        """Note that the daemon closed it: what it carried says nothing of its size."""
        self.broken = True

    def began_in(self, context: Context) -> None:
        self.context = context

    def carried_bytes(self, direction: Direction) -> int:
        down = direction is Direction.DOWN
        return sum([each.bytes_down if down else each.bytes_up for each in self.paths.values()])

    @property
    def remaining_bytes(self) -> int | None:
        """Return the transfer's remaining bytes by its median size; None without a transfer."""
        if self.transfer is None:
            return None
        carried = self.carried_bytes(self.transfer.direction) - self.base_bytes
        return max(self.transfer.size.median_bytes - carried, 0)

    @property
    def exact(self) -> bool:
        """Return whether the size of the transfer under way is known for certain."""
        return self.transfer is not None and self.transfer.size.source == "content-length"

    def competes(self, now_s: float) -> CompetingTransfer | None:
        """Return what the flow has still to carry, if it does so now and that is worth counting."""
        transfer = self.transfer
        if self.still or transfer is None or transfer.size.median_bytes <= FIRST_WINDOW_BYTES:
            return None  # most are: no more is asked of them
        remaining = self.remaining_bytes
        if not remaining or remaining <= FIRST_WINDOW_BYTES:
            return None
        samples = [path.sample for path in self.paths.values() if path.sample is not None]
        if not samples:
            new = now_s - self.started_at_s < _NEW_S
            return CompetingTransfer(self.key, remaining) if new else None
        if transfer.direction is Direction.UP:
            moves = any(sample.unacknowledged for sample in samples)
        else:
            moves = min(sample.idle_down_s for sample in samples) < RATE_S
        if not moves:
            return None
        if not self._carried_at:
            return CompetingTransfer(self.key, remaining)
        (before_at_s, before), (at_s, carried) = self._carried_at[0], self._carried_at[-1]
        if at_s - before_at_s < _LEAST_RATE_S:
            return CompetingTransfer(self.key, remaining)
        rate_bps = 8.0 * (carried - before) / (at_s - before_at_s)
        return CompetingTransfer(self.key, remaining, rate_bps)

    def waits_on(self, path: FlowPath) -> bool:
        """Return whether an acknowledgement or the rest of an answer is due on this path.

        Nothing can be said of a download of unknown length: its server may have no more to say; and
        where the program does not read, the server may not send.
        """
        sample = path.sample
        if sample is None or path.closed is not None:
            return False
        if sample.unacknowledged:
            return True
        if self.transfer is None or self.transfer.direction is Direction.UP or not self.exact:
            return False
        if self.unread:
            return False
        active = self.strategy is None or path.network in self.strategy.networks
        return active and bool(self.remaining_bytes)

    @property
    def unread(self) -> bool:
        """Return whether much of what came waits for its program."""
        # MPTCP has one window for all subflows; each tells it as it was when it last had data.
        known = [
            (path.sample.idle_down_s, path.unread)
            for path in self.paths.values()
            if path.sample and not path.closed
        ]
        return min(known, default=(0.0, False))[1]

    @property
    def small_on(self) -> str | None:
        """Return the network of its first and only transfer, where that is a small download under way."""
        transfer = self.transfer
        if transfer is None or transfer.direction is Direction.UP or self.transfers != 1:
            return None
        path = self.paths[self.key]
        small = transfer.size.median_bytes <= SMALL_BYTES and len(self.paths) == 1
        tells = small and not path.near and self.exact and self.remaining_bytes
        return path.network if tells else None

    def alone_on(self, network: str, context: Context) -> bool:
        """Return whether this host carried nothing else over its network, neither then nor now.

        What it takes beside others says more of them than of the network.
        """
        others = (context, self.context) if self.context is not None else (context,)
        return not any(
            each.flow != self.key
            for known in others
            for those in known.competing.get(network, {}).values()
            for each in those
        )

    @property
    def under_way(self) -> bool:
        """Return whether it is worth a close look: more than a moment's worth is still to come."""
        return not self.still and (
            bool(self.exact and self.remaining_bytes)
            or any(path.sample.unacknowledged for path in self.paths.values() if path.sample)
        )

    @property
    def rests(self) -> bool:
        """Return whether nothing is under way, and at the last look nothing had come for a second."""
        if self.still:
            return True
        living = (path for path in self.paths.values() if not path.closed)
        return not self.under_way and all(path.heard_s >= RATE_S for path in living)

    def expects(self, rest_s: float, now_s: float) -> None:
        """Note how long the rest should take; an older expectation holds while nothing arrives."""
        if self._watch is None or self._has_come():
            self._watch = Reevaluation(now_s, rest_s)
            self._watched = (now_s, self._carried_now())

    def waited_s(self, now_s: float) -> float:
        """Return for how long nothing has come since something was expected of it; 0 where it was not."""
        if self._watch is None or not self.under_way or self._has_come():
            return 0.0
        return max(now_s - self._watched[0], 0.0)

    def is_late(self, now_s: float) -> bool:
        """Return whether nothing has arrived for much longer than expected."""
        return self.waited_s(now_s) > 0.0 and self._watch is not None and self._watch.is_late(now_s)

    def overdue(self, now_s: float) -> bool:
        """Return whether silence is a reason to decide again now; the reason returns in a while."""
        watch = self._watch
        if watch is None or now_s > watch.late_at_s + _HURRY_S:
            return False
        return self.waited_s(now_s) > 0.0 and watch.due(now_s)

    def _has_come(self) -> bool:
        return self._carried_now() > self._watched[1]

    def _carried_now(self) -> int:
        return self.carried_bytes(self.transfer.direction) if self.transfer else 0

    @property
    def carriers(self) -> list[str]:
        """Return the networks over which the peer was heard lately, the last one first."""
        heard = sorted(
            (path.heard_s, path.network)
            for path in self.paths.values()
            if path.closed is None and path.network is not None
        )
        return [name for heard_s, name in heard if heard_s < _LATELY_S]

    def left_behind(self) -> frozenset[str]:
        """Return the networks that the flow has left but may still have data on."""
        used = self.strategy.networks if self.strategy else ()
        return frozenset(
            path.network
            for path in self.paths.values()
            if path.closed is None
            and path.network is not None
            and path.network not in used
            and path.bytes_down + path.bytes_up >= _CARRIED_BYTES
        )

    def held_up(self, now_s: float) -> bool:
        """Return whether what it waits for does not come on the networks that it uses.

        MPTCP hands on what came in its order: what is under way on a path that was left, and creeps,
        holds up what has long come on the others. (A spare path has heard nothing for long; it is the
        time since the flow moved to it that counts.)
        """
        used = self.strategy.networks if self.strategy else ()
        samples = [
            path.sample
            for path in self.paths.values()
            if path.closed is None and path.network in used and path.sample is not None
        ]
        if not samples or not any(self.waits_on(path) for path in self.paths.values()):
            return False
        rtt_s = max(sample.rtt_s or 0.0 for sample in samples)
        silent_s = min(min(sample.idle_down_s, sample.idle_ack_s) for sample in samples)
        if self._switched_at_s:
            silent_s = min(silent_s, now_s - self._switched_at_s[-1])
        return silent_s > max(STALLED_S, _STALLED_RTTS * rtt_s)

    def on_size(self, event: SizeLearned) -> None:
        """Take a transfer's size: of one that begins, or a better estimate."""
        before = self.transfer
        better = event.size.source == "progress" or (
            before is not None and before.size.source in ("default", "history", "hint")
        )
        begins = before is None or before.direction is not event.direction or not better
        # A new transfer counts its bytes and its rate from here.
        if begins:
            self.base_bytes = self.carried_bytes(event.direction)
            self.transfers += 1
            self.forget_rate()
            self.pace.clear()
        self.still = False
        self.server_name = event.server_name or self.server_name
        self.tls |= event.tls
        self.transfer = Transfer(
            size=event.size,
            direction=event.direction,
            label=event.label or Label(),
            deadline_s=event.deadline_s,
            flow=self.key,
            server_name=self.server_name,
        )

    def note_leading(self, decision: Decision | None) -> None:
        """Note the decision about new connections that was in force when the flow began.

        A program that bound its socket elsewhere has not followed it.
        """
        network = self.paths[self.key].network
        # Only a flow on one of the chosen networks follows the decision.
        if self.decision is None and decision is not None and network in decision.choice.networks:
            self.decision = self.first_decision = decision.number
        if self.strategy is None and network is not None:
            self.strategy = Strategy(StrategyKind.SINGLE, (network,))

    def on_decision(self, decision: Decision) -> None:
        """Note the decision that carries the flow from now on."""
        self._before = self.strategy, self.decision
        fewer = self.strategy and set(decision.choice.networks) < set(self.strategy.networks)
        self.tries = bool(fewer) and self.pace.sets(decision.context.at_s)
        self.strategy, self.decision = decision.choice, decision.number
        self.first_decision = self.first_decision or decision.number
        self.switches.append((decision.made_unix_s, decision.choice))
        self._switched_at_s.append(decision.context.at_s)

    def on_move_failed(self) -> None:
        """Take the last decision back: the kernel has refused the move."""
        if self._before is not None:
            (self.strategy, self.decision), self._before = self._before, None
            self.switches.pop()
            self._switched_at_s.pop()

    def switched_since(self, at_s: float) -> int:
        """Return how often it was decided on since an instant, as far as that is remembered.

        Records are stamped by the wall clock, which people and NTP set: no time is measured by it.
        """
        return sum(switched_at_s > at_s for switched_at_s in self._switched_at_s)

    def tried_since(self, at_s: float) -> bool:
        """Return whether it did with fewer networks since an instant, and came back to more of them."""
        recent = list(zip(reversed(self._switched_at_s), reversed(self.switches), strict=False))
        return any(
            switched_at_s > at_s and set(after.networks) > set(before.networks)
            for (switched_at_s, (_, after)), (_, (_, before)) in pairwise(recent)
        )

    def paced_bps(self, now_s: float) -> float | None:
        """Return how fast the program reads if that sets the pace, else None; 0: it reads nothing."""
        if self.rate_bps == 0.0 or self.is_late(now_s):
            return None  # it waits
        return self.pace.rate_bps(now_s)

    def forget_rate(self) -> None:
        """Forget the rate: the flow goes another way now, or carries something else."""
        self._watch = None
        self.rate_bps = self._waiting_since_s = None
        self._carried_at.clear()
        self.still = False

    def on_samples(self, now_s: float, looks_at_s: Sequence[float]) -> None:
        """Take a look at its paths; `looks_at_s`: the looks before it, as for `catch_up`."""
        self.catch_up(looks_at_s)
        self._note_rate(now_s)
        if self._is_still(now_s):
            self.still, self._still_at_s = True, now_s

    def catch_up(self, looks_at_s: Sequence[float]) -> None:
        """Take the looks since it was still, which were like that one.

        `looks_at_s`: when there were looks, in the second before the last one, and once before that.
        """
        if self._still_at_s is not None:
            self._rested_s += looks_at_s[-1] - self._still_at_s
            if self._carried_at:  # its rate was not forgotten
                carried = self._carried_at[-1][1]
                self._carried_at = deque([(at_s, carried) for at_s in looks_at_s])
            self.still, self._still_at_s = False, None

    def _is_still(self, now_s: float) -> bool:
        (before_at_s, before), (_, carried) = self._carried_at[0], self._carried_at[-1]
        steady = before_at_s <= now_s - RATE_S and before == carried
        rests = steady and not self.under_way and self._resting_s() >= RESTS_S
        return rests and not self.unread and not self.pace.known

    def _note_rate(self, now_s: float) -> None:
        """Note the rate of the last second, where the network and not the program set it.

        A download that receives at a look goes as fast as it can; a transfer that must hear of the
        other side on all the paths that it uses, and does not, is stalled. Nothing can be said of
        others: a program may be pausing.
        """
        self.count_transfers()
        direction = self.transfer.direction if self.transfer else Direction.DOWN
        carried = self.carried_bytes(direction)
        self._carried_at.append((now_s, carried))
        while len(self._carried_at) > 2 and self._carried_at[1][0] <= now_s - RATE_S:
            self._carried_at.popleft()
        self.rate_bps = None
        self.stalled_s = 0.0
        if direction is Direction.DOWN:
            unread = self.unread
            self.pace.observe(now_s, carried, unread=unread)
            self.read_slowly |= self.pace.sets(now_s)
            if unread:
                self._watch = None  # nothing can come
        if self.transfer is None:
            return
        if (stalled_s := self._stall_s(now_s)) is not None:
            self.rate_bps, self.stalled_s = 0.0, stalled_s
            return
        before_at_s, before = self._carried_at[0]
        if now_s - before_at_s < _LEAST_RATE_S or carried <= before or self.pace.sets(now_s):
            return
        samples = [path.sample for path in self.paths.values() if path.sample]
        if direction is Direction.UP:
            busy = any(sample.unacknowledged for sample in samples)
        else:
            busy = self.exact and bool(self.remaining_bytes)
            busy = busy and min(each.idle_down_s for each in samples) < _BUSY_IDLE_S
        if busy:
            self.rate_bps = 8.0 * (carried - before) / (now_s - before_at_s)

    def count_transfers(self) -> None:
        """Note a further transfer, though what is said is hidden: the connection rested before it."""
        down, up = self.carried_bytes(Direction.DOWN), self.carried_bytes(Direction.UP)
        if self._rested is not None and down > self._rested[0]:
            asks = up > self._rested[1] + _ASKS_BYTES
            self.transfers += asks or self._rested_s >= _OVER_S
            self._rested = None
        if (resting_s := self._resting_s()) >= RESTS_S:
            self._rested, self._rested_s = self._rested or (down, up), resting_s

    def _resting_s(self) -> float:
        """Return for how long nothing has come, where nothing is under way."""
        samples = [path.sample for path in self.paths.values() if path.closed is None]
        looks = [sample for sample in samples if sample is not None]
        if any(look.unacknowledged for look in looks):
            return 0.0
        return min([min(look.idle_down_s, look.idle_ack_s) for look in looks], default=0.0)

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

    def record(self) -> FlowRecord:
        """Return the record of a flow whose paths have all ended."""
        ends = [path.closed for path in self.paths.values() if path.closed is not None]
        started = [end.started_unix_s for end in ends if end.started_unix_s is not None]
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
                for path in self.paths.values()
            ),
            token=self.token,
            started_unix_s=self.started_unix_s or min(started, default=None),
            ended_unix_s=max(end.ended_unix_s for end in ends),
            server_name=self.server_name,
            decision=self.decision,
            size=self.transfer.size if self.transfer else None,
            switches=tuple(self.switches),
            exact=not self.broken and all(end.exact for end in ends),
        )
