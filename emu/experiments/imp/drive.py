"""A drive past open access points, put together from what was measured elsewhere.

The dissertation's drive had Wi-Fi for 27 % of the time, for 7 s in the median, and slow 3G. No collection
has such a drive, measured on both networks. Here the cellular trace and the Wi-Fi's rates are a place's
own, while its Wi-Fi is there only during contacts that are drawn, with the gaps between them, from the
published distributions of vehicular Wi-Fi. So the networks are real, and when they meet is not.
"""

import random

import numpy as np

from emu.places.places import Place
from emu.places.stats import OUTAGE_BPS, rates_bps
from emu.places.synth_paths import CONTACT_S, GAP_S
from emu.places.synth_random import interpolated
from emu.places.traces import Trace
from emu.testbed.access import Access


def drive(place: Place, seconds: int, seed: int) -> dict[str, Access]:
    """Both networks of a drive of so many seconds; the cellular trace repeats if it is shorter.

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
    """The seconds with service of a trace, one after another, as often as contacts need them."""
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
