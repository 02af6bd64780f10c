"""Video made here: a test pattern with noise, in several bit rates, cut into segments by ffmpeg.

H.264 in fragmented MP4, small and slow pictures (cheap to decode), yet at full rates: the encoder holds
its bit rate by filling up what the pictures do not need.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cedos.errors import EmulationError

MIME = 'video/mp4; codecs="avc1.42C01F"'
HOST = "video.example"

_FRAMES_PER_S = 10
_SIZE = "320x180"
_TIMEOUT_S = 300.0
_VERSION = 3
"""Part of the cache's key: a change of what is made below needs a new one."""


@dataclass(frozen=True, slots=True)
class Media:
    """One video: `segments` of `segment_s` in each of `bitrates_bps`, in a folder of its own.

    `init-R.mp4` begins representation R (its number in `bitrates_bps`, which ascend), `R-N.m4s` is
    its segment N, from 1 on; `media_R.m3u8` lists them all (HLS; `master.m3u8` lists those), and
    `all.mpd` (DASH).
    """

    folder: Path
    bitrates_bps: tuple[int, ...]
    segment_s: float
    segments: int

    def size_bytes(self, representation: int, segments: int | None = None) -> int:
        wanted = range(1, (segments or self.segments) + 1)
        return sum((self.folder / f"{representation}-{n}.m4s").stat().st_size for n in wanted)


def cache_directory() -> Path:
    """`CEDOS_EMU_CACHE_DIR`, else /var/cache/cedos-emu."""
    return Path(os.environ.get("CEDOS_EMU_CACHE_DIR", "/var/cache/cedos-emu"))


def make(bitrates_bps: tuple[int, ...], *, duration_s: float, segment_s: float) -> Media:
    """Encodes the video, or finds it in the cache.

    EmulationError: ffmpeg is missing or failed.
    """
    segments = max(1, round(duration_s / segment_s))
    key = repr((_VERSION, bitrates_bps, segments, segment_s))
    cache = cache_directory()
    folder = cache / f"video-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
        try:
            _encode(making, bitrates_bps, segments, segment_s)
            making.chmod(0o755)
            making.replace(folder)
        except OSError:
            if not folder.exists():  # else somebody else was as quick
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return Media(folder, bitrates_bps, segment_s, segments)


def nginx_servers(media: Sequence[Media], player: Path, *, tls: bool, http2: bool = False) -> str:
    """A `server` block for nginx's `http` block: the videos, and the folder of their player."""
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
    types {{ text/html html; text/javascript js; video/mp4 mp4 m4s;
            application/vnd.apple.mpegurl m3u8; application/dash+xml mpd; }}
    add_header Cache-Control no-store;
    root {player};
    location /libraries/ {{ add_header Cache-Control max-age=3600; }}
{locations}
  }}
"""


def _encode(folder: Path, bitrates_bps: tuple[int, ...], segments: int, segment_s: float) -> None:
    source = f"testsrc2=size={_SIZE}:rate={_FRAMES_PER_S}:duration={segments * segment_s:g}"
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y"]
    command += ["-f", "lavfi", "-i", f"{source},noise=alls=60:allf=t,format=yuv420p"]
    group = str(round(_FRAMES_PER_S * segment_s))
    for number, rate_bps in enumerate(bitrates_bps):
        rate = str(rate_bps)
        command += ["-map", "0:v", f"-b:v:{number}", rate, f"-minrate:v:{number}", rate]
        command += [f"-maxrate:v:{number}", rate, f"-bufsize:v:{number}", rate]
    command += ["-c:v", "libx264", "-preset", "ultrafast", "-profile:v", "baseline"]
    command += ["-level", "3.1", "-x264-params", "nal-hrd=cbr:force-cfr=1"]
    command += ["-g", group, "-keyint_min", group, "-sc_threshold", "0", "-bf", "0"]
    command += ["-f", "dash", "-seg_duration", f"{segment_s:g}", "-use_template", "1"]
    command += ["-hls_playlist", "1", "-adaptation_sets", "id=0,streams=v"]
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
