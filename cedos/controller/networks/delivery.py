"""Measure what each network delivered between two samples of its flows. Pure.

A transfer that has carried several times what fits on the path is past its slow start; if its data keep
coming then, they come as fast as the network (or the server) lets them. How well that holds:
docs/decisions/passive-rates.md.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf

from cedos.controller.events import FlowClosed
from cedos.controller.networks.rates import LEAST_BYTES, QUEUE_EMPTY, RateSample
from cedos.model import Direction, FlowKey, FlowSample, Network, owners
from predictors.inputs import after_slow_start

# A flow that carried this many times the capacity of its path has left slow start.
_ROUNDS = 4.0

# Data that are no older than this are still coming.
_FRESH_S, _FRESH_RTTS = 0.1, 1.5

# A flow that has heard nothing for so long starts again, with a window of a few segments.
_STALLED_S, _STALLED_RTTS = 0.25, 3.0

# If a transfer filled the network for a smaller share of others' time, others set the pace.
_COVERED = 0.8

# In a shorter time, packets that waited in a queue can show any rate.
_LEAST_SPAN_S = 0.08

# A receiver's round trip up to this many times the network's minimum means an empty queue. Its
# estimate includes pauses of the sender, so a long one tells nothing.
_RECEIVER_QUEUE_EMPTY = 1.5

# After fewer bytes, a receiver's estimate may be that of the interval before.
_RECEIVED_BYTES = 15_000

# The time over which a network's minimum round trip is taken. Its route may change.
_LEAST_RTT_S = 60.0

_LEAST_SATURATED_BYTES = 3_000

# If a sender has fewer bytes in flight, it had no more to send: no window is smaller.
_LEAST_UNDER_WAY_BYTES = 2 * 1_448

# Bytes sent are requests if the answer is so many times larger: requests set the pace.
_LEAST_REQUESTS, _MOST_REQUEST_BYTES = 1 / 32, 15_000
_USUAL_RTT_S = 0.05
_MOST_CLOSED = 1_000


@dataclass(frozen=True, slots=True)
class _FlowDelivery:
    """The data that one flow carried, and from when to when.

    `before_bytes` is what it had carried before, since it last stood still; `steady`: its data were
    coming all the time; `queue_empty`: its round trips were as short as ever (None: not known);
    `whole`: that is all of it, from its first packet on.
    """

    begin_s: float
    end_s: float
    carried_bytes: int
    before_bytes: int
    steady: bool
    rtt_s: float
    queue_empty: bool | None = None
    whole: bool = False


class DeliveryWatch:
    def __init__(self) -> None:
        self._sampled_at_s = 0.0
        self._before: dict[FlowKey, FlowSample] = {}
        self._stood_down: dict[FlowKey, int] = {}
        self._stood_up: dict[FlowKey, int] = {}
        self._opened_at_s: dict[FlowKey, float] = {}
        self._closed: list[FlowClosed] = []
        self._least_rtt: dict[str, tuple[float, float]] = {}

    def on_open(self, key: FlowKey, at_s: float) -> None:
        if key.protocol == "tcp":
            self._opened_at_s[key] = at_s

    def on_close(self, event: FlowClosed) -> None:
        """Count what the flow carried since the last sample in the next one."""
        if event.key.protocol == "tcp" and event.exact:
            self._closed.append(event)
            if len(self._closed) > _MOST_CLOSED:  # no consumer samples
                self.forget(self._closed.pop(0).key)
        else:
            self.forget(event.key)

    def observe(
        self, samples: Iterable[FlowSample], networks: Iterable[Network], at_s: float
    ) -> Mapping[str, Mapping[Direction, RateSample]]:
        """Return what each network delivered since the last sample, where that says something."""
        owner = {ip: network.name for ip, (network, _) in owners(networks).items()}
        parts: dict[tuple[str, Direction], list[_FlowDelivery]] = defaultdict(list)
        before, self._before = self._before, {}
        since_s, self._sampled_at_s = self._sampled_at_s, at_s
        ended = {event.key for event in self._closed}
        for sample in samples:
            key = sample.key
            if key in ended:  # while the sockets were dumped; its end says all
                continue
            old, name = before.get(key), owner.get(key.local)
            self._before[key] = sample
            self._round_trip(name, sample)
            stalled_s = max(_STALLED_S, _STALLED_RTTS * (sample.rtt_s or 0.0))
            if old is not None and _stands(old, sample, stalled_s):
                continue
            began_s = since_s if old else self._opened_at_s.pop(key, None)
            self._add(parts, name, began_s, old, sample)
            if sample.idle_down_s > stalled_s:
                self._stood_down[key] = sample.bytes_down
            if sample.idle_ack_s > stalled_s:
                self._stood_up[key] = sample.bytes_up
        for event in self._closed:
            key, old = event.key, before.get(event.key)
            began_s = since_s if old else self._opened_at_s.get(key)
            self._add(parts, owner.get(key.local), began_s, old, event)
            self.forget(key)
        self._closed.clear()
        found: dict[str, dict[Direction, RateSample]] = defaultdict(dict)
        for (name, direction), each in parts.items():
            if (stretch := _fastest(_join(each), each)) is not None:
                found[name][direction] = stretch
        return found

    def forget(self, key: FlowKey) -> None:
        """Forget a flow that has ended without facts."""
        self._opened_at_s.pop(key, None)
        self._stood_down.pop(key, None)
        self._stood_up.pop(key, None)

    def _round_trip(self, network: str | None, sample: FlowSample) -> None:
        if network is None:
            return
        for rtt_s in (sample.rtt_min_s, sample.receive_rtt_s):
            least_s, at_s = self._least_rtt.get(network, (inf, -inf))
            if rtt_s is not None and (rtt_s <= least_s or sample.at_s - at_s > _LEAST_RTT_S):
                self._least_rtt[network] = (rtt_s, sample.at_s)

    def _shows_no_queue(self, network: str, new: FlowSample | FlowClosed, received: int) -> bool:
        if not isinstance(new, FlowSample) or new.receive_rtt_s is None:
            return False
        least_s = self._least_rtt[network][0]
        return received >= _RECEIVED_BYTES and new.receive_rtt_s <= _RECEIVER_QUEUE_EMPTY * least_s

    def _add(
        self,
        parts: dict[tuple[str, Direction], list[_FlowDelivery]],
        network: str | None,
        began_s: float | None,
        old: FlowSample | None,
        new: FlowSample | FlowClosed,
    ) -> None:
        """Add a flow's part of the interval; `began_s` is None for a flow older than this watch."""
        if network is None or began_s is None:
            return
        fresh_s = max(_FRESH_S, _FRESH_RTTS * (new.rtt_s or _USUAL_RTT_S))
        rtt_s = new.rtt_min_s or new.rtt_s or _USUAL_RTT_S
        measured = new.rtt_min_s is not None
        # At its end a flow's last data are as old as it took to close it.
        living = isinstance(new, FlowSample)
        before = old.bytes_down if old else 0
        if new.bytes_down > before and new.idle_down_s is not None:
            steady = old is not None and old.idle_down_s <= fresh_s
            steady = steady and (not living or new.idle_down_s <= fresh_s)
            steady = steady and not (old and _asks_for_each(old, new))
            # What a program reads slowly comes as fast as it reads.
            if not isinstance(new, FlowSample):
                steady = steady and not (old and old.unread)
            elif not new.has_grown(old):
                steady = steady and not (new.unread or (old and old.unread))
            end_s, stood = new.at_s - new.idle_down_s, self._stood_down.get(new.key, 0)
            empty: bool | None = self._shows_no_queue(network, new, new.bytes_down - before) or None
            parts[network, Direction.DOWN].append(
                _FlowDelivery(
                    began_s,
                    end_s,
                    new.bytes_down - before,
                    before - stood,
                    steady,
                    rtt_s,
                    empty,
                    whole=old is None and measured,
                )
            )
        before = old.bytes_up if old else 0
        if new.bytes_up > before and new.idle_ack_s is not None:
            # A program with nothing under way had no more to send.
            steady = old is not None and bool(old.unacknowledged) and old.idle_ack_s <= fresh_s
            if isinstance(new, FlowSample):
                steady = steady and bool(new.unacknowledged) and new.idle_ack_s <= fresh_s
            end_s, stood = new.at_s - new.idle_ack_s, self._stood_up.get(new.key, 0)
            empty = new.rtt_s is not None and new.rtt_s <= QUEUE_EMPTY * rtt_s
            parts[network, Direction.UP].append(
                _FlowDelivery(
                    began_s,
                    end_s,
                    new.bytes_up - before,
                    before - stood,
                    steady,
                    rtt_s,
                    empty,
                    whole=old is None and measured,
                )
            )


def _stands(old: FlowSample, new: FlowSample, stalled_s: float) -> bool:
    """Return whether a flow stood still at the last look already, and has carried nothing since."""
    return (
        (old.bytes_down, old.bytes_up, old.rtt_s) == (new.bytes_down, new.bytes_up, new.rtt_s)
        and old.idle_down_s > stalled_s
        and old.idle_ack_s > stalled_s
    )


def _asks_for_each(old: FlowSample, new: FlowSample | FlowClosed) -> bool:
    """Return whether requests set the pace of the data, as in a dialogue on a kept connection."""
    down, up = new.bytes_down - old.bytes_down, new.bytes_up - old.bytes_up
    if not 0 < up <= _MOST_REQUEST_BYTES:
        return False
    if up > _LEAST_REQUESTS * down:
        return True
    # (Of these two one is stale on a pure download; at a flow's end only the one before is known.)
    received_s = new.receive_rtt_s if isinstance(new, FlowSample) else old.receive_rtt_s
    span_s = new.at_s - old.at_s
    if received_s is None or span_s <= 0.0:
        return False
    return down / span_s * max(received_s, new.rtt_s or 0.0) < _LEAST_UNDER_WAY_BYTES


def _join(parts: list[_FlowDelivery]) -> RateSample | None:
    """Return what flows over one network carried together; None where it says nothing."""
    begin_s, end_s = min(part.begin_s for part in parts), max(part.end_s for part in parts)
    carried_bytes = sum(part.carried_bytes for part in parts)
    if end_s - begin_s < _LEAST_SPAN_S or carried_bytes < _LEAST_SATURATED_BYTES:
        return None
    byte_rate = carried_bytes / (end_s - begin_s)
    saturated = any(
        part.steady
        and part.end_s - part.begin_s >= _COVERED * (end_s - begin_s)
        and part.before_bytes >= _ROUNDS * byte_rate * part.rtt_s
        for part in parts
    )
    if not saturated and carried_bytes < LEAST_BYTES:
        return None
    queues = {part.queue_empty for part in parts}
    queue_empty = True in queues and False not in queues
    return RateSample(begin_s, end_s, carried_bytes, saturated, queue_empty)


def _fastest(joined: RateSample | None, parts: list[_FlowDelivery]) -> RateSample | None:
    """Return the faster of what flows carried together and what one flow carried after slow start."""
    if joined is not None and joined.saturated:
        return joined
    found = [] if joined is None else [joined]
    for part in parts:
        if not part.whole or part.carried_bytes < LEAST_BYTES:
            continue
        left = after_slow_start(part.carried_bytes, part.rtt_s, part.end_s - part.begin_s)
        if left is not None:
            carried_bytes, span_s = left
            found.append(RateSample(part.end_s - span_s, part.end_s, round(carried_bytes), False))
    return max(found, key=lambda sample: sample.rate_bps, default=None)
