"""What the history keeps of a connection that a proxy carried through a gateway."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CarriedRecord:
    """A connection that has ended, or what came of it since it was last written.

    Attributes:
        addresses: of the gateway, to which the session's own connections led.
        decision: the last one about data like this in its session; None: there was none.
        bytes_by_network: payload, both ways.
    """

    ended_unix_s: float
    server: str
    port: int
    gateway: str
    addresses: tuple[str, ...]
    bytes_down: int
    bytes_up: int
    decision: int | None
    bytes_by_network: Mapping[str, int]
