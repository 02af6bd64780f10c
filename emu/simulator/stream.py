"""A stream that a server writes little by little, over any number of networks, in order at the client.

Each network has its own TCP connection, open from the beginning. A scheduler of sessions chooses what
goes where (`cedos.session.protocol.schedulers`), or the connection of the lowest round trip with room in
its window takes it, as in the MPTCP of the paper's time. The client has one receive window for all of
them: packets beyond it are not sent before what is missing at its beginning has come.

A path's rate is estimated from its acknowledgements by TCP Westwood's filter.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from cedos.session.protocol.schedulers.interface import Backlog, PathFacts, PathState, Scheduler
from emu.simulator.link import Clock, Network, Parcel
from emu.simulator.tcp import LINUX, PAYLOAD_BYTES, Sender, TcpSettings

# The rank of large foreground data.
_RANK: Final = 1
# Westwood's tau: the filter's cut-off period, as in its authors' code.
_CUT_OFF_S: Final = 0.5
# Westwood's m: at least m samples (of zero if need be) in each tau.
_NYQUIST: Final = 2.0


class Westwood:
    """The bandwidth estimation of TCP Westwood (Mascolo et al., MobiCom 2001, section 2.2).

    Each acknowledgement of d bytes, t seconds after the one before, is a sample b = d / t. The filter is
    B = a B' + (1 - a) (b + b') / 2 with a = (2 tau - t) / (2 tau + t), where B' and b' are the previous
    estimate and sample. Where no acknowledgement comes for tau / m, a sample of 0 is taken.
    """

    def __init__(self) -> None:
        self.rate_bps: float | None = None
        self._sample_bps = 0.0
        self._at_s: float | None = None
        self._pending_bytes = 0

    def on_acknowledged(self, size_bytes: int, now_s: float) -> None:
        self._pending_bytes += size_bytes
        # The first acknowledgement only begins the measurement: there is no time to divide by.
        if self._at_s is None:
            self._at_s, self._pending_bytes = now_s, 0
            return
        longest_s = _CUT_OFF_S / _NYQUIST
        # Times without acknowledgements count as samples of 0 (the filter's Nyquist rate).
        while now_s - self._at_s > longest_s:
            self._at_s += longest_s
            self._filter(0.0, longest_s)
        gap_s = now_s - self._at_s
        # Acknowledgements of one instant are one sample, with the next one.
        if gap_s > 1e-6:
            self._filter(8 * self._pending_bytes / gap_s, gap_s)
            self._at_s, self._pending_bytes = now_s, 0

    def _filter(self, sample_bps: float, gap_s: float) -> None:
        if self.rate_bps is None:
            # The first sample that is not zero begins the estimate.
            if sample_bps:
                self.rate_bps = self._sample_bps = sample_bps
            return
        keep = (2 * _CUT_OFF_S - gap_s) / (2 * _CUT_OFF_S + gap_s)
        self.rate_bps = keep * self.rate_bps + (1 - keep) * (sample_bps + self._sample_bps) / 2
        self._sample_bps = sample_bps


@dataclass(slots=True)
class Counts:
    """The counts of a stream."""

    packets: int = 0  # the packets that arrived, without repetitions
    out_of_order: int = 0  # the packets that arrived before an earlier one
    held_most: int = 0  # the most packets that waited at the client for an earlier one
    order_wait_s: float = 0.0  # the sum of these waiting times


@dataclass(slots=True, eq=False)
class StreamPath:
    """A network that a stream uses: its sender, what the scheduler sees, and its use."""

    sender: Sender
    state: PathState
    bandwidth: Westwood


class Stream:
    """A stream to the client."""

    def __init__(
        self,
        clock: Clock,
        # Used from the beginning; `join` adds one, `leave` takes one away.
        networks: Sequence[Network],
        scheduler: Scheduler | None,  # chooses; None: lowest round trip first
        *,
        window_bytes: float,  # the client's receive window
        on_data: Callable[[int], None],  # called with the number of packets that are there in order
        settings: TcpSettings = LINUX,  # of each TCP connection
    ) -> None:
        self.paths: list[StreamPath] = []  # those in use
        self.counts = Counts()  # of what arrived
        self._clock = clock
        self._scheduler = scheduler
        self._window = max(1, int(window_bytes / PAYLOAD_BYTES))
        self._on_data = on_data
        self._settings = settings
        # Numbers of the packets to send, in order; the number of written packets; and of the first packet
        # that the server does not know to have arrived.
        self._waiting: list[int] = []
        self._written = 0
        self._acknowledged = 0
        # At the client: the first missing packet, and when each packet behind it arrived.
        self._front = 0
        self._held: dict[int, float] = {}
        self._backlog = Backlog()
        self._checking = False
        for network in networks:
            self.join(network)

    @property
    def written(self) -> int:
        return self._written

    def join(self, network: Network) -> StreamPath:
        """Use one more network; return the path."""
        rtt_s = 2 * network.delay_s + 0.002
        sender = Sender(self._clock, network, self, down=True, rtt_s=rtt_s, settings=self._settings)
        state = PathState(self._joined(), PathFacts(), up_at_s=self._clock.now_s)
        path = StreamPath(sender, state, Westwood())
        self.paths.append(path)
        self._send()
        return path

    def _joined(self) -> int:
        return max((path.state.path_id for path in self.paths), default=0) + 1

    def leave(self, path: StreamPath) -> None:
        """Stop using a path; what was under way there goes back to the queue, in its order."""
        path.sender.close()
        self.paths.remove(path)
        # Packets that have not arrived, and do not wait already, are sent over the other paths.
        waiting = set(self._waiting)
        for first, count in path.sender.held():
            for number in range(first, first + count):
                if number >= self._front and number not in self._held and number not in waiting:
                    insort(self._waiting, number)
        self._send()

    def write(self, packets: int) -> None:
        """Let the server write so many packets."""
        self._waiting.extend(range(self._written, self._written + packets))
        self._written += packets
        self._send()

    # Sending.

    def _send(self) -> None:
        """Ask all senders to send what their windows allow, the shortest round trip first."""
        for path in sorted(self.paths, key=lambda each: each.sender.srtt_s):
            path.sender.send()

    def take(self, sender: Sender, most: int) -> tuple[int, int]:
        """Return the packet that a sender is to send next: its number, and 1; or 0 packets."""
        path = self._path(sender)
        if path is None:
            return 0, 0
        # Only what fits into the client's window may be sent.
        waiting = self._waiting
        end = self._acknowledged + self._window
        room = bisect_left(waiting, end, 0, min(len(waiting), _LOOK))
        if not room:
            return 0, 0
        at = 0
        if self._scheduler is not None:
            chosen = self._choose(path, self._scheduler, room)
            if chosen is None:
                return 0, 0
            at = chosen
        number = waiting.pop(at)
        return number, 1

    def _choose(self, path: StreamPath, scheduler: Scheduler, room: int) -> int | None:
        now_s = self._clock.now_s
        for each in self.paths:
            _see(each)
        # A grant is for one packet. Bytes that it skips are left to other paths.
        self._backlog.waiting_bytes[_RANK] = room * PAYLOAD_BYTES
        states = [each.state for each in self.paths]
        grant = scheduler.choose(path.state, states, self._backlog, PAYLOAD_BYTES, now_s)
        skipped = -1 if grant is None else grant.skip_bytes // PAYLOAD_BYTES
        # The scheduler left all to other paths: their state may change without news.
        if not 0 <= skipped < room:
            self._check_soon(scheduler.next_check_s(states, now_s))
            return None
        return skipped

    def _check_soon(self, after_s: float | None) -> None:
        if after_s is None or self._checking:
            return

        def check() -> None:
            self._checking = False
            self._send()

        self._checking = True
        self._clock.after(after_s, check)

    def on_acknowledged(self, sender: Sender, packets: int) -> None:
        """Note the rate of a path; its sender sends on by itself."""
        path = self._path(sender)
        if path is not None:
            path.bandwidth.on_acknowledged(packets * PAYLOAD_BYTES, self._clock.now_s)

    def on_timeout(self, sender: Sender) -> None:
        """Do nothing: TCP repeats it over the same network."""

    def _path(self, sender: Sender) -> StreamPath | None:
        return next((path for path in self.paths if path.sender is sender), None)

    # Receiving.

    def deliver(self, sender: Sender, first: int, packets: int) -> None:
        now_s = self._clock.now_s
        # Count new packets, and hold those that are not in order.
        for number in range(first, first + packets):
            if number < self._front or number in self._held:
                continue
            self.counts.packets += 1
            self.counts.out_of_order += number > self._front
            self._held[number] = now_s
        self.counts.held_most = max(self.counts.held_most, len(self._held))
        before = self._front
        # The front moves over all packets that are there.
        while (came_s := self._held.pop(self._front, None)) is not None:
            self.counts.order_wait_s += now_s - came_s
            self._front += 1
        if self._front == before:
            return
        self._on_data(self._front)
        front = self._front
        # The client tells the server over the network that brought the missing packet.
        sender.network.to_server(
            Parcel(lambda parcel, count: self._on_front(front), cumulative=True)
        )

    def _on_front(self, front: int) -> None:
        """Note that the client has everything before a packet."""
        if front > self._acknowledged:
            blocked = bool(self._waiting)
            self._acknowledged = front
            if blocked:
                self._send()


# The packets at the head of the queue that a scheduler sees.
_LOOK: Final = 128


def _see(path: StreamPath) -> None:
    """Bring what a scheduler sees of a path up to date."""
    sender, facts, state = path.sender, path.state.facts, path.state
    facts.rtt_s = sender.srtt_s
    facts.rtt_min_s = sender.rtt_min_s
    facts.rate_bps = path.bandwidth.rate_bps
    facts.loss = sender.lost_packets / sender.sent_packets if sender.sent_packets else 0.0
    facts.window_bytes = int(sender.cwnd) * PAYLOAD_BYTES
    facts.slow_start = sender.cwnd < sender.ssthresh
    state.in_flight_bytes = sender.inflight * PAYLOAD_BYTES
