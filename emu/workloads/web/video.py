"""Videos in a browser: their files, a page that plays them, and how they were played.

A video is a test pattern with noise, cut into segments by ffmpeg: H.264 in fragmented MP4, small and slow
pictures (cheap to decode), yet at full rates, as the encoder fills up to its bit rate.
"""

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedos.errors import EmulationError
from emu import console
from emu.workloads.web.browser import Tab

MIME = 'video/mp4; codecs="avc1.42C01F"'
HOST = "video.example"

FRAMES_PER_S = 10
_SIZE = "320x180"
_TIMEOUT_S = 300.0
# A part of the cache's key. A change of the video needs a new one.
_VERSION = 4


@dataclass(frozen=True, slots=True)
class Media:
    """A video: `segments` of `segment_s` in each of `bitrates_bps`, in a folder of its own.

    `init-R.mp4` begins representation R (its number in `bitrates_bps`, which ascend), `R-N.m4s` is
    its segment N, from 1 on.
    """

    folder: Path
    bitrates_bps: tuple[int, ...]
    segment_s: float
    segments: int

    def size_bytes(self, representation: int) -> int:
        wanted = range(1, self.segments + 1)
        return sum((self.folder / f"{representation}-{n}.m4s").stat().st_size for n in wanted)


def cache_directory() -> Path:
    """Return `CEDOS_EMU_CACHE_DIR`, else /var/cache/cedos-emu."""
    return Path(os.environ.get("CEDOS_EMU_CACHE_DIR", "/var/cache/cedos-emu"))


def make(bitrates_bps: tuple[int, ...], *, duration_s: float, segment_s: float) -> Media:
    """Encode the video, or finds it in the cache.

    EmulationError: ffmpeg is missing or failed.
    """
    segments = max(1, round(duration_s / segment_s))
    key = repr((_VERSION, bitrates_bps, segments, segment_s))
    cache = cache_directory()
    folder = cache / f"video-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.exists():
        console.make_folder(cache, "CEDOS_EMU_CACHE_DIR")
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
        try:
            _encode(making, bitrates_bps, segments, segment_s)
            making.chmod(0o755)
            making.replace(folder)
        except OSError:
            if not folder.exists():  # else another process was as quick
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return Media(folder, bitrates_bps, segment_s, segments)


def nginx_servers(media: Sequence[Media], player: Path, *, tls: bool, http2: bool = False) -> str:
    """Return a `server` block for nginx's `http` block: the videos, and the folder of their player."""
    folders = sorted({each.folder for each in media})
    locations = "\n".join(
        f"    location /{folder.name}/ {{ alias {folder}/; }}" for folder in folders
    )
    listen = f"listen 443 ssl{' http2' if http2 else ''};" if tls else ""
    return f"""
  server {{
    listen 80;
    {listen}
    server_name {HOST};
    types {{ text/html html; text/javascript js; video/mp4 mp4 m4s; }}
    add_header Cache-Control no-store;
    root {player};
{locations}
  }}
"""


def _encode(folder: Path, bitrates_bps: tuple[int, ...], segments: int, segment_s: float) -> None:
    source = f"testsrc2=size={_SIZE}:rate={FRAMES_PER_S}:duration={segments * segment_s:g}"
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    command += ["-f", "lavfi", "-i", f"{source},noise=alls=60:allf=t,format=yuv420p"]
    group = str(round(FRAMES_PER_S * segment_s))
    for number, rate_bps in enumerate(bitrates_bps):
        rate = str(rate_bps)
        command += ["-map", "0:v", f"-b:v:{number}", rate, f"-minrate:v:{number}", rate]
        command += [f"-maxrate:v:{number}", rate, f"-bufsize:v:{number}", rate]
    command += ["-c:v", "libx264", "-preset", "ultrafast", "-profile:v", "baseline"]
    command += ["-level", "3.1", "-x264-params", "nal-hrd=cbr:force-cfr=1"]
    command += ["-g", group, "-keyint_min", group, "-sc_threshold", "0", "-bf", "0"]
    command += ["-f", "dash", "-seg_duration", f"{segment_s:g}", "-use_template", "1"]
    command += ["-adaptation_sets", "id=0,streams=v"]
    command += ["-init_seg_name", "init-$RepresentationID$.mp4"]
    command += ["-media_seg_name", "$RepresentationID$-$Number$.m4s", str(folder / "all.mpd")]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except FileNotFoundError as error:
        raise EmulationError("ffmpeg is not installed; ./run installs it") from error
    except subprocess.TimeoutExpired as error:
        raise EmulationError(f"ffmpeg: no end after {_TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise EmulationError(f"ffmpeg failed: {done.stderr.strip()[-500:]}")
    last = [folder / f"{number}-{segments}.m4s" for number in range(len(bitrates_bps))]
    if not all(file.exists() for file in last):
        raise EmulationError(f"ffmpeg made fewer than {segments} segments")
    for file in folder.iterdir():
        file.chmod(0o644)


PLAYER = Path(__file__).with_name("player")

_LOOK_S = 0.5


@dataclass(frozen=True, slots=True)
class PlannedVideo:
    """A planned video; `at_s` counts from the start of the measured part of the run.

    `fixed` is the representation, or None for the player's choice by its buffer, of `buffer_s` at most;
    """

    number: int
    name: str
    at_s: float
    media: Media
    segments: int
    fixed: int | None
    buffer_s: float
    tls: bool


@dataclass(frozen=True, slots=True)
class SegmentTiming:
    """A segment; seconds count from the opening of the video. `ended_s` None: cut off."""

    number: int
    bitrate_bps: int
    started_s: float
    ended_s: float | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Watched:
    """The watching of a video, opened at the monotonic `started_at_s`.

    `start_s` is from there to the first picture (the limit where none came), `watched_s` to its end
    or the limit; it stood still `stalls` times, for `stall_s` in all; `segments` are those that
    were begun.
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
    """Open the video in a fresh tab at `zero_at_s + at_s` and follow it to its end, or `limit_s` more.

    EmulationError: the browser or the tab crashed.
    """
    time.sleep(max(0.0, zero_at_s + planned.at_s - time.monotonic()))
    length_s = planned.segments * planned.media.segment_s
    started_at_s = time.monotonic()
    deadline_at_s = started_at_s + length_s + limit_s
    tab.go(url(planned))
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


def url(planned: PlannedVideo) -> str:
    """Return the address of the page that plays the video."""
    media = planned.media
    wanted = {
        "mime": MIME,
        "folder": f"/{media.folder.name}/",
        "segments": planned.segments,
        "segment_s": media.segment_s,
        "representations": len(media.bitrates_bps),
        "fixed": planned.fixed,
        "buffer_s": planned.buffer_s,
    }
    return f"{_page(planned)}#{urllib.parse.quote(json.dumps(wanted))}"


def _page(planned: PlannedVideo) -> str:
    return f"{'https' if planned.tls else 'http'}://{HOST}/player.html"


def _player_state(tab: Tab) -> dict[str, Any] | None:
    """Return the player's account, with its clock's distance from the opening; None before it runs."""
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
    )
