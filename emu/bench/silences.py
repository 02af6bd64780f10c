"""Sessions over two networks of which one falls silent, flaps or is cut, on the emulated laptop.

Silent death: a network dies beyond its first hop at a random moment of a transfer. What the rest takes
over the other one, at the rate that it has alone in the same run, is the ideal. Flapping: one of two
equal networks is silent every other second, or all its connections are cut each second; the healthy one
alone is the measure. Labels, schedulers, directions and ways of programming are mixed over the trials.
"""

import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from cedos.errors import EmulationError
from cedos.model import NetworkKind
from emu.bench import percentile
from emu.places.traces import Trace
from emu.testbed.access import ADDRESSES, LTE, WLAN, Access
from emu.testbed.phones import SERVER, Laptop, Silence
from emu.testbed.programs.rescue_laptop import put_on_time
from emu.workloads.sessions.pair import Pair, pair

_BPS: Final = {WLAN: 24e6, LTE: 16e6}
_RTT_S: Final = {WLAN: 0.020, LTE: 0.050}
_FLAPPING_BPS: Final = 4e6
_SIZE, _FLAPPING_SIZE = 8_000_000, 4_000_000
_TRIALS, _FLAPPING_TRIALS = 40, 40
_ALONE: Final = 3
_DIES_AFTER: Final = (0.1, 0.9)  # of the time that both networks together need
_STALL_S, _STALL_ROUND_TRIPS = 0.5, 2
_FLAP_S: Final = 1.0
_PAUSE_S: Final = 0.3
LABELS: Final = ("foreground,small", "foreground,large", "background,small", "background,large")
SCHEDULERS: Final = ("intnw", "swtc", "lowest-rtt", "round-robin", "redundant")
_ADDRESS_OF: Final = {WLAN: ADDRESSES[NetworkKind.WIFI], LTE: ADDRESSES[NetworkKind.CELLULAR]}

Progress = Callable[[str], None]
Arrivals = Sequence[tuple[float, int]]


@dataclass(frozen=True, slots=True)
class Way:
    """The way a transfer is made."""

    down: bool
    label: str = LABELS[3]
    scheduler: str = SCHEDULERS[0]

    def __str__(self) -> str:
        return f"{'down' if self.down else 'up'}, {self.scheduler}, {self.label}"


def ways(down: bool, count: int) -> list[Way]:
    """Return `count` ways in which all labels and schedulers occur."""
    return [Way(down, LABELS[n % 4], SCHEDULERS[(n // 2) % 5]) for n in range(count)]


def flapping_way(number: int) -> Way:
    """Down and up in turn; of 40, each label with each scheduler."""
    turn = number // 2
    return Way(number % 2 == 0, LABELS[turn % 4], SCHEDULERS[turn % 5])


def longest_stall_s(arrivals: Arrivals) -> float:
    return max(later[0] - earlier[0] for earlier, later in pairwise(arrivals))


def arrived_at(arrivals: Arrivals, at_s: float) -> int:
    return max((count for when_s, count in arrivals if when_s <= at_s), default=0)


def over_ideal(arrivals: Arrivals, died_at_s: float, survivor_bps: float) -> float:
    """Return the time over that of an ideal hand-over at the death, which loses and waits for nothing."""
    begun_s, ended_s = arrivals[0][0], arrivals[-1][0]
    left = arrivals[-1][1] - arrived_at(arrivals, died_at_s)
    return (ended_s - begun_s) / (died_at_s - begun_s + 8 * left / survivor_bps)


def run(progress: Progress) -> dict[str, float]:
    """Measure for about a quarter of an hour.

    Returns:
        For `down` and `up`: `silent_DIRECTION_n`, `_stall_max_s`, `_stall_p95_s`, `_stall_within_share`
        (of 0.5 s and two round trips of the slower network), `_over_ideal_max`, `_over_ideal_median`,
        `_over_ideal_within_share` (of 1.05). For `flapping` and `cut`: `_n`, `_of_alone_min`,
        `_of_alone_median`, `_within_share` (of 0.95), `_stall_max_s`.
    """
    figures: dict[str, float] = {}
    for down in (True, False):
        figures |= silent_deaths(down, progress)
    for what in ("flapping", "cut"):
        figures |= flaps(what, progress)
    return figures


def silent_deaths(down: bool, progress: Progress) -> dict[str, float]:
    dice = random.Random(f"silent {down}")
    moments = [dice.uniform(*_DIES_AFTER) for _ in range(_TRIALS)]
    stalls, ratios = [], []
    # The moments are drawn as shares of the time that both networks together would take.
    allowed_s = _STALL_S + _STALL_ROUND_TRIPS * max(_RTT_S.values())
    both_s = 8 * _SIZE / sum(_BPS.values())
    with emulated(_BPS) as (laptop, ends):
        # The ideal hand-over goes on at the rate of the network that lives.
        alone = {
            name: _rate_alone_bps(ends, name, Way(down), _SIZE, progress, steady=True)
            for name in (WLAN, LTE)
        }
        for number, way in enumerate(ways(down, _TRIALS)):
            # Wi-Fi dies twice as often as LTE.
            dies, lives = (WLAN, LTE) if number % 3 else (LTE, WLAN)
            silence = Silence(laptop, dies)
            died: list[float] = []

            def die(moment: float = moments[number], silence: Silence = silence) -> None:
                time.sleep(moment * both_s)
                silence.set(True)
                died.append(time.monotonic())  # noqa: B023 - used before the next one

            try:
                arrivals = transfer(ends, way, (WLAN, LTE), _SIZE, die)
            finally:
                silence.set(False)
            stalls.append(longest_stall_s(arrivals))
            ratios.append(over_ideal(arrivals, died[0], alone[lives]))
            progress(
                f"{number + 1}/{_TRIALS} {dies} dies after {died[0] - arrivals[0][0]:.2f} s ({way}): "
                f"longest pause {stalls[-1]:.2f} s, {ratios[-1]:.3f} of the ideal time"
            )
            time.sleep(_PAUSE_S)
    return {
        f"silent_{'down' if down else 'up'}_{key}": value
        for key, value in {
            "n": float(len(stalls)),
            "stall_max_s": max(stalls),
            "stall_p95_s": percentile(stalls, 0.95),
            "stall_within_share": statistics.mean(stall <= allowed_s for stall in stalls),
            "over_ideal_max": max(ratios),
            "over_ideal_median": statistics.median(ratios),
            "over_ideal_within_share": statistics.mean(ratio <= 1.05 for ratio in ratios),
        }.items()
    }


def flaps(what: str, progress: Progress) -> dict[str, float]:
    """Measure a network that is silent every other second (`flapping`) or reset once a second (`cut`)."""
    shares, stalls = [], []
    with emulated(dict.fromkeys(_BPS, _FLAPPING_BPS)) as (laptop, ends):
        alone = {
            (name, down): _rate_alone_bps(ends, name, Way(down), _FLAPPING_SIZE, progress, times=1)
            for name in (WLAN, LTE)
            for down in (True, False)
        }
        for number in range(_FLAPPING_TRIALS):
            way = flapping_way(number)
            # Another one of the two each time that a label comes up.
            bad, good = (WLAN, LTE) if (number // 2 + number // 8) % 2 == 0 else (LTE, WLAN)
            with _worse(laptop, bad, what):
                arrivals = transfer(ends, way, (WLAN, LTE), _FLAPPING_SIZE, lambda: None)
            rate_bps = 8 * _FLAPPING_SIZE / (arrivals[-1][0] - arrivals[0][0])
            shares.append(rate_bps / alone[good, way.down])
            stalls.append(longest_stall_s(arrivals))
            progress(
                f"{number + 1}/{_FLAPPING_TRIALS} {bad} {what} ({way}): {shares[-1]:.3f} of"
                f" {good} alone, longest pause {stalls[-1]:.2f} s"
            )
            time.sleep(_PAUSE_S)
    return {
        f"{what}_n": float(len(shares)),
        f"{what}_of_alone_min": min(shares),
        f"{what}_of_alone_median": statistics.median(shares),
        f"{what}_within_share": statistics.mean(share >= 0.95 for share in shares),
        f"{what}_stall_max_s": max(stalls),
    }


@contextmanager
def emulated(bps: dict[str, float]) -> Iterator[tuple[Laptop, Pair]]:
    accesses = [
        Access(kind, Trace.constant(bps[name]), Trace.constant(bps[name]), _RTT_S[name])
        for kind, name in ((NetworkKind.WIFI, WLAN), (NetworkKind.CELLULAR, LTE))
    ]
    with (
        Laptop(*accesses, source_rules=True, nice=-10) as laptop,
        pair(laptop.client, laptop.server, SERVER) as ends,
    ):
        put_on_time(laptop)
        yield laptop, ends


def transfer(
    ends: Pair, way: Way, networks: Sequence[str], size: int, meanwhile: Callable[[], None]
) -> list[tuple[float, int]]:
    """Carry a transfer and return when its bytes arrived; `meanwhile` is called as it begins."""
    there = ends.far.do("listen_for", address=SERVER, scheduler=way.scheduler)
    common: dict[str, Any] = {"label": way.label}
    ends.far.start("accept_over", paths=len(networks), **common)
    ends.near.start(
        "open_over", to=SERVER, port=there["port"], key=there["key"], scheduler=way.scheduler,
        networks=list(networks), **common,
    )  # fmt: skip
    for end in (ends.near, ends.far):
        end.answer()
    taking, giving = (ends.near, ends.far) if way.down else (ends.far, ends.near)
    taking.start("take")
    giving.start("give", size=size)
    meanwhile()
    came = [(float(at_s), int(count)) for at_s, count in taking.answer()["arrivals"]]
    giving.answer()
    if came[-1][1] != size:
        raise EmulationError(f"{came[-1][1]} bytes of {size} came ({way})")
    return came


def _rate_alone_bps(
    ends: Pair,
    network: str,
    way: Way,
    size: int,
    progress: Progress,
    *,
    times: int = _ALONE,
    steady: bool = False,
) -> float:
    """Return a session's rate over this network alone: a median, or `steady` the lower quartile."""
    rates = []
    for _ in range(times):
        arrivals = transfer(ends, way, (network,), size, lambda: None)
        if steady:
            arrivals = [each for each in arrivals if each[1] > size // 4]
        rates.append(8 * (size - arrivals[0][1]) / (arrivals[-1][0] - arrivals[0][0]))
    rate_bps = statistics.median(rates)
    progress(f"{network} alone, {way}: {rate_bps / 1e6:.2f} Mbit/s")
    return rate_bps


@contextmanager
def _worse(laptop: Laptop, network: str, what: str) -> Iterator[None]:
    """Flaps or cuts it in a thread."""
    over = threading.Event()
    silence = Silence(laptop, network)

    def work() -> None:
        on = True
        while not over.is_set():
            if what == "flapping":
                silence.set(on)
                on = not on
            over.wait(_FLAP_S)
            if what == "cut":
                laptop.client.run("ss", "-K", "src", _ADDRESS_OF[network], check=False)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        silence.set(False)
