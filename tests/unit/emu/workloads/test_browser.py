"""The browser: DevTools' protocol, pages, videos."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from cedos.errors import EmulationError
from emu.workloads.web.browser import DevTools, Tab
from emu.workloads.web.corpus import Object, Page
from emu.workloads.web.pages import load, schedule
from emu.workloads.web.video import Media, PlannedVideo, _watched, make


class FakeBrowser:
    """The other end of the pipes; it answers as `respond` says."""

    def __init__(self) -> None:
        from_us, self._to_browser = os.pipe()
        self._from_browser, to_us = os.pipe()
        self.asked = os.fdopen(from_us, "rb")
        self.says = os.fdopen(to_us, "wb", buffering=0)
        self.devtools = DevTools(
            os.fdopen(self._to_browser, "wb"), os.fdopen(self._from_browser, "rb")
        )

    def next_asked(self) -> dict[str, object]:
        data = b""
        while not data.endswith(b"\0"):
            data += self.asked.read(1)
        message: dict[str, object] = json.loads(data[:-1])
        return message

    def say(self, **message: object) -> None:
        self.says.write(json.dumps(message).encode() + b"\0")


@pytest.fixture
def browser() -> Iterator[FakeBrowser]:
    fake = FakeBrowser()
    yield fake
    if not fake.says.closed:
        fake.says.close()
    fake.devtools.close()
    fake.asked.close()
    fake.devtools._to.close()
    fake.devtools._from.close()


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_answer_goes_to_who_asked(browser: FakeBrowser) -> None:
    def answer() -> None:
        asked = browser.next_asked()
        assert asked["method"] == "Page.enable"
        assert asked["sessionId"] == "S"
        browser.say(id=999, result={"for": "nobody"})
        browser.say(id=asked["id"], result={"fine": True})

    thread = meanwhile(answer)
    assert browser.devtools.call("Page.enable", session="S") == {"fine": True}
    thread.join()


def test_a_refusal_is_told_with_the_browser_s_words(browser: FakeBrowser) -> None:
    thread = meanwhile(
        lambda: browser.say(id=browser.next_asked()["id"], error={"message": "no such thing"})
    )
    with pytest.raises(EmulationError, match=r"Page\.x: no such thing"):
        browser.devtools.call("Page.x")
    thread.join()


def test_silence_has_an_end(browser: FakeBrowser) -> None:
    with pytest.raises(EmulationError, match=r"no answer within 0\.05 s"):
        browser.devtools.call("Page.enable", timeout_s=0.05)


def test_events_wait_for_their_session(browser: FakeBrowser) -> None:
    browser.says.write(b'{"method":"a","params":{},"sessionId":"S"}\0{"method":"b",')
    browser.says.write(
        b'"params":{},"sessionId":"T"}\0{"method":"c","params":{},"sessionId":"S"}\0'
    )
    events = [browser.devtools.event(session, 5) for session in ("S", "S", "T")]
    assert [each["method"] if each else None for each in events] == ["a", "c", "b"]
    assert browser.devtools.event("S", 0.01) is None


def test_the_browser_s_end_is_told_to_all(browser: FakeBrowser) -> None:
    thread = meanwhile(lambda: (browser.next_asked(), browser.says.close())[1])
    with pytest.raises(EmulationError, match="has ended"):
        browser.devtools.call("Page.enable")
    thread.join()
    with pytest.raises(EmulationError, match="has ended"):
        browser.devtools.event("S", 5)
    with pytest.raises(EmulationError, match="has ended"):
        browser.devtools.call("Page.enable")


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


MEDIA = Media(Path("/nowhere"), (700_000, 2_000_000), 4.0, 5)
PLANNED = PlannedVideo(0, "v", 1.0, MEDIA, 5, None, 12.0, True)


def told(**changes: Any) -> dict[str, Any]:
    segments = [
        {"number": 1, "representation": 0, "started_s": 0.5, "ended_s": 1.5, "bytes": 350_000},
        {"number": 2, "representation": 1, "started_s": 1.5, "ended_s": 4.5, "bytes": 1_000_000},
    ]
    return {
        "begun_s": 0.3, "started_s": 1.6, "ended_s": 30.0, "segments": segments,
        "stalls": [{"started_s": 9.0, "ended_s": 11.5}], "problem": None, **changes,
    }  # fmt: skip


def test_a_video_that_was_played_to_its_end() -> None:
    seen = _watched(PLANNED, 50.0, 31.0, told())
    assert (seen.start_s, seen.stalls, seen.stall_s, seen.watched_s) == (1.6, 1, 2.5, 30.0)
    assert seen.transfer_s == pytest.approx(2.0)
    assert seen.bitrate_bps == pytest.approx(1_350_000)
    assert seen.received_bytes == 1_350_000
    assert not seen.censored


def test_what_was_cut_off_counts_as_far_as_it_came() -> None:
    account = told(ended_s=None, stalls=[{"started_s": 12.0, "ended_s": None}])
    account["segments"][1] |= {"ended_s": None, "bytes": 0}
    seen = _watched(PLANNED, 50.0, 20.0, account)
    assert seen.censored
    assert seen.stall_s == pytest.approx(8.0)
    assert seen.transfer_s == pytest.approx((1.0 + 18.5) / 2)
    assert seen.bitrate_bps == 700_000
    assert seen.segment_bytes == pytest.approx((350_000 + 1_000_000) / 2)


def test_a_player_that_never_came() -> None:
    seen = _watched(PLANNED, 50.0, 20.0, None)
    assert (seen.censored, seen.start_s, seen.transfer_s) == (True, 20.0, 20.0)
    assert seen.problem == "the player did not come"


def test_media_hold_their_rates_and_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEDOS_EMU_CACHE_DIR", str(tmp_path))
    media = make((300_000, 900_000), duration_s=6, segment_s=2)
    assert media.segments == 3
    for number, rate_bps in enumerate(media.bitrates_bps):
        assert media.size_bytes(number) * 8 / 6 == pytest.approx(rate_bps, rel=0.15)
    before = (media.folder / "0-1.m4s").stat().st_mtime_ns
    assert make((300_000, 900_000), duration_s=6, segment_s=2) == media
    assert (media.folder / "0-1.m4s").stat().st_mtime_ns == before
    assert [file.name for file in tmp_path.iterdir()] == [media.folder.name]


def test_a_page_of_which_nothing_came() -> None:
    result = loaded(limit_s=0.05)
    assert (result.censored, result.missing, result.load_s) == (True, 3, 0.05)
    assert result.problem == "3 objects had not come"
