"""The browser's protocol: answers find who asked, events their session, and an end everybody."""

import json
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from cedos.errors import EmulationError
from emu.workloads.web.browser import DevTools


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
