"""Outcomes of a policy's trials, in the settings of the dissertation's costs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from emu.experiments.meatballs.client import Record
from emu.statistics import beside_simple


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: the cost of a joule and a metered byte in seconds of waiting (4.5.3, Table 4.3)."""

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


@dataclass(frozen=True, slots=True)
class Outcome:
    """A trial under one policy; bytes are those on the wire."""

    records: Sequence[Record]
    energy_j: float
    metered_bytes: float = 0.0
    all_bytes: float = 0.0

    @property
    def wait_s(self) -> float:
        return sum(record.wait_s for record in self.records)

    def cost_s(self, setting: Setting) -> float:
        """Return the weighted cost of 4.3, in seconds."""
        return (
            self.wait_s + setting.s_per_j * self.energy_j + setting.s_per_byte * self.metered_bytes
        )


def redundancy_shares(records: Sequence[Record]) -> dict[str, float]:
    """Return the shares begun in two ways at once, and in a second one later."""
    second_thoughts = [each.redundant and not each.hedged for each in records]
    return {
        "hedged_share": round(float(np.mean([each.hedged for each in records])), 4),
        "second_thought_share": round(float(np.mean(second_thoughts)), 4),
    }


def beside_simple_policies(
    outcomes: Mapping[str, Sequence[Outcome]],
    setting: Setting,
    simple: Collection[str],
    deciding: Collection[str],
) -> dict[str, Any]:
    """Return the policies' costs under a setting, as `emu.statistics.beside_simple`."""
    costs = {policy: [each.cost_s(setting) for each in of] for policy, of in outcomes.items()}
    return beside_simple(costs, simple, deciding)
