"""What the four settings of the dissertation's 4.5.3 charge for joules and metered bytes."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Setting:
    """What a joule and a metered byte cost, in seconds of waiting (4.5.3, Table 4.3)."""

    name: str
    s_per_j: float
    s_per_byte: float


SETTINGS: Mapping[str, Setting] = {
    each.name: each
    for each in (
        Setting("no", 0.0, 0.0),
        Setting("low", 1 / 100, 1 / 100e3),
        Setting("mid", 1 / 10, 1 / 10e3),
        Setting("high", 1.0, 1 / 1e3),
    )
}
