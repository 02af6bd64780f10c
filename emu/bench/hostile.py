"""Hostile cases in the simulator: what the daemon never does, alone and with the proxy beside it.

Each tenth case is computed by a second process too, whose sets and dictionaries have another order: the
same seed must give the same result.
"""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Final

from emu.bench import told
from emu.places import places
from emu.places.places import Places
from emu.simulator import hostile
from emu.simulator.hostile import Outcome

PARTS = ("daemon", "gateway")
_CASES: Final = 1000  # of each part
FAULTS = ("exception", "astray", "stranded", "flaps", "overspent")
_AGAIN = 10


def run(progress: Callable[[str], None], parts: Sequence[str] = PARTS) -> dict[str, float]:
    """Compute the cases of these parts on all cores; faults are told as they are found.

    Returns for each part the transfers, their moves, and how many of these were beyond six in ten seconds
    but led away from silence (`flights`). For each kind of fault, the cases that have it. How many of the
    repeated cases came out `different`. How many seconds of a place were computed in one (`speed`).
    """
    figures: dict[str, float] = {}
    # Processes of their own: the seed of hashes is drawn as one starts.
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for part in parts:
            found = _figures(pool, part, progress)
            figures |= told(progress, {f"{part}_{key}": value for key, value in found.items()})
    return figures


def _figures(
    pool: ProcessPoolExecutor, part: str, progress: Callable[[str], None]
) -> dict[str, float]:
    began_s = time.monotonic()
    cases = [(number, part == "gateway") for number in range(_CASES)]
    again = [pool.submit(_outcome, each) for each in cases[::_AGAIN]]
    found: list[Outcome] = []
    for outcome in pool.map(_outcome, cases, chunksize=5):
        found.append(outcome)
        for kind, words in outcome.faults:
            progress(f"{part}, case {outcome.number}, {kind}: {words}")
    repeated = [each.result() for each in again]
    took_s = time.monotonic() - began_s
    counted = Counter(kind for outcome in found for kind, _ in outcome.faults)
    different = [each.number for each in repeated if found[each.number].digest != each.digest]
    for number in different:
        progress(f"{part}, case {number} came out differently in another process")
    transfers = sum(each.transfers for each in found)
    return {
        "cases": len(found),
        "transfers": transfers,
        "completed_share": sum(each.completed for each in found) / transfers,
        "moves": sum(each.moves for each in found),
        "flights": sum(each.flights for each in found),
        **{kind: counted[kind] for kind in FAULTS},
        "different": len(different),
        "speed": sum(each.simulated_s for each in (*found, *repeated)) / took_s,
    }


def _outcome(case: tuple[int, bool]) -> Outcome:
    number, gateway = case
    return hostile.check(hostile.draw(number, _places(), gateway=gateway))


@cache
def _places() -> Places:
    return places.load(places.default_directory())
