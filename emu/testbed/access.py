"""An emulated access network."""

import math
from dataclasses import dataclass, replace

from cedos.model import NetworkKind
from emu.places.traces import OPPORTUNITY_BITS, Trace

WLAN = "wlan0"
LTE = "lte0"
INTERFACES = {NetworkKind.WIFI: WLAN, NetworkKind.CELLULAR: LTE}
ADDRESSES = {NetworkKind.WIFI: "192.168.43.2", NetworkKind.CELLULAR: "192.168.44.2"}
GATEWAYS = {NetworkKind.WIFI: "192.168.43.1", NetworkKind.CELLULAR: "192.168.44.1"}

QUEUE_MIN_PACKETS = 60
QUEUE_MAX_PACKETS = 400


@dataclass(frozen=True, slots=True)
class Access:
    """An access network as the laptop meets it: its rates, its delay and its loss."""

    kind: NetworkKind  # `wifi` (the client's `wlan0`) or `cellular` (`lte0`)
    up: Trace  # delivery opportunities from the client
    down: Trace  # delivery opportunities towards the client
    rtt_s: float  # base round-trip time to the server; whole even milliseconds are what is emulated
    # Length of both directions' drop-tail queues, or of up and down apart; None: twice the product of
    # a direction's mean rate and `rtt_s`, within 60 and 400 packets.
    queue_packets: int | tuple[int, int] | None = None
    loss: float = 0.0  # share of packets lost at random, in each direction

    def __post_init__(self) -> None:
        if self.kind not in INTERFACES:
            raise ValueError(f"an emulated network is wifi or cellular, not {self.kind}")
        if not (math.isfinite(self.rtt_s) and self.rtt_s >= 0):
            raise ValueError(f"a round-trip time of {self.rtt_s} s cannot be emulated")
        if min(self.queue_up_packets, self.queue_down_packets) < 1:
            raise ValueError("a queue holds at least one packet")
        if not 0 <= self.loss < 1:
            raise ValueError(f"a loss of {self.loss} is no share of packets")

    @property
    def interface(self) -> str:
        return INTERFACES[self.kind]

    @property
    def queue_up_packets(self) -> int:
        return self._queue(0, self.up)

    @property
    def queue_down_packets(self) -> int:
        return self._queue(1, self.down)

    def rotated(self, start_s: float, length_s: float | None = None) -> "Access":
        """Return the same network, replayed from `start_s` on (see `Trace.rotated`)."""
        down = self.down.rotated(start_s, length_s)
        up = down if self.up is self.down else self.up.rotated(start_s, length_s)
        # The queues are the network's, not those of the part that is replayed.
        queues = (self.queue_up_packets, self.queue_down_packets)
        return replace(self, up=up, down=down, queue_packets=queues)

    def _queue(self, direction: int, trace: Trace) -> int:
        if isinstance(self.queue_packets, tuple):
            return self.queue_packets[direction]
        if self.queue_packets is not None:
            return self.queue_packets
        # Twice the bandwidth-delay product, within bounds.
        product = 2 * trace.mean_bps * self.rtt_s / OPPORTUNITY_BITS
        return min(max(round(product), QUEUE_MIN_PACKETS), QUEUE_MAX_PACKETS)
