"""A transfer: its connection over one network, or by kernel MPTCP over two, from SYN to the last byte.

Linux' MPTCP joins the second network once the first data came. Its scheduler gives each chunk to the
subflow that would have sent first what it holds already. It does so as long as a send buffer has room,
even where the congestion window is full. At each time-out of a subflow its oldest chunk is sent again
over the other one. At the fourth time-out in a row the subflow is stale: all that it holds is sent again
over the other one, and it gets nothing new until it answers (`net.mptcp.stale_loss_cnt`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Set
from math import inf
from typing import Protocol

from emu.simulator.link import Clock, Network, Parcel
from emu.simulator.tcp import MOST_RTO_S, PAYLOAD_BYTES, Sender, TcpSettings
from emu.testbed.access import ADDRESSES

# The wait after each SYN. Linux 6.5 and newer wait 1 s five times, then twice as long each time.
_SYN_WAITS_S = (1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 16.0)
# After this many unanswered SYNs the next ones do not ask for MPTCP, and the connection is plain
# TCP.
_MPTCP_SYNS = 3
# The least send buffer of a subflow: 131,072 bytes, 2,304 for each packet.
_SEND_BUFFER_PACKETS = 57
# A chunk, which the scheduler gives to a subflow at once and repeats at once: 64 KiB.
_CHUNK_PACKETS = 45
_STALE_TIMEOUTS = 4
# The daemon's bound on the laptop's retransmission time-outs (`net.ipv4.tcp_rto_max_ms`).
STEERED_RTO_S = 2.0


def _small(call: Callable[[], None]) -> Parcel:
    """Return a small packet; `call` is called when it arrives."""
    return Parcel(lambda parcel, packets: call())


def _time_outs_s(rtt_s: float) -> list[float]:
    """Return the first retransmission time-outs after one round trip was measured (RFC 6298, 2.2)."""
    return [max(rtt_s + 0.2, 3 * rtt_s) * 2**number for number in range(9)]


class Steering(Protocol):
    """A daemon beside the transfers (`emu.simulator.laptop.SimulatedLaptop`)."""

    def first_wait_s(self, network: Network) -> float:
        """Return how long the kernel waits before it repeats a first packet."""

    def on_joined(self, transfer: "Transfer", network: Network) -> None:
        """Note that a handshake is over."""

    def on_answer(self, transfer: "Transfer") -> None:
        """Note that the first data of a download has come."""

    def on_end(self, transfer: "Transfer") -> None:
        """Note that a transfer has ended."""


class Transfer:
    """A transfer of `size_bytes` that begins at once.

    | step | download | upload |
    |---|---|---|
    | handshake | SYN until SYN-ACK (`_connect`) | the same |
    | request | sent until the server has it | none |
    | data | from the server | from the client |
    | second subflow | joins with the first data | joins with the first acknowledged data |
    | end | the last byte arrives | the server's answer arrives |

    Attributes:
        ended_s: when the last byte arrived (download), or the answer to it (upload); None until then.
        packets: data packets that arrived over each network, copies included.
        first: the network of the first SYN.
        joined: the networks whose handshake is over, with the handshake's round trip in s.
        heard_at_s: when data, or an answer to data, last came to the client, by network.
        stopped: it has ended, complete or not.
        syns: how often the first SYN was sent, `resends_at_s`: when the next one is due.
    """

    def __init__(
        self,
        clock: Clock,
        # The network of the first SYN, and perhaps a second one, which MPTCP joins.
        networks: list[Network],
        size_bytes: int,
        *,
        down: bool,  # whether the server sends the data, else the client
        steering: "Steering | None" = None,  # how a daemon steers it; None: as the kernel does
    ) -> None:
        self.ended_s: float | None = None
        self.packets = dict.fromkeys(networks, 0)
        self.first = networks[0]
        self.joined: dict[Network, float] = {}
        self.heard_at_s: dict[Network, float] = {}
        self.syns, self.resends_at_s = 0, inf
        self._steering = steering
        # The networks that are in use; others are spares. None: all.
        self._used: set[Network] | None = {networks[0]} if steering is not None else None
        self._joining = {networks[0]}
        self._clock = clock
        self._down = down
        self._primary = networks[0]
        self._second = networks[1] if len(networks) > 1 else None
        self.stopped = False
        # The data in packets: how many, which have arrived, how many are missing, and the first one
        # that no subflow was given yet.
        self._total = max(1, -(-size_bytes // PAYLOAD_BYTES))
        self._arrived = bytearray(self._total)
        self._missing = self._total
        self._next = 0
        # The packets of each subflow that it has not sent yet. The packets with which a subflow had a
        # time-out: another one sends them again.
        self._given: dict[Sender, deque[tuple[int, int]]] = {}
        self._stuck: deque[tuple[int, int]] = deque()
        self._rtts_s: dict[Network, float] = {}
        self._answered_s: dict[Network, float] = {}
        self._connect(self._primary, self._on_connected)

    def stop(self) -> None:
        """End the transfer where it is: nothing more is sent."""
        self.stopped = True
        for sender in self._given:
            sender.close()

    # Steering.

    def rescue(self, network: Network) -> None:
        """Lead the next repetition of the first packet over another network, and all that follows."""
        self.packets.setdefault(network, 0)
        if self._second is network:
            self._second = self._primary
        self._primary = network
        self._used = {network}
        self._joining.add(network)

    def move(self, networks: Iterable[Network]) -> None:
        """Use these networks from now on, and join those that are not; the others are spares."""
        self._used = set(networks)
        for network in self._used - self._joining:
            self._join(network)
        for sender in self._given:
            sender.send()

    def release(self, network: Network) -> bool:
        """Give a subflow up: what it holds is sent again over the others. False: it is the only one."""
        leaving = [each for each in self._given if each.network is network]
        if len(leaving) == len(self._given):
            return False
        for sender in leaving:
            # What it holds and has not delivered goes to the others.
            held = [*sender.held(), *self._given.pop(sender)]
            sender.close()
            self._stuck.extend(
                part for part in (self._missing_part(*run) for run in held) if part[1]
            )
        self._joining.discard(network)
        self.joined.pop(network, None)
        for sender in self._given:
            sender.send()
        return True

    @property
    def used(self) -> Set[Network]:
        """Return the networks that carry it, where no other one must."""
        return self._joining if self._used is None else self._used

    @property
    def unanswered(self) -> bool:
        """Return whether the client waits: for the answer to a request, or to data that it sent."""
        if self._down:
            return bool(self.joined) and self._missing == self._total
        return any(sender.inflight for sender in self._given)

    @property
    def local_ip(self) -> str:
        return ADDRESSES[self.first.kind]

    def sender_over(self, network: Network) -> Sender | None:
        return next((each for each in self._given if each.network is network), None)

    # Opening.

    def _connect(self, network: Network, then: Callable[[], None]) -> None:
        """Send SYN until SYN-ACK comes, and keep the round trip of the SYN that was answered.

        Time stamps tell the client which one that was (RFC 7323). After an outage it is the one that
        waited in the queue for longest, so that the first time-out is long as well.
        """
        first = network is self._primary

        def send(arrived: Callable[[], None]) -> None:
            nonlocal network
            sent_s = self._clock.now_s
            if first:
                self.syns += 1
                network = self._primary  # a rescue leads the repetitions elsewhere
            over = network

            def on_syn() -> None:
                answered_s = self._clock.now_s

                def on_answer() -> None:
                    nonlocal network
                    if first and over is not self._primary:
                        return  # the rescue's rule lets only the other network's answer through
                    network = over
                    self._rtts_s.setdefault(over, self._clock.now_s - sent_s)
                    self._answered_s.setdefault(over, answered_s)
                    arrived()

                over.to_client(_small(on_answer))

            over.to_server(_small(on_syn))

        def connected() -> None:
            # A rescued packet is answered over the network to which the rescue led it.
            self.joined[network] = self._rtts_s[network]
            self.heard_at_s[network] = self._clock.now_s
            then()
            if self._steering is not None:
                self._steering.on_joined(self, network)

        waits: tuple[float, ...] = _SYN_WAITS_S
        if first and self._steering is not None:
            waits = (self._steering.first_wait_s(network),) * 4 + _SYN_WAITS_S
        self._repeat(send, connected, waits, first_packet=first)

    def _repeat(
        self,
        send: Callable[[Callable[[], None]], None],
        then: Callable[[], None],
        waits_s: Iterable[float],
        *,
        first_packet: bool = False,
    ) -> None:
        """Send a small packet again and again until one arrives; then go on, once."""
        waits = iter(waits_s)
        done = False

        def arrived() -> None:
            nonlocal done
            if not done and not self.stopped:
                done = True
                then()

        def attempt() -> None:
            if done or self.stopped:
                return
            send(arrived)
            wait_s = next(waits, None)
            if first_packet:
                self.resends_at_s = self._clock.now_s + (inf if wait_s is None else wait_s)
            if wait_s is not None:
                self._clock.after(wait_s, attempt)

        attempt()

    def _on_connected(self) -> None:
        # Linux asks for MPTCP only in the first SYNs: a middlebox may drop the option.
        if self.syns > _MPTCP_SYNS:
            self._second = None
        if not self._down:
            self._begin(self._primary)
            return
        # A download's data begins when the request has come.
        self._repeat(
            lambda arrived: self._primary.to_server(_small(arrived)),
            lambda: self._begin(self._primary),
            _time_outs_s(self._rtts_s[self._primary]),
        )

    def _join_second(self) -> None:
        """Add the second subflow."""
        second, self._second = self._second, None
        if second is not None and second not in self._joining:
            self._join(second)

    def _join(self, second: Network) -> None:
        """Add a subflow: SYN, SYN-ACK, ACK, and a fourth packet that confirms the ACK.

        The server may send data when the ACK has come, the client when the fourth packet has come.
        """
        self._joining.add(second)
        self.packets.setdefault(second, 0)

        def on_connected() -> None:
            if self._down:
                second.to_server(_small(lambda: self._begin(second)))
            else:
                second.to_server(
                    _small(lambda: second.to_client(_small(lambda: self._begin(second))))
                )

        self._connect(second, on_connected)

    def _begin(self, network: Network) -> None:
        """Begin to send data over a network, whose handshake is over."""
        if self.stopped:
            return
        rtt_s = self._rtts_s[network]
        if self._down:
            # The server's round trip began with its SYN-ACK.
            rtt_s = self._clock.now_s - self._answered_s[network]
        most_rto_s = MOST_RTO_S
        if self._steering is not None and not self._down:
            most_rto_s = STEERED_RTO_S
        settings = TcpSettings(most_rto_s=most_rto_s)
        sender = Sender(self._clock, network, self, down=self._down, rtt_s=rtt_s, settings=settings)
        self._given[sender] = deque()
        sender.send()

    # Sending.

    def take(self, sender: Sender, most: int) -> tuple[int, int]:
        """Return what a subflow is to send next: first the packets that another one is stuck with."""
        # A subflow that had a time-out itself sends no packets of others.
        while self._stuck and sender.backoff == 0:
            first, count = self._missing_part(*self._stuck.popleft())
            if count:
                if count > most:
                    self._stuck.appendleft((first + most, count - most))
                return first, min(count, most)
        # Then its own chunks; without any, the scheduler may give it more.
        given = self._given[sender]
        if not given:
            self._schedule()
            if not given:
                return 0, 0
        first, count = given.popleft()
        if count > most:
            given.appendleft((first + most, count - most))
        return first, min(count, most)

    def _schedule(self) -> None:
        """Give chunks to subflows while their send buffers have room."""
        while self._next < self._total:
            best, least_s = None, inf
            for sender, given in self._given.items():
                held = sender.inflight + sum(count for _, count in given)
                full = held >= max(_SEND_BUFFER_PACKETS, 2 * sender.cwnd)
                if full or sender.backoff >= _STALE_TIMEOUTS or not self._may_use(sender):
                    continue
                # How long what it holds takes at its rate, a window each round trip.
                lasts_s = held * sender.srtt_s / sender.cwnd
                if lasts_s < least_s:
                    best, least_s = given, lasts_s
            if best is None:
                return
            count = min(_CHUNK_PACKETS, self._total - self._next)
            best.append((self._next, count))
            self._next += count

    def _may_use(self, sender: Sender) -> bool:
        """Return whether a subflow is in use, or a spare whose likes are all that is left."""
        if self._used is None or sender.network in self._used:
            return True
        living = (each for each in self._given if each.backoff < _STALE_TIMEOUTS)
        return not any(each.network in self._used for each in living)

    def on_acknowledged(self, sender: Sender, packets: int) -> None:
        """Note when the client was answered; a window that moved sends by itself."""
        if not self._down:
            self.heard_at_s[sender.network] = self._clock.now_s

    def on_timeout(self, sender: Sender) -> None:
        """Let the other subflow send again what this one holds."""
        others = [other for other in self._given if other is not sender]
        if not others:
            return
        held = [*sender.held(), *self._given[sender]]
        room = _CHUNK_PACKETS
        # A stale subflow gives all away, another one only its oldest chunk.
        if sender.backoff >= _STALE_TIMEOUTS:
            self._given[sender].clear()
            room = self._total
        for first, count in held:
            first, count = self._missing_part(first, count)  # noqa: PLW2901
            if count and room:
                self._stuck.append((first, min(count, room)))
                room -= min(count, room)
        for other in others:
            other.send()

    def _missing_part(self, first: int, count: int) -> tuple[int, int]:
        """Return a run of packets without those at its beginning that have arrived."""
        while count and self._arrived[first]:
            first, count = first + 1, count - 1
        return first, count

    # Receiving.

    def deliver(self, sender: Sender, first: int, packets: int) -> None:
        """Take packets at the receiver; those that are there already change nothing but the count."""
        self.packets[sender.network] += packets
        if self._down:
            self.heard_at_s[sender.network] = self._clock.now_s
            first_data = self._missing == self._total and not self.stopped
            if first_data and self._steering is not None:
                self._steering.on_answer(self)
        new = self._arrived.count(0, first, first + packets)
        if self.stopped or not new:
            return
        self._arrived[first : first + packets] = b"\x01" * packets
        self._missing -= new
        if not self._missing:
            self._finish(sender.network)
        elif self._second is not None:
            # The first data, or its acknowledgement, tells the client that the server speaks MPTCP.
            if self._down:
                self._join_second()
            else:
                self._primary.to_client(_small(self._join_second))

    def _finish(self, network: Network) -> None:
        """End a download. Answer an upload over the network that brought its last packet, then end it."""
        if self._down:
            self._end()
        else:
            self._repeat(
                lambda arrived: network.to_client(_small(arrived)),
                self._end,
                _time_outs_s(self._rtts_s[network]),
            )

    def _end(self) -> None:
        self.ended_s = self._clock.now_s
        self.stop()
        if self._steering is not None:
            self._steering.on_end(self)
