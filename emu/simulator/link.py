"""A network of the simulated laptop: Mahimahi's link and delay, as events in simulated time.

A direction of a link holds packets in a drop-tail queue and delivers them at the trace's opportunities,
in the order in which they came (Mahimahi, mm-link(1)). All packets of one millisecond leave in one event,
and those that leave together arrive together, in one event, too.
"""

import gc
import heapq
import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from emu.places.traces import OPPORTUNITY_BYTES, Trace
from emu.testbed.access import Access

# The delay of Mahimahi's two shells in each direction, measured on live runs of small transfers.
_SHELL_S = 0.0011
# The bytes of an acknowledgement or a SYN on the interface.
_SMALL_BYTES = 60
SAMPLE_S = 0.1


class Clock:
    """Simulated time in seconds, and what happens when. Events of one instant keep their order."""

    __slots__ = ("_events", "_interrupted", "_number", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0
        self._interrupted = False

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call `call` at `time_s`; what lies in the past happens next."""
        self._number += 1
        heapq.heappush(self._events, (max(time_s, self.now_s), self._number, call, arguments))

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_s + delay_s, self._number, call, arguments))

    def interrupt(self) -> None:
        """End `run` behind the event that happens now."""
        self._interrupted = True

    def run(self, until_s: float) -> None:
        """Let everything happen up to `until_s`, or until an event interrupts."""
        events, pop = self._events, heapq.heappop
        # Millions of events are made and dropped at once; looking for cycles would cost a quarter.
        collecting = gc.isenabled()
        gc.disable()
        self._interrupted = False
        try:
            while events and events[0][0] <= until_s and not self._interrupted:
                self.now_s, _, call, arguments = pop(events)
                call(*arguments)
        finally:
            if collecting:
                gc.enable()
        if not self._interrupted:
            self.now_s = until_s


class Parcel:
    """Packets of one sender that travel together."""

    __slots__ = (
        "cumulative",
        "deliver",
        "dropped",
        "end",
        "first",
        "number",
        "packets",
        "sent_s",
        "unacknowledged",
    )

    def __init__(
        self,
        deliver: "Callable[[Parcel, int], None]",
        first: int = 0,
        packets: int = 0,
        *,
        cumulative: bool = False,
    ) -> None:
        self.deliver = deliver  # takes the parcel at the far end, and how many of its packets came
        # `first`, `end`: the number of the first packet that has not arrived, and the one after the
        # last.
        self.first = first
        self.end = first + packets
        # Full packets that are still on their way; 0: one small packet, which waits in the queue as
        # any other and needs no opportunity worth counting.
        self.packets = packets
        self.dropped = 0  # its last packets, for which the queue had no room
        # A small packet that the next one replaces, as an acknowledgement; never dropped.
        self.cumulative = cumulative
        self.number = 0  # `number`, `sent_s`, `unacknowledged`: the sender's account of it
        self.sent_s = 0.0
        self.unacknowledged = packets


class Direction:
    """A direction of a link: a drop-tail queue in front of the trace's delivery opportunities.

    Args:
        limit_packets: the room of the queue.
        delay_s: the delay behind the opportunities.
    """

    def __init__(
        self, clock: Clock, trace: Trace, limit_packets: int, delay_s: float = 0.0
    ) -> None:
        times_ms, counts = np.unique(trace.times_ms, return_counts=True)
        self._clock = clock
        self._times_ms: list[int] = times_ms.tolist()
        self._counts: list[int] = counts.tolist()
        self._period_ms = trace.period_ms
        self._limit = limit_packets
        self._delay_s = delay_s
        self._queue: deque[Parcel] = deque()
        self._queued = 0
        self._awake = False
        self._failed = False
        # What was delivered, by the number of the interval of `SAMPLE_S`.
        self.bytes_by_sample: dict[int, int] = {}
        self.delivered_bytes = 0  # all that was delivered

    def fail(self) -> None:
        """Lose what is queued, and all that follows."""
        self._queue.clear()
        self._queued = 0
        self._failed = True

    def up_again(self) -> None:
        self._failed = False

    def put(self, parcel: Parcel) -> None:
        """Queue a parcel. The queue drops the last packets of what exceeds its room."""
        if self._failed:
            return
        room = max(self._limit - self._queued, 0)
        if not parcel.packets:
            if not room and not parcel.cumulative:
                return
        elif parcel.packets > room:
            parcel.dropped = parcel.packets - room
            parcel.packets = room
            if not room:
                return
        self._queued += parcel.packets or 1
        self._queue.append(parcel)
        if not self._awake:
            # An idle link lets opportunities pass; wait for the first one that is still to come.
            periods, within_ms = divmod(self._clock.now_s * 1000.0, self._period_ms)
            self._await(bisect_left(self._times_ms, within_ms - 1e-6), int(periods))

    def _await(self, index: int, periods: int) -> None:
        """Serve the queue at opportunity `index` of a period, or at the first of the next period."""
        if index == len(self._times_ms):
            index, periods = 0, periods + 1
        self._awake = True
        at_ms = periods * self._period_ms + self._times_ms[index]
        self._clock.at(at_ms * 1e-3, self._serve, index, periods)

    def _serve(self, index: int, periods: int) -> None:
        """Deliver what the opportunities of one millisecond carry, first come, first served."""
        queue = self._queue
        left = self._counts[index]
        carried = 0
        served = []
        while queue:
            parcel = queue[0]
            taken = parcel.packets
            if taken > left:
                # The rest of the parcel waits for the next opportunity.
                if not left:
                    break
                taken = left
                parcel.packets -= taken
            else:
                parcel.packets = 0
                queue.popleft()
            left -= taken
            self._queued -= taken or 1
            carried += OPPORTUNITY_BYTES * taken or _SMALL_BYTES
            if self._delay_s:
                served.append((parcel, taken))
            else:
                parcel.deliver(parcel, taken)
        if served:
            self._clock.after(self._delay_s, _deliver, served)
        sample = int(self._clock.now_s / SAMPLE_S)
        self.bytes_by_sample[sample] = self.bytes_by_sample.get(sample, 0) + carried
        self.delivered_bytes += carried
        if queue:
            self._await(index + 1, periods)
        else:
            self._awake = False


def _deliver(served: list[tuple[Parcel, int]]) -> None:
    for parcel, packets in served:
        parcel.deliver(parcel, packets)


class Network:
    """A network of the laptop: both directions of its link, and the delay behind it.

    Args:
        losses: draws the packets of data towards the client that are lost, at the access's `loss`. A
            network that loses packets takes them one by one.
    """

    def __init__(self, clock: Clock, access: Access, losses: Random | None = None) -> None:
        self.kind = access.kind
        # Seconds between the phone and the server, one way. Mahimahi knows whole milliseconds.
        self.delay_s = math.floor(access.rtt_s * 500 + 1e-6) / 1000 + _SHELL_S
        self.down = Direction(clock, access.down, access.queue_down_packets)
        self.up = Direction(clock, access.up, access.queue_up_packets, self.delay_s)
        # Packets towards the client are lost at random.
        self.lossy = losses is not None and access.loss > 0
        self.barred = False  # what programs send is dropped
        self._loss = access.loss
        self._losses = losses
        self._clock = clock
        # What the server sent last, and when.
        self._sent: list[Parcel] = []
        self._sent_s = -math.inf

    def fail(self) -> None:
        """Carry nothing any more, without a word to either end."""
        self.down.fail()
        self.up.fail()

    def up_again(self) -> None:
        self.down.up_again()
        self.up.up_again()

    def to_client(self, parcel: Parcel) -> None:
        """Send a parcel from the server: delayed, then queued in front of the radio, or lost."""
        if parcel.packets and self._losses is not None and self._losses.random() < self._loss:
            parcel.dropped, parcel.packets = parcel.packets, 0
            return
        if self._sent_s != self._clock.now_s:
            self._sent, self._sent_s = [], self._clock.now_s
            self._clock.after(self.delay_s, self._queue, self._sent)
        self._sent.append(parcel)

    def _queue(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            self.down.put(parcel)

    def to_server(self, parcel: Parcel, *, own: bool = False) -> None:
        """Send a parcel from the client: queued in front of the radio, then delayed.

        `own`: the daemon sends it, which no bar holds back.
        """
        if own or not self.barred:
            self.up.put(parcel)
