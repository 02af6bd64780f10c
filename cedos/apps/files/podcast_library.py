"""Podcasts: subscriptions, the episodes of their feeds, and the files that keep both."""

import asyncio
import hashlib
import io
import os
import re
import resource
import sys
import time
from calendar import timegm
from contextlib import suppress
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import feedparser
import msgspec

from cedos.api import asking
from cedos.apps.files import web_getting
from cedos.apps.files.partial import files_of
from cedos.apps.files.web_getting import LeadingNetworks, is_web
from cedos.config import toml_file
from cedos.config.directories import directories
from cedos.errors import ConfigError, FeedError, WebError
from cedos.kernel import own_file
from cedos.web import Distance, WebWay

_MOST_FEED_BYTES: Final = 8 << 20
# A real feed of that size takes a tenth of this. The newest episodes are enough, `keep` is less.
_PARSE_S, _PARSE_BYTES = 30, 1 << 30
_MOST_PARSED: Final = 2000
# A feed may name new episodes each time that it is read.
MOST_NEW: Final = 100  # until the time when they are wanted, or `keep`
_MOST_DAYS: Final = 2  # so many of its days are remembered, however few are in it now
MOST_OF_DAY_BYTES: Final = 8 * 10**9
_DAY_S: Final = 86_400.0
_TEXT_LENGTH: Final = 1000
_TITLE_BYTES: Final = 120  # eCryptfs takes names of 143 bytes
_LISTED_S: Final = 8 * 86_400.0  # longer than a daemon keeps a transfer in its table
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")
# The file suffix of each media type that feeds give to recordings.
_SUFFIX_OF: Final = {
    "audio/mpeg": ".mp3", "audio/mp3": ".mp3", "audio/x-mp3": ".mp3", "audio/mp4": ".m4a",
    "audio/m4a": ".m4a", "audio/x-m4a": ".m4a", "audio/aac": ".aac", "audio/ogg": ".ogg",
    "audio/opus": ".opus", "audio/flac": ".flac", "audio/wav": ".wav", "audio/x-wav": ".wav",
    "video/mp4": ".mp4", "video/x-m4v": ".m4v", "video/quicktime": ".mov", "video/webm": ".webm",
}  # fmt: skip
_RECORDINGS: Final = frozenset(_SUFFIX_OF.values()) | {".m4b", ".oga", ".mkv", ".ogv"}
_PICTURES: Final = frozenset({".jpg", ".jpeg", ".png", ".gif", ".webp"})


class Subscription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feed; its `keep` newest episodes are wanted by the time of day `by`."""

    url: str
    by: str = "07:00"
    keep: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3

    def __post_init__(self) -> None:
        if not is_web(self.url):
            raise ValueError('url must be one such as "https://example.org/feed.xml"')
        if not _TIME.fullmatch(self.by):
            raise ValueError('by must be a time of day such as "07:00"')

    def next_unix_s(self) -> float:
        """Return the next time that the clock shows `by`."""
        hour, minute = map(int, self.by.split(":"))
        now = datetime.now()
        found = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return (found if found > now else found + timedelta(days=1)).timestamp()


class EpisodeState(StrEnum):
    """The state of an episode; the server of a refused one does not have the file."""

    WANTED = "wanted"
    HERE = "here"
    REFUSED = "refused"


class Episode(msgspec.Struct):
    """An episode of a subscription; `came_unix_s` is 0 until the file is here.

    `least`: how far its feed's server is, and its own must be.
    """

    podcast: str
    guid: str
    title: str
    url: str
    size_bytes: int = 0
    by_unix_s: float = 0.0
    file: str = ""
    state: EpisodeState = EpisodeState.WANTED
    why: str = ""
    came_unix_s: float = 0.0
    least: Distance = Distance.INTERNET
    suffix: str = ""

    @property
    def source(self) -> str:
        """The name of its bytes, the same while only the address's token is renewed."""
        return f"{self.guid} {self.url.partition('?')[0]}"

    @property
    def key(self) -> str:
        """The transfer's key in the daemon's table, the same after a restart."""
        text = f"{self.podcast}\0{self.guid}\0{self.file}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        return f"{self.podcast}: {self.title}"

    @property
    def file_name(self) -> str:
        """A name that leads to no other folder, is unique, and fits with the suffix of its part."""
        title = re.sub(r"[^\w -]+", "", self.title).strip()[:80] or "episode"
        title = title.encode()[:_TITLE_BYTES].decode(errors="ignore")
        return f"{title} {hashlib.sha256(self.guid.encode()).hexdigest()[:6]}{self.suffix}"

    def here_bytes(self) -> int:
        file = Path(self.file)
        for each in (file, files_of(file)[0]):
            with suppress(OSError):
                return each.stat().st_size
        return 0


class _Subscriptions(msgspec.Struct, forbid_unknown_fields=True):
    podcasts: dict[str, Subscription] = {}


class _Day(msgspec.Struct):
    """The bytes that a podcast has brought since its day began."""

    began_unix_s: float = 0.0
    received_bytes: int = 0


class _Book(msgspec.Struct):
    episodes: list[Episode] = []
    days: dict[str, _Day] = {}


class Library:
    """The user's subscriptions (TOML, to be edited by hand) and their episodes (JSON).

    Errors of all calls: ConfigError, a file is wrong, or cannot be read or written.
    """

    def __init__(self, subscriptions: Path, book: Path) -> None:
        self._subscriptions, self._book = subscriptions, book
        self.podcasts: dict[str, Subscription] = {}
        self.read_subscriptions()
        try:
            found = msgspec.json.decode(own_file.read(book), type=_Book)
        except FileNotFoundError:
            found = _Book()
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{book}: {error}; move it away to start anew") from error
        self.episodes, self._days = found.episodes, found.days

    def read_subscriptions(self) -> None:
        """Read the user's file, which may have changed."""
        if not self._subscriptions.exists():
            raise ConfigError(
                f"{self._subscriptions} names no podcast; [podcasts.news] with"
                ' url = "https://example.org/feed.xml" and by = "07:00" would be right'
            )
        self.podcasts = toml_file.read(self._subscriptions, _Subscriptions).podcasts
        if wrong := [name for name in self.podcasts if not _NAME.fullmatch(name)]:
            raise ConfigError(
                f'{self._subscriptions}: "{wrong[0]}" cannot be the name of a podcast; letters, digits,'
                " and . _ - behind the first can"
            )

    def wanted_episodes(self) -> list[Episode]:
        """Return the wanted episodes, the most urgent first; none of a feed that was taken out."""
        return sorted(filter(self._is_wanted, self.episodes), key=lambda each: each.by_unix_s)

    def _is_wanted(self, one: Episode) -> bool:
        return one.state is EpisodeState.WANTED and one.podcast in self.podcasts

    def add_new(self, name: str, found: list[Episode], folder: Path) -> int:
        """Take what a feed says now; return how many of its episodes are newly wanted."""
        wanted = self.podcasts[name]
        known = {each.guid: each for each in self.episodes if each.podcast == name}
        # An episode that is not here yet follows its feed: addresses have tokens that expire.
        for each in found:
            before = known.get(each.guid)
            if before is not None and before.state is EpisodeState.WANTED:
                before.title, before.url, before.least = each.title, each.url, each.least
                before.size_bytes = each.size_bytes or before.size_bytes
        by_unix_s = wanted.next_unix_s()
        room = max(wanted.keep, MOST_NEW) - sum(
            each.by_unix_s == by_unix_s for each in known.values()
        )
        new = [each for each in found[: wanted.keep] if each.guid not in known][: max(room, 0)]
        for each in new:
            each.podcast, each.by_unix_s = name, by_unix_s
            each.file = str(folder / name / each.file_name)
        self.episodes.extend(new)
        self._forget(name, {each.guid for each in found[: wanted.keep]})
        self.save()
        return len(new)

    def _forget(self, name: str, named: set[str]) -> None:
        """Forget a podcast's oldest episodes beyond a limit, but for those that its feed names now.

        Each is written with each attempt.
        """
        most = _MOST_DAYS * max(self.podcasts[name].keep, MOST_NEW)
        others = [each for each in self.episodes if each.podcast == name and each.guid not in named]
        gone = {id(each) for each in others[:-most]}
        self.episodes = [each for each in self.episodes if id(each) not in gone]

    def count(self, name: str, n_bytes: int) -> None:
        """Count bytes that a podcast has brought."""
        day, now_s = self._days.setdefault(name, _Day()), time.time()
        if not 0.0 <= now_s - day.began_unix_s < _DAY_S:
            day.began_unix_s, day.received_bytes = now_s, 0
        day.received_bytes += n_bytes

    def held_s(self, name: str) -> float:
        """Return the seconds until a podcast that has brought too many bytes in a day may go on."""
        self.count(name, 0)
        day = self._days[name]
        full = day.received_bytes > MOST_OF_DAY_BYTES
        return max(day.began_unix_s + _DAY_S - time.time(), 0.0) if full else 0.0

    def check_day(self, name: str) -> None:
        """Refuse more bytes of a podcast that has brought too many in a day. Errors: WebError."""
        if self.held_s(name):
            most = f"{MOST_OF_DAY_BYTES // 10**9} GB"
            raise WebError(f"its feed has brought {most} within a day; the rest comes later")

    def forget_ended(self) -> None:
        """Tell the daemon what ended lately: it lists as waiting what ended while it was away."""
        since_s = time.time() - _LISTED_S
        ended = (each for each in self.episodes if not self._is_wanted(each))
        keys = (each.key for each in ended if each.by_unix_s > since_s)
        all(asking.forget(directories().socket, key) for key in keys)

    def save(self) -> None:
        try:
            self._days = {name: day for name, day in self._days.items() if name in self.podcasts}
            self._book.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            content = msgspec.json.encode(_Book(self.episodes, self._days))
            own_file.write(self._book, msgspec.json.format(content))
        except OSError as error:
            raise ConfigError(f"{self._book}: {error.strerror or error}") from error


def parse_feed(data: bytes) -> list[Episode]:
    """Return a feed's episodes, the newest first where all have a date, else in the feed's own order.

    FeedError: the bytes are no feed.
    """
    try:
        # A stream: feedparser takes bytes for the name of a file.
        found: Any = feedparser.parse(io.BytesIO(data or b" "), sanitize_html=False)
        pairs = [(entry, _recording(entry)) for entry in found.entries]
    except Exception as error:  # feedparser has no list of what odd bytes make it raise
        raise FeedError(f"the feed cannot be read: {error}") from error
    if not found.version or (found.bozo and not pairs):
        raise FeedError(f"the answer is no feed: {found.get('bozo_exception', 'a web page, say')}")
    entries = [(_date(entry), entry, file) for entry, file in pairs if file is not None]
    if all(date for date, *_ in entries):
        entries.sort(key=lambda each: timegm(each[0]), reverse=True)
    return [_episode(entry, file) for _, entry, file in entries]


def _parse_in_child(most_s: int, most_bytes: int) -> None:
    """Parse standard input for `_parse_apart`; the kernel ends what takes too much time or memory."""
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    found: list[Episode] | str
    try:
        found = parse_feed(sys.stdin.buffer.read())[:_MOST_PARSED]
    except FeedError as error:
        found = str(error)[:_TEXT_LENGTH]
    with os.fdopen(1, "wb") as parent:
        parent.write(msgspec.json.encode(found))


async def _parse_apart(data: bytes) -> list[Episode]:
    """Parse a feed in a child process: one that is made for it takes minutes, and no thread can be ended.

    FeedError: the bytes are no feed, or one that takes too much time or memory.
    """
    call = f"from {__name__} import _parse_in_child; _parse_in_child({_PARSE_S}, {_PARSE_BYTES})"
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-c", call, stdin=pipe, stdout=pipe, stderr=none
    )
    try:
        output, _ = await child.communicate(data)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode:
        raise FeedError("the feed takes too much time or memory to read")
    found = msgspec.json.decode(output, type=list[Episode] | str)
    if isinstance(found, str):
        raise FeedError(found)
    return found


def _date(entry: Any) -> Any:
    return entry.get("published_parsed") or entry.get("updated_parsed")


def _episode(entry: Any, file: Any) -> Episode:
    url, size = _text(file["href"]), str(file.get("length", ""))
    known = size.isascii() and size.isdecimal() and len(size) < 16
    # An address that does not end as recordings do is that of a script: the type says more.
    suffix = _suffix_of(url)
    if suffix.lower() not in _RECORDINGS:
        suffix = _SUFFIX_OF.get(_media_type(file), suffix)
    return Episode(
        "", _text(entry.get("id", "")) or url, _text(entry.get("title", "")) or url, url,
        int(size) if known else 0, suffix=suffix,
    )  # fmt: skip


def _text(value: object) -> str:
    """Return a text of a feed in one line, without half characters."""
    text = str(value)[:_TEXT_LENGTH].encode(errors="replace").decode()
    return " ".join(text.split())


def _suffix_of(url: str) -> str:
    """Return what the last name in an address ends with (".mp3"); empty: nothing that is short."""
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    # A query that was quoted twice belongs to the path.
    suffix = Path(last.partition("?")[0]).suffix
    return suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,5}", suffix) else ""


def _media_type(file: Any) -> str:
    """Return a file's type without parameters, in small letters."""
    return _text(file.get("type", "")).partition(";")[0].strip().lower()


def _recording(entry: Any) -> Any:
    """Return the file of an entry: audio or video first, never its cover picture."""
    others = []
    for file in entry.get("enclosures", ()):
        if not is_web(url := file.get("href", "").strip()):
            continue
        kind, suffix = _media_type(file).partition("/")[0], _suffix_of(url).lower()
        if kind in ("audio", "video"):
            return file
        if kind != "image" and suffix not in _PICTURES:
            others.append((suffix not in _RECORDINGS, file))
    return min(others, key=lambda each: each[0], default=(False, None))[1]


async def read_feed(url: str, networks: LeadingNetworks) -> list[Episode]:
    """Read a feed over a network that leads to its server, one that is not metered if possible.

    WebError: this attempt failed. TransferError: the server has no such file, or it is no feed.
    """
    leading = await networks.to(url)
    first = min(leading, key=lambda each: each.metered, default=None)
    if first is None:
        raise WebError("no network leads to the server")
    way = WebWay(first.interface, forbids=networks.forbids)
    data = await web_getting.read(url, _MOST_FEED_BYTES, way)
    found = await _parse_apart(data)
    for each in found:
        each.least = way.least
    return found
