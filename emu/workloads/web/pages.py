"""Pages in a browser: visits, and what their objects took."""

import itertools
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cedos.errors import EmulationError
from emu.workloads.web.browser import Browser, Tab
from emu.workloads.web.corpus import Page


@dataclass(slots=True)
class ObjectTiming:
    """A request of a page; seconds count from the page's first request.

    `ended_s` is None where it did not end; `problem` is the browser's word for what ended it.
    """

    url: str
    started_s: float
    ended_s: float | None = None
    status: int = 0
    received_bytes: int = 0
    protocol: str = ""
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loading of a page, from the navigation's start at the monotonic `started_at_s`.

    `load_s` is until the `load` event, `transfer_s` from the first request to the last byte of the
    page's objects, both at most the limit; `censored`: by then `load` had not fired, or `missing`
    objects had not come. `received_bytes` are on the wire, as the browser counts them.
    """

    started_at_s: float
    load_s: float
    transfer_s: float
    censored: bool
    missing: int
    received_bytes: int
    objects: tuple[ObjectTiming, ...]
    problem: str | None


@dataclass(slots=True)
class _Account:
    """The browser's account so far; its timestamps are seconds of the monotonic clock."""

    began_at_s: float | None = None
    loaded_at_s: float | None = None
    problem: str | None = None
    objects: dict[str, ObjectTiming] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        params = event["params"]
        kind = event["method"]
        if kind == "Page.loadEventFired":
            self.loaded_at_s = params["timestamp"]
            return
        if kind == "Network.requestWillBeSent":
            if self.began_at_s is None:
                self.began_at_s = params["timestamp"]
            self.objects[params["requestId"]] = ObjectTiming(
                params["request"]["url"], params["timestamp"] - self.began_at_s
            )
        each = self.objects.get(params.get("requestId", ""))
        if each is None or self.began_at_s is None:
            return
        if kind == "Network.responseReceived":
            each.status = params["response"]["status"]
            each.protocol = params["response"]["protocol"]
        elif kind == "Network.loadingFinished":
            each.ended_s = params["timestamp"] - self.began_at_s
            each.received_bytes = params["encodedDataLength"]
        elif kind == "Network.loadingFailed":
            each.ended_s = params["timestamp"] - self.began_at_s
            # An answer without a body is taken for a cancelled one.
            each.problem = None if each.status == 204 else params["errorText"]

    def count_whole(self) -> int:
        return len({each.url for each in self.objects.values() if _whole(each)})


def load(tab: Tab, page: Page, *, tls: bool, limit_s: float) -> Loaded:
    """Send a fresh tab to the page's document and wait for the last of its objects, up to `limit_s`.

    EmulationError: the browser or the tab crashed.
    """
    account = _Account()
    started_at_s = time.monotonic()
    deadline_at_s = started_at_s + limit_s
    tab.go(page.document.url(tls=tls))
    while (left_s := deadline_at_s - time.monotonic()) > 0:
        event = tab.event(left_s)
        if event is not None:
            account.take(event)
        if account.loaded_at_s is not None and account.count_whole() >= len(page.objects):
            break
    return _loaded(account, page, started_at_s, limit_s)


def _whole(each: ObjectTiming) -> bool:
    return each.ended_s is not None and each.problem is None and each.status in {200, 204}


def _loaded(account: _Account, page: Page, started_at_s: float, limit_s: float) -> Loaded:
    objects = tuple(account.objects.values())
    missing = len(page.objects) - account.count_whole()
    censored = missing > 0 or account.loaded_at_s is None
    began_at_s = account.began_at_s or started_at_s
    ended_s = [each.ended_s for each in objects if each.ended_s is not None]
    problems = sorted({each.problem for each in objects if each.problem})
    if missing and not problems:
        problems = [f"{missing} objects had not come"]
    return Loaded(
        started_at_s=started_at_s,
        load_s=limit_s if account.loaded_at_s is None else account.loaded_at_s - began_at_s,
        transfer_s=limit_s if censored else max(ended_s),
        censored=censored,
        missing=missing,
        received_bytes=sum(each.received_bytes for each in objects),
        objects=objects,
        problem=", ".join(problems) or None,
    )


_JITTER = 0.2


@dataclass(frozen=True, slots=True)
class PlannedPage:
    """A visit; `at_s` counts from the start of the measured part of the run."""

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
    """Visit to the pages in a seeded order, about `every_s` apart (a fifth either way).

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
        """Make each visit at `zero_at_s + at_s`, whether or not earlier ones have ended; in that order.

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
