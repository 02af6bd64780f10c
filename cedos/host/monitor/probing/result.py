"""The result of a probe, and its cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from cedos.model import Address, Direction, NetworkKind


class ProbeKind(StrEnum):
    PING = "ping"
    DNS = "dns"
    UDP_TRAIN = "udp-train"


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a probe: bytes on the wire with IP headers, and seconds from first to last."""

    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        return self.bytes_up + self.bytes_down


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """The outcome of a train or a transfer: indicators by name, or none and the problem in words.

    `rtt_s` is the round trip of the train's own HELLO, None without an answer: no indicator, since
    it is measured once and by the event loop.
    """

    indicators: Mapping[str, float]
    spent: Spent
    problem: str = ""
    rtt_s: float | None = None


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """A probe of a network.

    `indicators` are named as in a transfer data set, for the probe's direction, and absent where the
    probe failed: then `problem` says why. `at_s` is the monotonic instant at which that was known.
    `energy_j` includes the tail that the probe added, None if the radio is unknown.
    """

    network: str
    kind: ProbeKind
    at_s: float
    indicators: Mapping[str, float]
    spent: Spent
    energy_j: float | None = None
    problem: str = ""
    direction: Direction = Direction.DOWN

    @property
    def named(self) -> dict[str, float]:
        """Return the indicators as in a `Context`: of the uplink, `udp_bps` is `udp_up_bps` and so on."""
        if self.direction is Direction.DOWN:
            return dict(self.indicators)
        return {
            f"udp_up_{name[4:]}" if name.startswith("udp_") else name: value
            for name, value in self.indicators.items()
        }


TRAIN_PACKETS, TRAIN_PACKET_BYTES = 50, 1200


@dataclass(frozen=True, slots=True)
class ProbeServer:
    """A `cedos probe-server`, and how large its trains are (payload bytes of a datagram)."""

    address: Address
    port: int
    key: bytes
    packets: int = TRAIN_PACKETS
    packet_bytes: int = TRAIN_PACKET_BYTES


# Return the joules of a probe on a kind of network, given the seconds since its radio was last
# used.
Price = Callable[[NetworkKind, Spent, float | None], float]

# Bytes of IP and UDP headers by IP version.
UDP_HEADERS = {4: 28, 6: 48}
