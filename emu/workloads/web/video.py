"""A video, watched in the browser: how its segments came, and what whoever watched had to wait for."""

import json
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.errors import EmulationError
from emu.workloads.web.browser import Tab
from emu.workloads.web.media import HOST, MIME, Media

PLAYER = Path(__file__).with_name("player")

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class PlannedVideo:
    """One video; `at_s` counts from the start of the measured part of the run.

    `fixed` is the representation, or None for the player's choice by its buffer, of `buffer_s` at most;
    `cmcd`: it says what it has in store; `hls`: it reads playlists; `page` has the player.
    """

    number: int
    name: str
    at_s: float
    media: Media
    segments: int
    fixed: int | None
    buffer_s: float
    tls: bool
    cmcd: bool = False
    hls: bool = False
    page: str = "player.html"


@dataclass(frozen=True, slots=True)
class SegmentTiming:
    """One segment; seconds count from the opening of the video. `ended_s` None: cut off."""

    number: int
    bitrate_bps: int
    started_s: float
    ended_s: float | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Watched:
    """How watching a video went, opened at the monotonic `started_at_s`.

    `start_s` is from there to the first picture (the limit where none came), `watched_s` to its end
    or the limit; it stood still `stalls` times, for `stall_s` in all; `segments` are those that
    were begun; `remarks` are what the player had to put up with.
    """

    planned: PlannedVideo
    started_at_s: float
    start_s: float
    stalls: int
    stall_s: float
    watched_s: float
    segments: tuple[SegmentTiming, ...]
    censored: bool
    problem: str | None
    remarks: tuple[str, ...] = ()

    @property
    def transfer_s(self) -> float:
        """Mean seconds of a segment's transfer; one that was cut off counts as far as it came."""
        times = [
            (self.watched_s if each.ended_s is None else each.ended_s) - each.started_s
            for each in self.segments
        ]
        return sum(times) / len(times) if times else self.watched_s

    @property
    def bitrate_bps(self) -> float:
        """Mean rate of what came whole; 0 where nothing did."""
        rates = [each.bitrate_bps for each in self.segments if each.ended_s is not None]
        return sum(rates) / len(rates) if rates else 0.0

    @property
    def segment_bytes(self) -> float:
        """Mean bytes of a segment that was begun, by its nominal rate where it did not come."""
        sizes = [
            each.size_bytes or each.bitrate_bps * self.planned.media.segment_s / 8
            for each in self.segments
        ]
        return sum(sizes) / len(sizes) if sizes else 0.0

    @property
    def received_bytes(self) -> int:
        return sum(each.size_bytes for each in self.segments)


def watch(tab: Tab, planned: PlannedVideo, *, zero_at_s: float, limit_s: float) -> Watched:
    """Opens the video in a fresh tab at `zero_at_s + at_s` and follows it to its end, or `limit_s` more.

    EmulationError: the browser or the tab crashed.
    """
    time.sleep(max(0.0, zero_at_s + planned.at_s - time.monotonic()))
    length_s = planned.segments * planned.media.segment_s
    started_at_s = time.monotonic()
    deadline_at_s = started_at_s + length_s + limit_s
    tab.go(_url(planned))
    state: dict[str, Any] | None = None
    while (left_s := deadline_at_s - time.monotonic()) > 0:
        # Events tell of crashes; all else is asked for.
        look_at_s = time.monotonic() + min(_LOOK_S, left_s)
        while (wait_s := look_at_s - time.monotonic()) > 0:
            tab.event(wait_s)
        state = _player_state(tab) or state
        if state is not None and (state["ended_s"] is not None or state["problem"]):
            break
    return _watched(planned, started_at_s, time.monotonic() - started_at_s, state)


def visit(tab: Tab, planned: PlannedVideo, *, timeout_s: float) -> None:
    """Opens the video's page with nothing to play: the browser has its player then, as of a visit before.

    EmulationError: it did not come, or the browser or the tab crashed.
    """
    deadline_at_s = time.monotonic() + timeout_s
    tab.go(_page(planned))
    while _player_state(tab) is None:
        if time.monotonic() > deadline_at_s:
            raise EmulationError(f"{_page(planned)} did not come within {timeout_s:g} s")
        tab.event(_LOOK_S)
    # Another fragment alone would load nothing.
    tab.go("about:blank")
    while _player_state(tab) is not None:
        tab.event(_LOOK_S)


def _url(planned: PlannedVideo) -> str:
    media = planned.media
    wanted = {
        "mime": MIME,
        "folder": f"/{media.folder.name}/",
        "segments": planned.segments,
        "segment_s": media.segment_s,
        "representations": len(media.bitrates_bps),
        "fixed": planned.fixed,
        "buffer_s": planned.buffer_s,
        "cmcd": media.bitrates_bps if planned.cmcd else None,
        "hls": planned.hls,
    }
    return f"{_page(planned)}#{urllib.parse.quote(json.dumps(wanted))}"


def _page(planned: PlannedVideo) -> str:
    return f"{'https' if planned.tls else 'http'}://{HOST}/{planned.page}"


def _player_state(tab: Tab) -> dict[str, Any] | None:
    """The player's account, with its clock's distance from the opening; None before it runs."""
    expression = "typeof told === 'object' ? JSON.stringify(told) : null"
    answer = tab.call("Runtime.evaluate", {"expression": expression})["result"].get("value")
    if answer is None:
        return None
    account: dict[str, Any] = json.loads(answer)
    return account


def _watched(
    planned: PlannedVideo, started_at_s: float, watched_s: float, state: dict[str, Any] | None
) -> Watched:
    if state is None:
        return Watched(
            planned, started_at_s, watched_s, 0, 0.0, watched_s, (), True, "the player did not come"
        )
    # The player's clock begins with the navigation, which is when the video was opened.
    end_s = watched_s if state["ended_s"] is None else state["ended_s"]
    stalls_s = [
        (end_s if each["ended_s"] is None else each["ended_s"]) - each["started_s"]
        for each in state["stalls"]
    ]
    return Watched(
        planned=planned,
        started_at_s=started_at_s,
        start_s=end_s if state["started_s"] is None else state["started_s"],
        stalls=len(stalls_s),
        stall_s=sum(stalls_s),
        watched_s=end_s,
        segments=tuple(
            SegmentTiming(
                each["number"],
                planned.media.bitrates_bps[each["representation"]],
                each["started_s"],
                each["ended_s"],
                each["bytes"],
            )
            for each in state["segments"]
        ),
        censored=state["ended_s"] is None,
        problem=state["problem"],
        remarks=tuple(state.get("remarks", ())),
    )
