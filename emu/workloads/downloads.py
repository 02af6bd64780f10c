"""Unmodified programs that download: what each has received, and when."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.phones import SERVER, Laptop
from emu.testbed.programs.servers import SERVER_NAME
from emu.testbed.services import Service, Started, accepts
from emu.workloads.web.browser import Browser

# Called once, in the middle of the measurement.
HalfWay = Callable[[], None]

_LOOK_S = 0.01
LIMIT_S = 90.0


@dataclass(frozen=True, slots=True)
class Watched:
    """From its first byte to its last one, the longest time without any, and whether all of it came."""

    took_s: float
    stall_s: float
    whole: bool


def watched(began_s: float, arrivals: Sequence[float], *, whole: bool) -> Watched:
    """Return what was watched of `arrivals`; EmulationError if nothing arrived."""
    if not arrivals:
        raise EmulationError("a program that was to be watched got nothing at all")
    stall_s = max((later - earlier for earlier, later in pairwise(arrivals)), default=0.0)
    return Watched(arrivals[-1] - began_s, stall_s, whole)


def as_user(user: int) -> tuple[str, ...]:
    """Return the prefix of a command that another user is to run; empty for root."""
    return ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if user else ()


def grown(
    process: "subprocess.Popen[bytes]",
    there: Callable[[], int],  # how many bytes are there by now
    size: int,
    half_way: HalfWay | None,  # called once after a third of them
    limit_s: float = LIMIT_S,  # a program that takes longer is killed
) -> list[float]:
    """Return when more of the `size` bytes that a program writes came, until it ends; monotonic, s."""
    end_s = time.monotonic() + limit_s
    seen, arrivals, call = 0, [], half_way
    while process.poll() is None and time.monotonic() < end_s:
        if (now := there()) > seen:
            seen = now
            arrivals.append(time.monotonic())
            if call is not None and seen > 0.3 * size:
                call()
                call = None
        time.sleep(_LOOK_S)
    if process.poll() is None:
        process.kill()
    return arrivals


def watch_output(
    process: "subprocess.Popen[bytes]",
    began_s: float,
    size: int,
    *,
    at: float = 0.3,
    half_way: HalfWay | None = None,
    after_s: float | None = None,
) -> Watched:
    """Read all of it. `half_way` is called once `at` is there, or `after_s` seconds after `began_s`."""
    assert process.stdout is not None

    def due(count: int) -> bool:
        if after_s is not None:
            return time.monotonic() - began_s >= after_s
        return count >= at * size

    count, arrivals, call = 0, [], half_way
    with process.stdout as stream:
        while data := os.read(stream.fileno(), 1 << 18):
            count += len(data)
            arrivals.append(time.monotonic())
            if call is not None and due(count):
                call()
                call = None
    whole = process.wait(60) == 0 and count == size
    return watched(began_s, arrivals, whole=whole)


_LIMIT_S = 90


def download(
    where: Namespace,
    url: str,
    size: int,
    *options: str,
    user: int = 0,
    mptcp: bool = False,
    at: float = 0.3,
    half_way: HalfWay | None = None,
    after_s: float | None = None,
) -> Watched:
    """Download by curl; `half_way` is called once `at` bytes are there, or after `after_s` seconds."""
    began_s = time.monotonic()
    process: subprocess.Popen[bytes] = where.popen(
        *as_user(user),
        *(("mptcpize", "run") if mptcp else ()),
        *("curl", "-sS", "-m", str(_LIMIT_S), *options, url),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    return watch_output(process, began_s, size, at=at, half_way=half_way, after_s=after_s)


_PORT: Final = 7008
_LIMIT: Final = "90s"
_START_TIMEOUT_S: Final = 15.0


class Served(Started):
    """A program at the laptop's server, in a folder of its own, until the `with` block ends."""

    def __init__(self, laptop: Laptop, name: str) -> None:
        self._laptop = laptop
        self._folder = laptop.directory / name
        self._service: Service | None = None

    def _serve(self, port: int, *command: str) -> None:
        server = self._laptop.server
        self._service = Service(server, *command, output=self._folder / "log")
        self._service.wait_for(lambda: accepts(server, SERVER, port), _START_TIMEOUT_S)

    def close(self) -> None:
        if self._service is not None:
            self._service.close()


_PAGE: Final = f"http://{SERVER_NAME}/nm"
_PAGE_LIMIT_S = 90.0
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
    """Fetch in a new tab, so over a new connection. EmulationError: the page does not come."""
    tab = browser.open_tab()

    def value(expression: str) -> Any:
        answer = tab.call("Runtime.evaluate", {"expression": expression, "returnByValue": True})
        return answer["result"].get("value")

    def until(expression: str, what: str) -> Any:
        limit_s = time.monotonic() + _PAGE_LIMIT_S
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
