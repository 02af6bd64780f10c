"""An offer of a helper, as the selection compares it (CBSP, "Helper Selection")."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final


class NetworkType(IntEnum):
    """The type of a helper's uplink; the numbers are those of the protocol."""

    UNKNOWN = 0
    GPRS = 1
    EDGE = 2
    UMTS = 3
    HSDPA = 4
    LTE = 5
    NR = 6
    WIFI = 7
    ETHERNET = 8


TYPICAL_BPS: Final[Mapping[NetworkType, float]] = {
    NetworkType.UNKNOWN: 0.5e6,
    NetworkType.GPRS: 0.04e6,
    NetworkType.EDGE: 0.15e6,
    NetworkType.UMTS: 0.3e6,
    NetworkType.HSDPA: 3e6,
    NetworkType.LTE: 10e6,
    NetworkType.NR: 50e6,
    NetworkType.WIFI: 10e6,
    NetworkType.ETHERNET: 50e6,
}
"""Rates where there is no history. The paper gives the order HSDPA > UMTS > EDGE > GPRS alone."""


@dataclass(frozen=True, slots=True)
class HelperOffer:
    """The offer of one helper.

    Attributes:
        helper: the helper's public key.
        price: millionths of the currency for 1 GB (10^9 bytes).
        known_bps: rate of the helper's path to the gateway, bit/s; None: there is no history.
        network: type of the helper's uplink, which stands in for a rate that is not known.
        battery_s: seconds until the helper's battery is empty (beta_i of the paper).
        encounter_s: seconds until the two hosts are out of range (delta_i, equation 1).
    """

    helper: bytes
    price: int
    known_bps: float | None = None
    network: NetworkType = NetworkType.UNKNOWN
    battery_s: float = math.inf
    encounter_s: float = math.inf

    @property
    def rate_bps(self) -> float:
        """Throughput S_i of the paper."""
        return TYPICAL_BPS[self.network] if self.known_bps is None else self.known_bps

    @property
    def available_s(self) -> float:
        """Available encounter duration epsilon_i of the paper."""
        return min(self.battery_s, self.encounter_s)

    @property
    def deliverable_bits(self) -> float:
        """Data A_i of the paper that the helper can deliver before it is gone."""
        return self.rate_bps * self.available_s if self.rate_bps else 0.0
