"""Visits to pages at planned times, each in a tab of its own with empty caches."""

import itertools
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from cedos.errors import EmulationError
from emu.workloads.web.browser import Browser, Tab
from emu.workloads.web.loading import Loaded, load
from emu.workloads.web.model import Page

_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """One visit; `at_s` counts from the start of the measured part of the run."""

    number: int
    name: str
    at_s: float
    index: int
    page: Page
    tls: bool


@dataclass(frozen=True, slots=True)
class Visit:
    planned: PlannedPage
    loaded: Loaded


def schedule(
    name: str,
    pages: Sequence[Page],
    *,
    every_s: float,
    tls: bool,
    duration_s: float,
    seed: int,
    number: int = 0,
) -> list[PlannedPage]:
    """Visits to the pages in a seeded order, about `every_s` apart (a fifth either way).

    Visits are numbered from `number` on.
    """
    draw = random.Random(f"{seed}/{name}")
    order = draw.sample(range(len(pages)), len(pages))
    at_s = draw.uniform(0.0, 0.5 * every_s)
    planned: list[PlannedPage] = []
    for index in itertools.cycle(order):
        if at_s >= duration_s:
            break
        planned.append(
            PlannedPage(number + len(planned), name, round(at_s, 3), index, pages[index], tls)
        )
        at_s += every_s * draw.uniform(1 - _JITTER, 1 + _JITTER)
    return planned


class Visits:
    """A plan whose tabs are open before the clock runs, so that opening them disturbs nothing."""

    def __init__(self, browser: Browser, plan: Sequence[PlannedPage]) -> None:
        self._plan = list(plan)
        self._tabs = [browser.open_tab() for _ in plan]

    def run(self, *, zero_at_s: float, limit_s: float) -> list[Visit]:
        """Makes each visit at `zero_at_s + at_s`, whether or not earlier ones have ended; in that order.

        They are ended and censored after `limit_s`. EmulationError: the browser or a tab crashed.
        """
        visits: dict[int, Visit] = {}
        failures: list[EmulationError] = []

        def visit(planned: PlannedPage, tab: Tab) -> None:
            try:
                loaded = load(tab, planned.page, tls=planned.tls, limit_s=limit_s)
                visits[planned.number] = Visit(planned, loaded)
            except EmulationError as error:
                failures.append(error)
            tab.close()

        threads = []
        for planned, tab in zip(self._plan, self._tabs, strict=True):
            time.sleep(max(0.0, zero_at_s + planned.at_s - time.monotonic()))
            thread = threading.Thread(target=visit, args=(planned, tab), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [visits[planned.number] for planned in self._plan]
