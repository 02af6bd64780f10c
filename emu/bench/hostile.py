"""A thousand hostile cases in the simulator: what the daemon never does (`emu.simulator.hostile`).

Each tenth case is computed by a second process too, whose sets and dictionaries have another order: the
same seed must give the same result.
"""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache

from emu.places import places
from emu.places.places import Places
from emu.simulator import hostile
from emu.simulator.hostile import Outcome

CASES = 1000
FAULTS = ("exception", "astray", "stranded", "flaps", "overspent")
_AGAIN = 10


def run(progress: Callable[[str], None], cases: int = CASES) -> dict[str, float]:
    """Compute the cases on all cores; faults are told as they are found.

    Returns the transfers, their moves, and how many of these were beyond six in ten seconds but led away
    from silence (`flights`). For each kind of fault, the cases that have it. How many of the repeated
    cases came out `different`. How many seconds of a place were computed in one (`speed`).
    """
    began_s = time.monotonic()
    # Processes of their own: the seed of hashes is drawn as one starts.
    with ProcessPoolExecutor(
        os.cpu_count(), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        again = [pool.submit(_outcome, number) for number in range(0, cases, _AGAIN)]
        found: list[Outcome] = []
        for outcome in pool.map(_outcome, range(cases), chunksize=5):
            found.append(outcome)
            for kind, words in outcome.faults:
                progress(f"case {outcome.number}, {kind}: {words}")
        repeated = [each.result() for each in again]
    took_s = time.monotonic() - began_s
    counted = Counter(kind for outcome in found for kind, _ in outcome.faults)
    different = [each.number for each in repeated if found[each.number].digest != each.digest]
    for number in different:
        progress(f"case {number} came out differently in another process")
    return {
        "cases": len(found),
        "transfers": sum(each.transfers for each in found),
        "completed_share": sum(each.completed for each in found)
        / sum(each.transfers for each in found),
        "moves": sum(each.moves for each in found),
        "flights": sum(each.flights for each in found),
        **{kind: counted[kind] for kind in FAULTS},
        "different": len(different),
        "speed": sum(each.simulated_s for each in (*found, *repeated)) / took_s,
    }


def _outcome(number: int) -> Outcome:
    return hostile.check(hostile.draw(number, _places()))


@cache
def _places() -> Places:
    return places.load(places.default_directory())
