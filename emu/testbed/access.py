"""An emulated access network, and the interface of an engine that emulates it."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cedos.model import NetworkKind
from emu.places.traces import OPPORTUNITY_BITS, Trace
from emu.testbed.netns import Namespace

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


class Link(Protocol):
    """An emulated link, which its engine starts in three steps, so that several begin together."""

    @property
    def pid(self) -> int:
        """The process that leads all others of this link (its session and process group)."""

    @property
    def phone_pid(self) -> int:
        """A process inside the phone's network namespace, once started."""

    @property
    def started_at_s(self) -> float:
        """The monotonic instant at which the replay of the traces began, once started."""

    def prepare(self) -> None:
        """Do all that comes before the replay. EmulationError: the link died."""

    def start(self) -> None:
        """Let the replay begin, without waiting for it."""

    def finish(self) -> None:
        """Wait until the link carries packets. EmulationError: it died."""

    def alive(self) -> bool:
        """Return whether the link still carries packets."""

    def check(self) -> None:
        """Raise EmulationError with the engine's own words if the link has ended by itself."""

    def stop(self) -> None:
        """End the link at once, without waiting for it; a second call does nothing."""

    def wait(self) -> None:
        """Wait after `stop` until the leader of its processes has ended."""


class Engine(Protocol):
    """An emulator of access networks; the testbed uses Mahimahi."""

    def launch(self, access: Access, isp: Namespace, subnet: str, directory: Path) -> Link:
        """Begin to start a link whose outer end is in `isp`; the caller goes on with `Link.prepare`.

        In `isp`, packets to `subnet` (the client's, as `192.168.43.0/24`) are routed into the link.
        `directory` is for the files of this link alone.
        """
