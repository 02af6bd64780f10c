"""What a transfer costs in joules: constant power while it lasts, and a tail on cellular radios.

Delphi (section 7.2, Table 4) measured one power per technology and direction, the same at every
data rate, and adds a constant tail after an LTE transfer; the dissertation (3.2.2.2) charges only
the part by which a tail that is still running is prolonged. Both radios are on during an MPTCP
transfer, so their powers add up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from cedos.model import Direction, NetworkKind

_UP = Direction.UP


@dataclass(frozen=True, slots=True)
class RadioPower:
    """One radio: watts while it sends or receives, then `tail_j` joules over `tail_s` seconds."""

    send_w: float
    receive_w: float
    tail_j: float = 0.0
    tail_s: float = 0.0

    def active_w(self, direction: Direction) -> float:
        """Watts while a transfer in this direction lasts."""
        return self.send_w if direction == _UP else self.receive_w

    def added_tail_j(self, idle_s: float | None) -> float:
        """Joules by which a transfer prolongs the tail.

        Args:
            idle_s: seconds since the radio was last used; None: long ago. The old tail has run for
                that long, and the new one begins in its place, so the difference is what is paid.
        """
        if idle_s is None or idle_s >= self.tail_s:
            return self.tail_j
        return self.tail_j * max(idle_s, 0.0) / self.tail_s


class RadioEnergy(Protocol):
    """What decisions ask of a radio: `RadioPower`, or the states of `selector.radio`."""

    @property
    def tail_s(self) -> float:
        """Seconds until it is idle after its last byte."""

    @property
    def tail_j(self) -> float:
        """Joules of these."""

    def active_w(self, direction: Direction, /) -> float:
        """Watts while a transfer in this direction lasts."""

    def added_tail_j(self, idle_s: float | None, /) -> float:
        """Joules that a transfer adds to that; `idle_s`: seconds since the last one, None: long."""


@dataclass(frozen=True, slots=True)
class PowerModel:
    """The radios of a host, by the kind of network."""

    radios: Mapping[NetworkKind, RadioEnergy]


# Delphi, Table 4. The paper treats the LTE tail as a constant and does not print it: 6.5 J is our
# figure, spread over the 11.5 s that LTE networks keep an idle radio awake. An Ethernet port, which
# the paper does not know, is charged like Wi-Fi.
_WIFI = RadioPower(send_w=0.536, receive_w=0.428)
DELPHI = PowerModel(
    MappingProxyType(
        {
            NetworkKind.WIFI: _WIFI,
            NetworkKind.ETHERNET: _WIFI,
            NetworkKind.CELLULAR: RadioPower(
                send_w=2.778, receive_w=1.674, tail_j=6.5, tail_s=11.5
            ),
        }
    )
)
