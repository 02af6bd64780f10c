"""The cost of a probe.

Its energy is Delphi's (Table 3): delay times the radio's power, for its UDP probe that of the bytes'
direction, for a DNS query and pings that between the two; the tail, which the table leaves out, is
added.
"""

from dataclasses import dataclass

from cedos.model import Direction, NetworkKind
from cedos.selector.energy import DELPHI, PowerModel

# A probe with this share of its bytes in one direction is charged at that direction's power.
_ONE_WAY = 0.9


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Joules while the probe lasted, and those by which it prolonged the radio's tail."""

    active_j: float
    tail_j: float

    @property
    def energy_j(self) -> float:
        """The joules of the probe."""
        return self.active_j + self.tail_j


def probe_cost(
    kind: NetworkKind,
    *,
    bytes_up: float,
    bytes_down: float,
    seconds: float,
    idle_s: float | None = None,
    power: PowerModel = DELPHI,
) -> ProbeCost:
    """Return the joules of one probe.

    `bytes_up`: sent; where nothing was sent, nothing is paid.
    `bytes_down`: received.
    `seconds`: from the first packet to the last, or to the end of waiting for it.
    `idle_s`: seconds since the radio was last used; None: long ago.
    """
    if bytes_up <= 0:
        return ProbeCost(0.0, 0.0)
    radio = power.radios[kind]
    up_share = bytes_up / (bytes_up + bytes_down)
    if up_share > _ONE_WAY:
        active_w = radio.active_w(Direction.UP)
    elif up_share < 1 - _ONE_WAY:
        active_w = radio.active_w(Direction.DOWN)
    else:
        active_w = (radio.active_w(Direction.UP) + radio.active_w(Direction.DOWN)) / 2
    return ProbeCost(active_w * seconds, radio.added_tail_j(idle_s))
