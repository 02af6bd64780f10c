"""Pages in Chromium whose Wi-Fi dies under way, by what is done with stuck connections; no gateway.

An emulated laptop with the daemon, Wi-Fi of 24 and LTE of 12 Mbit/s. Shortly after each page has begun
nothing gets through the Wi-Fi any more, for some seconds. The same pages over LTE alone are the measure.
"""

import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from emu.bench.caught_parts.programs import ACCESSES, WAYS
from emu.runs import browsing
from emu.runs.browsing import Person
from emu.runs.scenario import PageLoad, Scenario
from emu.testbed.access import WLAN
from emu.testbed.phones import Laptop, Silence
from emu.testbed.programs.rescue_laptop import RescueDaemon, put_on_time

_DIES_AFTER_S, _DEAD_S, _LIMIT_S = 0.4, 12.0, 30.0
_ALONE: Final = "lte-alone"
_SCENARIO: Final = Scenario(
    page=(PageLoad("pages", sites=6, every_s=20.0),), duration_s=100.0, limit_s=_LIMIT_S, seed=5
)


def run(progress: Callable[[str], None], ways: Sequence[str] = (_ALONE, *WAYS)) -> dict[str, float]:
    """Measure; about two minutes a way.

    Returns:
        Of each way (`lte-alone`, `never`, `after3s`, ...): the pages' mean and median load time, and how
        many of `pages_n` were not there after 30 s, which count as that; and the means over that of LTE
        alone (`WAY_page_ratio`).
    """
    figures: dict[str, float] = {}
    for way in ways:
        found, problems = _load_times_s(way)
        name = way.replace(" ", "")
        figures |= {
            "pages_n": len(found),
            f"{name}_page_s": statistics.mean(found),
            f"{name}_page_median_s": statistics.median(found),
            f"{name}_pages_late": sum(each >= _LIMIT_S for each in found),
        }
        progress(f"{way}: {', '.join(f'{each:.1f}' for each in found)} s; {problems}")
    alone = figures.get(f"{_ALONE}_page_s")
    return figures | {
        f"{name}_page_ratio": figures[f"{name}_page_s"] / alone
        for way in ways
        if alone is not None and (name := way.replace(" ", "")) != _ALONE
    }


def _load_times_s(way: str) -> tuple[list[float], list[str]]:
    """Load times, and what kept pages from being whole."""
    wanted = browsing.plan(_SCENARIO, _SCENARIO.seed)
    with ExitStack() as stack:
        laptop = stack.enter_context(Laptop(*ACCESSES, source_rules=False))
        servers = stack.enter_context(browsing.serve(wanted, laptop, http2=True))
        put_on_time(laptop)
        steering = f'close_stuck = "{way}"\n' if way != _ALONE else ""
        daemon = RescueDaemon(laptop, bpf=True, rescue=True, unmetered=True, steering=steering)
        stack.callback(daemon.stop)
        daemon.start()
        daemon.until_both_live()
        log = laptop.directory / "chromium.log"
        person = stack.enter_context(Person(laptop, servers, wanted, log, mptcp=False, nice=0))
        silence = Silence(laptop, WLAN)
        stack.callback(silence.set, False)
        silence.set(way == _ALONE)
        time.sleep(5.0)
        zero_at_s = time.monotonic()
        if way != _ALONE:
            dying = threading.Thread(
                target=_dies, args=(silence, zero_at_s, [each.at_s for each in wanted.pages])
            )
            dying.start()
            stack.callback(dying.join)
        browsed = person.browse(zero_at_s=zero_at_s, limit_s=_LIMIT_S)
    loaded = [each.loaded for each in browsed.visits]
    times_s = [_LIMIT_S if each.censored or each.problem else each.load_s for each in loaded]
    return times_s, [each.problem for each in loaded if each.problem]


def _dies(silence: Silence, zero_at_s: float, begin_s: Sequence[float]) -> None:
    for each_s in begin_s:
        dies_at_s = zero_at_s + each_s + _DIES_AFTER_S
        for at_s, dead in ((dies_at_s, True), (dies_at_s + _DEAD_S, False)):
            time.sleep(max(0.0, at_s - time.monotonic()))
            silence.set(dead)


if __name__ == "__main__":
    given = tuple(sys.argv[1:]) or (_ALONE, *WAYS)
    print(json.dumps(run(lambda line: print(line, file=sys.stderr), given), indent=2))
