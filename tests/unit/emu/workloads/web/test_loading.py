"""What the browser's events say about a page's loading."""

import time
from itertools import pairwise
from typing import Any, cast

import pytest

from cedos.errors import EmulationError
from emu.workloads.web.browser import Tab
from emu.workloads.web.corpus import Object, Page
from emu.workloads.web.pages import load, schedule

PAGE = Page(
    (
        Object("a.example", "/0.html", 1000, True, "text/html", (1, 2)),
        Object("a.example", "/1.js", 500, False, "text/javascript"),
        Object("b.example", "/none/2", 0, False, ""),
    )
)


class Script:
    """A tab whose events are given."""

    def __init__(self, *events: tuple[str, dict[str, Any]]) -> None:
        self._events = list(events)
        self.went: list[str] = []

    def go(self, url: str) -> None:
        self.went.append(url)

    def event(self, timeout_s: float) -> dict[str, Any] | None:
        if not self._events:
            time.sleep(min(timeout_s, 0.01))
            return None
        method, params = self._events.pop(0)
        return {"method": method, "params": params}


def sent(number: int, at_s: float) -> tuple[str, dict[str, Any]]:
    request = {"url": PAGE.objects[number].url()}
    return "Network.requestWillBeSent", {
        "requestId": str(number), "timestamp": at_s, "request": request,
    }  # fmt: skip


def answered(number: int, status: int) -> tuple[str, dict[str, Any]]:
    response = {"status": status, "protocol": "h2"}
    return "Network.responseReceived", {"requestId": str(number), "response": response}


def finished(number: int, at_s: float, count: int = 10) -> tuple[str, dict[str, Any]]:
    params = {"requestId": str(number), "timestamp": at_s, "encodedDataLength": count}
    return "Network.loadingFinished", params


def failed(number: int, at_s: float, text: str) -> tuple[str, dict[str, Any]]:
    params = {"requestId": str(number), "timestamp": at_s, "errorText": text}
    return "Network.loadingFailed", params


LOADED = ("Page.loadEventFired", {"timestamp": 101.5})
WHOLE = [
    *(sent(0, 100.0), answered(0, 200), finished(0, 100.4, 1100)),
    *(sent(1, 100.5), sent(2, 100.6), answered(1, 200), finished(1, 101.2, 600)),
    LOADED,
    # An answer without a body ends as if it were cancelled.
    *(answered(2, 204), failed(2, 102.25, "net::ERR_ABORTED")),
]


def loaded(*events: tuple[str, dict[str, Any]], limit_s: float = 5.0) -> Any:
    return load(cast(Tab, Script(*events)), PAGE, tls=False, limit_s=limit_s)


def test_a_page_that_came_whole() -> None:
    result = loaded(*WHOLE)
    assert result.load_s == pytest.approx(1.5)
    assert result.transfer_s == pytest.approx(2.25)
    assert (result.censored, result.missing, result.problem) == (False, 0, None)
    assert result.received_bytes == 1700
    assert [each.status for each in result.objects] == [200, 200, 204]


def test_an_object_that_failed_is_missing_and_the_page_censored() -> None:
    events = [e for e in WHOLE if e[1].get("requestId") != "1"]
    events += [sent(1, 100.5), failed(1, 101.0, "net::ERR_CONNECTION_RESET")]
    result = loaded(*events, limit_s=0.1)
    assert (result.censored, result.missing) == (True, 1)
    assert result.problem == "net::ERR_CONNECTION_RESET"
    assert result.transfer_s == 0.1
    assert result.load_s == pytest.approx(1.5)


def test_an_object_that_is_asked_for_again_counts_once() -> None:
    again = dict(sent(1, 101.0)[1], requestId="9")
    events = [*WHOLE[:3], sent(1, 100.5), failed(1, 100.9, "net::ERR_TIMED_OUT")]
    events += [("Network.requestWillBeSent", again)]
    events += [(answered(1, 200)[0], {**answered(1, 200)[1], "requestId": "9"})]
    events += [(finished(1, 101.2)[0], {**finished(1, 101.2)[1], "requestId": "9"})]
    events += [sent(2, 100.6), LOADED, answered(2, 204), finished(2, 102.0)]
    result = loaded(*events)
    assert (result.censored, result.missing) == (False, 0)


def test_a_page_of_which_nothing_came() -> None:
    result = loaded(limit_s=0.05)
    assert (result.censored, result.missing, result.load_s) == (True, 3, 0.05)
    assert result.problem == "3 objects had not come"


def test_a_crash_is_no_slow_page() -> None:
    class Crashing(Script):
        def event(self, timeout_s: float) -> dict[str, Any] | None:
            raise EmulationError("a page's process crashed")

    with pytest.raises(EmulationError, match="crashed"):
        load(cast(Tab, Crashing()), PAGE, tls=True, limit_s=1)


def test_visits_go_round_all_sites_in_a_seeded_order() -> None:
    pages = [PAGE] * 5
    plan = schedule("x", pages, every_s=4, tls=True, duration_s=60, seed=3, number=7)
    assert plan == schedule("x", pages, every_s=4, tls=True, duration_s=60, seed=3, number=7)
    assert [each.number for each in plan] == list(range(7, 7 + len(plan)))
    assert sorted(each.index for each in plan[:5]) == [0, 1, 2, 3, 4]
    assert [each.index for each in plan[:5]] == [each.index for each in plan[5:10]]
    gaps = [b.at_s - a.at_s for a, b in pairwise(plan)]
    assert all(3.1 < gap < 4.9 for gap in gaps)
    assert plan[-1].at_s < 60
