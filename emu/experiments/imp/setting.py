"""Places, radios and what a host knows of networks before a trial begins."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Protocol

import numpy as np

from cedos.selector.energy.radio import Radio
from cedos.selector.prefetch.outlook import Average
from cedos.storage.radio_file import radios
from emu.experiments.imp.drive import drive
from emu.lab.simulation.joined import joined
from emu.lab.simulation.network import ReplayedNetwork
from emu.places.places import Places
from emu.places.stats import OUTAGE_BPS, rates_bps, runs
from emu.places.traces import Trace

_SLOWEST_BPS = 10_000.0
_DRIVE_S = 3600
_USUAL = 5


class _Downlink(Protocol):
    @property
    def down(self) -> Trace: ...

    @property
    def rtt_s(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """One place of an experiment, ready to be replayed.

    Attributes:
        averages: what the host knows from before: the collection's other places, or another drive.
        period_s: then the traces repeat.
        synthetic: whether any trace was generated.
    """

    networks: dict[str, ReplayedNetwork]
    radios: dict[str, Radio]
    averages: dict[str, Average]
    period_s: float
    synthetic: bool

    @property
    def cellular_median_bps(self) -> float:
        rates = rates_bps(self.networks["cellular"].access.down, int(self.period_s))
        return float(np.median(rates[rates >= OUTAGE_BPS]))


def setting(
    places: Places,
    parts: Sequence[str],
    device: str,
    cellular: str,
    detection_s: float,
    contacts_seed: int | None = None,
) -> Setting:
    """The places one after another (`emu.lab.simulation.joined`).

    With a seed of contacts, the first place's networks with drawn ones
    (`emu.experiments.imp.drive`). Errors: PlaceError, TraceError.
    """
    chosen = [places[name] for name in parts]
    if contacts_seed is None:
        accesses = joined(chosen)
        groups = {place.group for place in chosen}
        others = [place.networks for place in places.values() if place.group not in groups]
        past: list[Mapping[str, _Downlink]] = list(others or [chosen[0].networks])
    else:
        accesses = drive(chosen[0], _DRIVE_S, contacts_seed)
        # Other contacts past other access points: yesterday's drive.
        past = [drive(chosen[0], _DRIVE_S, contacts_seed + 1000)]
    known = radios()[device]
    return Setting(
        {name: ReplayedNetwork(one, detection_s=detection_s) for name, one in accesses.items()},
        {"wifi": known["wifi"], "cellular": known[cellular]},
        {name: averages([one[name] for one in past]) for name in accesses},
        accesses["wifi"].down.period_s,
        any(place.synthetic for place in chosen),
    )


def averages(networks: Sequence[_Downlink]) -> Average:
    """What a network is like on average over places: every place counts the same."""
    there, per_bit, rtts, absences = [], [], [], []
    for network in networks:
        rates = rates_bps(network.down, max(1, int(network.down.period_s)))
        up = rates >= OUTAGE_BPS
        there.append(float(up.mean()))
        if up.any():
            # Fetches last for some seconds: rates are those of so many (`simulate.USUAL_S`).
            usual = np.convolve(rates, np.ones(_USUAL) / _USUAL, mode="same")[up]
            per_bit.append(float((1.0 / np.maximum(usual, _SLOWEST_BPS)).mean()))
        rtts.append(network.rtt_s)
        absences += [length for _, length in runs(~up)]
    return Average(
        mean(there), mean(per_bit), median(rtts), float(np.mean(absences)) if absences else 0.0
    )
