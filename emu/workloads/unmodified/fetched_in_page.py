"""A file fetched by a page in Chromium."""

import json
import time
from typing import Any, Final

from cedos.errors import EmulationError
from emu.testbed.programs.servers import SERVER_NAME
from emu.workloads.unmodified.watched import HalfWay, Watched, watched
from emu.workloads.web.browser import Browser

_PAGE: Final = f"http://{SERVER_NAME}/nm"
_LOOK_S = 0.01
_LIMIT_S = 90.0
_FETCH: Final = """
window.got = {bytes: 0, at: [], ended: null};
(async () => {
  try {
    const reader = (await fetch(%s, {cache: "no-store"})).body.getReader();
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      window.got.bytes += value.length;
      window.got.at.push(performance.now());
    }
    window.got.ended = "whole";
  } catch (error) { window.got.ended = String(error); }
})(); true"""


def fetch_in_page(
    browser: Browser, path: str, size: int, half_way: HalfWay | None = None
) -> Watched:
    """In a new tab, so over a new connection. EmulationError: the page does not come."""
    tab = browser.open_tab()

    def value(expression: str) -> Any:
        answer = tab.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        return answer["result"].get("value")

    def until(expression: str, what: str) -> Any:
        limit_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < limit_s:
            if found := value(expression):
                return found
            time.sleep(_LOOK_S)
        raise EmulationError(f"{what} within {_LIMIT_S:g} s")

    try:
        tab.go(_PAGE)
        until(f"location.href == {json.dumps(_PAGE)} && document.readyState == 'complete'",
              "Chromium has not opened a page")  # fmt: skip
        value(_FETCH % json.dumps(path))
        if half_way is not None:
            until(f"got.bytes > {0.3 * size:.0f} || got.ended", "a page has not fetched a third")
            half_way()
        ended = until("got.ended", "a page has not fetched its file")
        arrivals_ms: list[float] = value("got.at")
        whole = ended == "whole" and value("got.bytes") == size
        return watched(0.0, [each / 1e3 for each in arrivals_ms], whole=whole)
    finally:
        tab.close()
