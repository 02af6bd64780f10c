"""The media playlist of an HTTP Live Stream (RFC 8216): which objects play for how long. Pure."""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from cedos.proxy.local.players.addresses import Addresses, TooMuchWorkError

LONGEST: Final = 1 << 20
MOST_FOLDERS: Final = 64
"""In an address that others are relative to: each of them takes time by how deep it lies."""

MOST_CHARACTERS: Final = 4 << 20
"""Of all its addresses, as they are kept: each may repeat a long base."""

_MOST_SEGMENTS: Final = 20_000
_MOST_LINES: Final = 150_000
_LONGEST_URI: Final = 2_048
_LONGEST_S: Final = 600.0
_DURATION = re.compile(r"#EXTINF:([0-9]{1,5}(?:\.[0-9]{1,6})?)(?:,.*)?")
_MAP = re.compile(r'#EXT-X-MAP:(?:.*,)?URI="([^"]+)".*')
_SEQUENCE = re.compile(r"#EXT-X-MEDIA-SEQUENCE:([0-9]{1,15})")


@dataclass(frozen=True, slots=True)
class ListedSegment:
    """One object of a playlist; `number` is its place in the stream, and `places` further on is the next.

    One that plays for 0 s precedes segments (`EXT-X-MAP`, `initialization`), and is none.
    Where several renditions are listed, `rendition` is which of them it is of; those of one `track` are
    played one after another.
    """

    number: float
    duration_s: float
    places: float = 1.0
    rendition: str = ""
    track: str = ""


def parse(url: str, body: bytes) -> dict[str, ListedSegment] | None:
    """Its segments by their targets (path and query) at the playlist's own host; None: it is none.

    A list of variants has none of its own, and neither has one with byte ranges: an object is then no
    segment. One without `EXT-X-TARGETDURATION` (which has to be there, 4.3.3.1) lists songs, say. What
    is at other hosts is left out.
    """
    if len(body) > LONGEST:
        return None
    try:
        lines = body.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        return None
    if not 0 < len(lines) <= _MOST_LINES or lines[0].strip().lstrip("\ufeff") != "#EXTM3U":
        return None
    here = urlsplit(url)
    if len(here.path) > _LONGEST_URI or here.path.count("/") > MOST_FOLDERS:
        return None
    try:
        found = _read(url, here.netloc, lines)
    except (ValueError, TooMuchWorkError):
        return None
    return found if any(each.duration_s for each in found.values()) else None


def _read(url: str, netloc: str, lines: list[str]) -> dict[str, ListedSegment]:
    """ValueError, TooMuchWorkError: it is no playlist."""
    addresses = Addresses()
    found: dict[str, ListedSegment] = {}
    durations_s: dict[str, float] = {}  # most are the same
    count = number = characters = 0
    duration_s = None
    is_stream = False
    for line in filter(None, map(str.strip, lines)):
        preceding = _MAP.fullmatch(line) if line.startswith("#EXT-X-MAP:") else None
        if preceding is not None or not line.startswith("#"):
            address = line if preceding is None else preceding[1]
            if preceding is None and duration_s is None:
                continue
            count += 1
            if count > _MOST_SEGMENTS or len(address) > _LONGEST_URI:
                raise ValueError("too many segments, or a long address")
            there, target = addresses.target(url, address)
            characters += len(target)
            if characters > MOST_CHARACTERS:
                raise ValueError("long addresses")
            if preceding is not None:
                if there == netloc:
                    found.setdefault(target, ListedSegment(number, 0.0))
                continue
            assert duration_s is not None
            if there == netloc:
                found[target] = ListedSegment(number, duration_s)
            number, duration_s = number + 1, None
        elif line.startswith("#EXTINF:"):
            duration_s = durations_s.get(line)
            if duration_s is None:
                duration_s = durations_s[line] = _duration_s(line)
        elif not line.startswith("#EXT-X-"):
            continue
        elif line.startswith("#EXT-X-BYTERANGE"):
            raise ValueError("a range of bytes")
        elif line.startswith("#EXT-X-TARGETDURATION:"):
            is_stream = True
        elif match := _SEQUENCE.fullmatch(line):
            number = int(match[1])
    return found if is_stream else {}


def _duration_s(line: str) -> float:
    match = _DURATION.fullmatch(line)
    duration_s = 0.0 if match is None else float(match[1])
    if not 0 < duration_s <= _LONGEST_S:
        raise ValueError("a duration that is none")
    return duration_s
