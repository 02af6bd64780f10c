"""Settings of the experiments: places, and a drive that is made of encounters.

The dissertation's drive had Wi-Fi for 27 % of the time, for 7 s in the median, and slow 3G. No collection
has such a drive, measured on both networks. Here the cellular trace and the Wi-Fi's rates are a place's
own, while its Wi-Fi is there only during contacts. These and the gaps between them are drawn from the
published distributions of vehicular Wi-Fi: the networks are real, and when they meet is not.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Protocol

import numpy as np

from cedos.selector.energy import Radio
from cedos.selector.prefetch.outlook import Average
from cedos.storage.model_files import radios
from emu.experiments.replayed_network import ReplayedNetwork, joined
from emu.places.places import Place, Places
from emu.places.stats import OUTAGE_BPS, rates_bps, runs
from emu.places.synth_paths import CONTACT_S, GAP_S, interpolated
from emu.places.traces import Trace
from emu.testbed.access import Access


def drive(place: Place, seconds: int, seed: int) -> dict[str, Access]:
    """Return both networks of a drive of so many seconds; the cellular trace repeats if it is shorter.

    Errors: TraceError where a trace cannot be read.
    """
    drawn = random.Random(f"drive {seed}")
    contacts: list[tuple[float, float]] = []
    at_s = interpolated(GAP_S, drawn.uniform(0.05, 0.9))
    while at_s < seconds:
        length_s = interpolated(CONTACT_S, drawn.uniform(0.05, 0.9))
        contacts.append((at_s, min(at_s + length_s, float(seconds))))
        at_s += length_s + interpolated(GAP_S, drawn.uniform(0.05, 0.9))
    found = {}
    for name, network in place.networks.items():
        ways = [network.down] if network.up is network.down else [network.down, network.up]
        traces = [
            _within(way, contacts, seconds) if name == "wifi" else _repeated(way, seconds)
            for way in ways
        ]
        found[name] = Access(network.kind, up=traces[-1], down=traces[0], rtt_s=network.rtt_s)
    return found


def _repeated(trace: Trace, seconds: int) -> Trace:
    times = [trace.times_ms + start_ms for start_ms in range(0, seconds * 1000, trace.period_ms)]
    joined = np.concatenate(times)
    return Trace(joined[joined < seconds * 1000], seconds * 1000)


def _within(trace: Trace, contacts: list[tuple[float, float]], seconds: int) -> Trace:
    """Return the seconds with service of a trace, one after another, as often as contacts need them."""
    rates = rates_bps(trace, max(1, trace.period_ms // 1000))
    covered = np.flatnonzero(rates >= OUTAGE_BPS)
    second = np.maximum(trace.times_ms - 1, 0) // 1000
    times, used = [], 0
    for begin_s, end_s in contacts:
        at_ms, left_ms = round(begin_s * 1000), round((end_s - begin_s) * 1000)
        while left_ms > 0:
            source = int(covered[used % len(covered)])
            within = trace.times_ms[second == source] - source * 1000
            step_ms = min(left_ms, 1000)
            times.append(within[within <= step_ms] + at_ms)
            at_ms, left_ms, used = at_ms + step_ms, left_ms - step_ms, used + 1
    joined = np.sort(np.concatenate(times)) if times else np.empty(0, dtype=np.int64)
    return Trace(joined[joined < seconds * 1000], seconds * 1000)


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
    """A place of an experiment, ready to be replayed."""

    networks: dict[str, ReplayedNetwork]
    radios: dict[str, Radio]
    # What the host knows from before: the collection's other places, or another drive.
    averages: dict[str, Average]
    period_s: float  # then the traces repeat
    synthetic: bool  # whether any trace was generated


def setting(
    places: Places,
    parts: Sequence[str],
    device: str,
    cellular: str,
    detection_s: float,
    contacts_seed: int | None = None,
) -> Setting:
    """Return the places one after another (`emu.experiments.replayed_network`).

    With a seed of contacts, the first place's networks with drawn ones
    (`emu.experiments.imp.setting`). Errors: PlaceError, TraceError.
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
    """Return what a network is like on average over places, each of which counts the same."""
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
