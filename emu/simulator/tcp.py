"""A TCP sender with Linux' CUBIC over one network, and the acknowledgements of its receiver.

The network keeps the order of packets, so a packet is lost as soon as a later one is acknowledged
(RFC 8985). The window begins with ten packets (RFC 6928), leaves slow start by HyStart's delay and grows
by CUBIC (RFC 9438).

Where no acknowledgement comes, the sender repeats its last packet after two round trips, once (the tail
loss probe of RFC 8985, section 7). Then it repeats its first one at each retransmission time-out, which
doubles (RFC 6298; Linux' least is 0.2 s). If acknowledgements then come of packets that were sent before
and not lost, the time-out was spurious and the window stays (RFC 5682).

HyStart's other sign, acknowledgements less than 2 ms apart, is left out: the traces deliver packets
every 2 ms, which Linux does not count as close.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, Protocol

from emu.simulator.link import Clock, Network, Parcel

PAYLOAD_BYTES = 1448
_LEAST_RTO_S = 0.2
MOST_RTO_S = 120.0
# CUBIC: the share of the window after a loss, and how steeply it grows.
_BETA = 0.7
_C = 0.4
# HyStart: the least window and the least samples of a round. A round trip longer by an eighth
# shows a queue; the eighth is kept within these bounds.
_HYSTART_WINDOW = 16
_HYSTART_SAMPLES = 8
_HYSTART_BOUNDS_S = (0.004, 0.016)
# The wait of a tail loss probe beyond two round trips. A receiver may delay the acknowledgement of
# a single packet.
_PROBE_MARGIN_S = 0.002
_DELAYED_ACK_S = 0.2


@dataclass(frozen=True, slots=True)
class TcpSettings:
    """The settings of a sender."""

    first_window: float = 10.0  # packets of the first window
    # The share of the window that each retransmission time-out without data leaves, down to the first
    # window: Linux; 1.0 without `tcp_slow_start_after_idle`; 0.0 by RFC 5681, section 4.1.
    idle_leaves: float = 0.5
    most_rto_s: float = MOST_RTO_S  # the longest retransmission time-out


LINUX: Final = TcpSettings()


class DataSource(Protocol):
    """The data of a transfer, in numbered packets. A sender asks it for packets and reports to it."""

    def take(self, sender: "Sender", most: int) -> tuple[int, int]:
        """Return what to send next: the number of its first packet, and how many, at most `most`.

        0 packets: there is nothing to send now.
        """

    def deliver(self, sender: "Sender", first: int, packets: int) -> None:
        """Note that packets arrived at the receiver; `first`: the number of the first one."""

    def on_acknowledged(self, sender: "Sender", packets: int) -> None:
        """Note that the sender's window moves by so many packets."""

    def on_timeout(self, sender: "Sender") -> None:
        """React to a retransmission time-out of the sender."""


class Sender:
    """The sending half of one TCP connection or MPTCP subflow, after its handshake.

    Attributes:
        cwnd: the congestion window in packets.
        ssthresh: the window at which slow start ends, in packets.
        inflight: packets sent and neither acknowledged nor lost.
        srtt_s, rttvar_s: the smoothed round-trip time and its variation.
        rtt_min_s: the shortest round-trip time.
        sent_packets, lost_packets: of data, repetitions included.
        restarts: how often the window began again after an idle time.
        backoff: retransmission time-outs since the last acknowledgement.
    """

    def __init__(
        self,
        clock: Clock,
        network: Network,
        source: DataSource,  # the data to send
        *,
        down: bool,  # from the server to the client; else from the client to the server
        rtt_s: float,  # the round trip of the handshake
        settings: TcpSettings = LINUX,  # as Linux, unless given
    ) -> None:
        self.network = network
        self.cwnd = settings.first_window
        self.ssthresh = inf
        self.inflight = 0
        self.srtt_s = rtt_s
        self.rtt_min_s = rtt_s
        self.backoff = 0
        self.sent_packets = self.lost_packets = self.restarts = 0
        self._settings = settings
        self._last_sent_s = -inf
        self._clock = clock
        self._source = source
        self._send_data = network.to_client if down else network.to_server
        self._send_ack = network.to_server if down else network.to_client
        self._closed = False
        # The parcels that were sent and not acknowledged, in order; the packets that are lost and must be
        # sent again; the number of the last parcel sent, and of the last one sent before the window
        # shrank.
        self._sent: deque[Parcel] = deque()
        self._lost: deque[tuple[int, int]] = deque()
        self._number = 0
        self._recovery_number = 0
        self.rttvar_s = rtt_s / 2
        # A round of HyStart. It ends when a parcel is acknowledged that was sent after it began.
        self._round_number = 0
        self._round_min_s = inf
        self._round_samples = 0
        # CUBIC's curve: the window before the last loss, when growth began (negative: not yet), how long
        # the curve takes to its plateau, the plateau, and the window that Reno would have.
        self._w_max = 0.0
        self._epoch_s = -1.0
        self._k_s = 0.0
        self._plateau = 0.0
        self._reno = 0.0
        # When the timer expires, when the next event looks at it, and whether the tail was probed.
        self._expires_s = inf
        self._wakes_s = inf
        self._probed = False

    def close(self) -> None:
        self._closed = True

    def held(self) -> list[tuple[int, int]]:
        """Return the packets that have not arrived, in runs: number of the first one, and how many."""
        return [*self._lost, *((parcel.first, parcel.end - parcel.first) for parcel in self._sent)]

    def send(self) -> None:
        """Send what the window allows: first what was lost, then new data."""
        # `inflight` counts neither acknowledged nor lost packets, as SACK's pipe does (RFC 6675).
        room = int(self.cwnd) - self.inflight
        while room > 0 and not self._closed:
            # Packets that may be lost one by one travel one by one.
            most = 1 if self.network.lossy else room
            if self._lost:
                first, packets = self._lost.popleft()
                if packets > most:
                    self._lost.appendleft((first + most, packets - most))
                    packets = most
            else:
                first, packets = self._source.take(self, most)
                if not packets:
                    return
            # An idle sender may have too large a window for the network of now.
            if not self._sent:
                self._shrink_after_idle()
                room = min(room, int(self.cwnd))
            self._transmit(first, packets)
            room -= packets

    def _shrink_after_idle(self) -> None:
        idle_s, rto_s = self._clock.now_s - self._last_sent_s, self._time_out_s()
        if not rto_s < idle_s < inf or self._settings.idle_leaves == 1.0:
            return
        # Linux keeps three quarters of the window as the end of slow start.
        self.ssthresh = max(self.ssthresh, 0.75 * self.cwnd)
        left = self.cwnd * self._settings.idle_leaves ** (ceil(idle_s / rto_s) - 1)
        self.cwnd = max(left, min(self.cwnd, self._settings.first_window))
        self.restarts += 1

    def _transmit(self, first: int, packets: int) -> None:
        parcel = Parcel(self._arrive, first, packets)
        self._number += 1
        parcel.number = self._number
        parcel.sent_s = self._last_sent_s = self._clock.now_s
        self.sent_packets += packets
        self._sent.append(parcel)
        self.inflight += packets
        # The timer runs while any parcel is unacknowledged.
        if self._expires_s == inf:
            self._set_timer()
        self._send_data(parcel)

    def _arrive(self, parcel: Parcel, packets: int) -> None:
        """Hand packets to the receiver, which acknowledges them at once."""
        first = parcel.first
        parcel.first += packets
        self._source.deliver(self, first, packets)
        self._send_ack(Parcel(lambda _, __: self._on_ack(parcel, packets), cumulative=True))

    def _on_ack(self, parcel: Parcel, packets: int) -> None:
        if self._closed:
            return
        # Later parcels were delivered, and the network keeps the order: what is missing before is lost.
        lost, covered = self._lose_before(parcel)
        self.inflight -= packets + covered + lost
        parcel.unacknowledged -= packets
        # Packets of the parcel that the queue dropped keep it at the head, until a later parcel is
        # acknowledged.
        if not parcel.unacknowledged:
            self._sent.popleft()
        timed_out, self.backoff, self._probed = self.backoff > 0, 0, False
        self._measure(self._clock.now_s - parcel.sent_s)
        # A loss shrinks the window once: only parcels sent after the last reduction count. An
        # acknowledgement after a time-out without any loss shows that the time-out was spurious.
        if parcel.number > self._recovery_number:
            if lost:
                self._reduce(timed_out)
            elif not timed_out:
                self._grow(packets, parcel.number)
        self._source.on_acknowledged(self, packets + covered)
        if self._sent:
            self._set_timer()
        else:
            self._expires_s = inf
        self.send()

    def _lose_before(self, parcel: Parcel) -> tuple[int, int]:
        """Take for lost what was sent before a parcel that is acknowledged now, and did not arrive.

        Return those packets, and those that arrived while the link failed under their acknowledgement.
        """
        lost = covered = 0
        while self._sent[0] is not parcel:
            missing = self._sent.popleft()
            absent = missing.end - missing.first
            covered += missing.unacknowledged - absent
            lost += absent
            if absent:
                self._lost.append((missing.first, absent))
        self.lost_packets += lost
        return lost, covered

    def _measure(self, rtt_s: float) -> None:
        # The smoothed round trip and its variation (RFC 6298, 2.3).
        self.rttvar_s += (abs(self.srtt_s - rtt_s) - self.rttvar_s) / 4
        self.srtt_s += (rtt_s - self.srtt_s) / 8
        self.rtt_min_s = min(self.rtt_min_s, rtt_s)
        self._round_min_s = min(self._round_min_s, rtt_s)
        self._round_samples += 1

    # The window.

    def _grow(self, packets: int, number: int) -> None:
        slow_start = self.cwnd < self.ssthresh
        # A window that is not in use does not grow (RFC 7661); half of it is enough in slow start.
        if self.inflight + packets + 3 < self.cwnd / (2 if slow_start else 1):
            return
        if slow_start:
            self._end_slow_start_by_delay(number)
        if self.cwnd < self.ssthresh:
            self.cwnd += packets
            return
        # CUBIC: the window grows along a cubic curve of time, whose plateau is the window before the
        # loss.
        now_s = self._clock.now_s
        if self._epoch_s < 0:
            self._epoch_s = now_s
            self._reno = self.cwnd
            self._plateau = max(self._w_max, self.cwnd)
            self._k_s = ((self._plateau - self.cwnd) / _C) ** (1 / 3)
        cubic = self._plateau + _C * (now_s - self._epoch_s + self.rtt_min_s - self._k_s) ** 3
        # As fast as Reno at least (RFC 9438, section 4.3).
        self._reno += packets * 3 * (1 - _BETA) / (1 + _BETA) / self.cwnd
        target = max(cubic, self._reno)
        # Towards the target within a round trip, but by half of the acknowledged packets at most.
        if target > self.cwnd:
            self.cwnd += min(packets * (target - self.cwnd) / self.cwnd, packets / 2)
        else:
            self.cwnd += packets / (100 * self.cwnd)

    def _end_slow_start_by_delay(self, number: int) -> None:
        """End slow start when the round trips of a round tell of a queue (HyStart)."""
        # A new round begins with the first acknowledgement of a parcel that was sent after the last one
        # began.
        if number > self._round_number:
            self._round_number = self._number
            self._round_min_s, self._round_samples = inf, 0
        elif self.cwnd >= _HYSTART_WINDOW and self._round_samples >= _HYSTART_SAMPLES:
            least_s, most_s = _HYSTART_BOUNDS_S
            if self._round_min_s > self.rtt_min_s + min(max(self.rtt_min_s / 8, least_s), most_s):
                self.ssthresh = self.cwnd

    def _reduce(self, timed_out: bool) -> None:
        """Shrink the window, once for all losses of what is sent by now; a time-out leaves 2 packets."""
        self._recovery_number = self._number
        # A window that is smaller than at the last loss aims lower: others get room (fast convergence).
        self._w_max = self.cwnd * (1 + _BETA) / 2 if self.cwnd < self._w_max else self.cwnd
        self.ssthresh = max(2.0, self.cwnd * _BETA)
        self.cwnd = 2.0 if timed_out else self.ssthresh
        self._epoch_s = -1.0

    # The timer.

    def _set_timer(self) -> None:
        now_s = self._clock.now_s
        wait_s = min(self._time_out_s() * 2**self.backoff, self._settings.most_rto_s)
        if self._may_probe():
            wait_s = min(
                wait_s,
                2 * self.srtt_s + (_DELAYED_ACK_S if self.inflight == 1 else _PROBE_MARGIN_S),
            )
        self._expires_s = now_s + wait_s
        # A timer that is put off keeps its event: when that comes, it waits again.
        if self._expires_s < self._wakes_s:
            self._wakes_s = self._expires_s
            self._clock.at(self._expires_s, self._on_timer)

    def _time_out_s(self) -> float:
        return self.srtt_s + max(4 * self.rttvar_s, _LEAST_RTO_S)

    def _may_probe(self) -> bool:
        return not self._probed and self.backoff == 0

    def _on_timer(self) -> None:
        now_s = self._clock.now_s
        # An earlier event took this one's place.
        if now_s < self._wakes_s or self._closed:
            return
        self._wakes_s = inf
        if self._expires_s == inf:
            return
        # The timer was put off meanwhile: wait for the rest.
        if now_s < self._expires_s:
            self._wakes_s = self._expires_s
            self._clock.at(self._expires_s, self._on_timer)
            return
        if self._may_probe():
            # Copy the last packet: its acknowledgement tells what is missing before it.
            self._probed = True
            last = self._sent[-1]
            copied = last.end - 1
        else:
            # Copy the first packet that is missing; where only its acknowledgement is, the last one.
            copied = min(self._sent[0].first, self._sent[0].end - 1)
            self.backoff += 1
            self._source.on_timeout(self)
        self._transmit(copied, 1)
        self._set_timer()
