"""The browser: pages and videos."""

import time
from itertools import pairwise
from pathlib import Path

import pytest

from emu.workloads.web.corpus import Object, Page
from emu.workloads.web.pages import load, schedule
from emu.workloads.web.video import Media, PlannedVideo, _watched

PAGE = Page(
    (
        Object("a.example", "/0.html", 1000, True, "text/html", (1, 2)),
        Object("a.example", "/1.js", 500, False, "text/javascript"),
        Object("b.example", "/none/2", 0, False, ""),
    )
)


class Script:
    """A tab whose events are given."""

    def __init__(self, *events):
        self._events = list(events)
        self.went = []

    def go(self, url):
        self.went.append(url)

    def event(self, timeout_s):
        if not self._events:
            time.sleep(min(timeout_s, 0.01))
            return None
        method, params = self._events.pop(0)
        return {"method": method, "params": params}


def sent(number, at_s):
    request = {"url": PAGE.objects[number].url()}
    return "Network.requestWillBeSent", {
        "requestId": str(number), "timestamp": at_s, "request": request,
    }  # fmt: skip


def answered(number, status):
    response = {"status": status, "protocol": "h2"}
    return "Network.responseReceived", {"requestId": str(number), "response": response}


def finished(number, at_s, count=10):
    params = {"requestId": str(number), "timestamp": at_s, "encodedDataLength": count}
    return "Network.loadingFinished", params


def failed(number, at_s, text):
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


def loaded(*events, limit_s=5.0):
    return load(Script(*events), PAGE, tls=False, limit_s=limit_s)


def test_a_page_that_came_whole():
    result = loaded(*WHOLE)
    assert result.load_s == pytest.approx(1.5)
    assert result.transfer_s == pytest.approx(2.25)
    assert (result.censored, result.missing, result.problem) == (False, 0, None)
    assert result.received_bytes == 1700
    assert [each.status for each in result.objects] == [200, 200, 204]


def test_an_object_that_failed_is_missing_and_the_page_censored():
    events = [e for e in WHOLE if e[1].get("requestId") != "1"]
    events += [sent(1, 100.5), failed(1, 101.0, "net::ERR_CONNECTION_RESET")]
    result = loaded(*events, limit_s=0.1)
    assert (result.censored, result.missing) == (True, 1)
    assert result.problem == "net::ERR_CONNECTION_RESET"
    assert result.transfer_s == 0.1
    assert result.load_s == pytest.approx(1.5)


def test_visits_go_round_all_sites_in_a_seeded_order():
    pages = [PAGE] * 5
    plan = schedule("x", pages, every_s=4, tls=True, duration_s=60, seed=3, number=7)
    assert plan == schedule("x", pages, every_s=4, tls=True, duration_s=60, seed=3, number=7)
    assert [each.number for each in plan] == list(range(7, 7 + len(plan)))
    assert sorted(each.index for each in plan[:5]) == [0, 1, 2, 3, 4]
    assert [each.index for each in plan[:5]] == [each.index for each in plan[5:10]]
    gaps = [b.at_s - a.at_s for a, b in pairwise(plan)]
    assert all(3.1 < gap < 4.9 for gap in gaps)
    assert plan[-1].at_s < 60


MEDIA = Media(Path("/nowhere"), (700_000, 2_000_000), 4.0, 5)
PLANNED = PlannedVideo(0, "v", 1.0, MEDIA, 5, None, 12.0, True)


def told(**changes):
    segments = [
        {"number": 1, "representation": 0, "started_s": 0.5, "ended_s": 1.5, "bytes": 350_000},
        {"number": 2, "representation": 1, "started_s": 1.5, "ended_s": 4.5, "bytes": 1_000_000},
    ]
    return {
        "begun_s": 0.3, "started_s": 1.6, "ended_s": 30.0, "segments": segments,
        "stalls": [{"started_s": 9.0, "ended_s": 11.5}], "problem": None, **changes,
    }  # fmt: skip


def test_a_video_that_was_played_to_its_end():
    seen = _watched(PLANNED, 50.0, 31.0, told())
    assert (seen.start_s, seen.stalls, seen.stall_s, seen.watched_s) == (1.6, 1, 2.5, 30.0)
    assert seen.transfer_s == pytest.approx(2.0)
    assert seen.bitrate_bps == pytest.approx(1_350_000)
    assert seen.received_bytes == 1_350_000
    assert not seen.censored
