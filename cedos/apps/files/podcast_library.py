"""Podcasts: subscriptions, the episodes of their feeds, and the files that keep both."""

import asyncio
import hashlib
import io
import json
import re
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
from cedos.apps.files.partial import PartNote, files_of
from cedos.apps.files.web_getting import Distance, LeadingNetworks, WebWay, is_web
from cedos.config import toml_file
from cedos.config.directories import directories
from cedos.errors import ConfigError, FeedError, WebError
from cedos.kernel import own_file

_MOST_FEED_BYTES: Final = 8 << 20
_TEXT_LENGTH: Final = 1000
_LISTED_S: Final = 8 * 86_400.0  # longer than a daemon keeps a transfer in its table
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# What players know a recording by, and the types that feeds give such files.
_SUFFIX_OF: Final = {
    "audio/mpeg": ".mp3", "audio/mp3": ".mp3", "audio/x-mp3": ".mp3", "audio/mp4": ".m4a",
    "audio/m4a": ".m4a", "audio/x-m4a": ".m4a", "audio/aac": ".aac", "audio/ogg": ".ogg",
    "audio/opus": ".opus", "audio/flac": ".flac", "audio/wav": ".wav", "audio/x-wav": ".wav",
    "video/mp4": ".mp4", "video/x-m4v": ".m4v", "video/quicktime": ".mov", "video/webm": ".webm",
}  # fmt: skip
_RECORDINGS: Final = frozenset(_SUFFIX_OF.values()) | {".m4b", ".oga", ".mkv", ".ogv"}
_PICTURES: Final = frozenset({".jpg", ".jpeg", ".png", ".gif", ".webp"})
_TIME: Final = re.compile(r"([01]?\d|2[0-3]):[0-5]\d")


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

    `by_network` has the received bytes of each interface, `metered_bytes` those of metered networks.
    `least`: how far its feed's server is, and its own must be. `media_type`: by its feed.
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
    by_network: dict[str, int] = {}
    metered_bytes: int = 0
    least: Distance = Distance.INTERNET
    media_type: str = ""

    @property
    def suffix(self) -> str:
        """The end of its file's name: by its address if that is a recording's, else by its type."""
        by_url = suffix_of(self.url)
        return by_url if by_url.lower() in _RECORDINGS else _SUFFIX_OF.get(self.media_type, by_url)

    @property
    def source(self) -> str:
        """The name of its bytes, the same while only the address's token is renewed."""
        return f"{self.guid} {self.url.partition('?')[0]}"

    def follow(self, newer: "Episode") -> None:
        """Take what the feed says now."""
        self.title, self.url, self.least = newer.title, newer.url, newer.least
        self.size_bytes = newer.size_bytes or self.size_bytes

    @property
    def key(self) -> str:
        """The transfer's key in the daemon's table, the same after a restart."""
        text = f"{self.podcast}\0{self.guid}\0{self.file}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def name(self) -> str:
        return f"{self.podcast}: {self.title}"

    def here_bytes(self) -> int:
        file = Path(self.file)
        for each in (file, files_of(file)[0]):
            with suppress(OSError):
                return each.stat().st_size
        return 0

    def read_note(self) -> None:
        """Take the bytes by network from the part's note, which is newer than the book after a kill."""
        if (found := PartNote(Path(self.file)).read()) is not None:
            self.by_network, self.metered_bytes = dict(found[1].by_network), found[1].metered_bytes


class _Subscriptions(msgspec.Struct, forbid_unknown_fields=True):
    podcasts: dict[str, Subscription] = {}


class _Book(msgspec.Struct):
    episodes: list[Episode] = []
    feed_errors: dict[str, str] = {}


class Library:
    """The user's subscriptions (TOML, to be edited by hand) and their episodes (JSON).

    `feed_errors` has by podcast why the last reading of its feed failed. Errors of all calls:
    ConfigError, a file is wrong, or cannot be read or written.
    """

    def __init__(self, subscriptions: Path, book: Path) -> None:
        self._paths = subscriptions, book
        self.podcasts: dict[str, Subscription] = {}
        self.read_subscriptions()
        try:
            kept = msgspec.json.decode(book.read_bytes(), type=_Book)
        except FileNotFoundError:
            kept = _Book()
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"{book}: {error}; move it away to start anew") from error
        self.episodes, self.feed_errors = kept.episodes, kept.feed_errors

    def read_subscriptions(self) -> None:
        """Read the user's file, which may have changed."""
        path = self._paths[0]
        if path.exists():
            self.podcasts = toml_file.read(path, _Subscriptions).podcasts
        for name in self.podcasts:
            _check_name(name, f"{path}:")

    def wanted(self) -> list[Episode]:
        """Return the wanted episodes, the most urgent first."""
        found = [each for each in self.episodes if each.state is EpisodeState.WANTED]
        return sorted(found, key=lambda each: each.by_unix_s)

    def subscribe(self, name: str, wanted: Subscription) -> None:
        """Add a subscription, or change the time and the number of one with the same URL."""
        _check_name(name, "--name:")
        known = self.podcasts.get(name)
        if known is not None and known.url != wanted.url:
            raise ConfigError(f"{name} is the podcast {known.url}; give another --name")
        self.podcasts[name] = wanted
        for each in self.wanted():
            if each.podcast == name:
                each.by_unix_s = wanted.next_unix_s()

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription and what is still wanted of it; files stay."""
        if self.podcasts.pop(name, None) is None:
            known = ", ".join(self.podcasts) or "none yet"
            raise ConfigError(f"there is no podcast {name}; there are: {known}")
        for each in self.wanted():
            if each.podcast == name:
                asking.forget(directories().socket, each.key)
        self.episodes = [each for each in self.episodes if each.podcast != name]
        self.feed_errors.pop(name, None)

    def forget_ended(self) -> None:
        """Tell the daemon what ended lately: it lists as waiting what ended while it was away."""
        since_s = time.time() - _LISTED_S
        ended = (each for each in self.episodes if each.state is not EpisodeState.WANTED)
        keys = (each.key for each in ended if each.by_unix_s > since_s)
        all(asking.forget(directories().socket, key) for key in keys)

    def save_subscriptions(self) -> None:
        lines = ["# Podcasts of cedos-pod; may be edited by hand.\n"]
        for name, each in self.podcasts.items():
            lines += [
                f"\n[podcasts.{json.dumps(name)}]\nurl = {json.dumps(each.url)}\n",
                f"by = {json.dumps(each.by)}\nkeep = {each.keep}\n",
            ]
        _write(self._paths[0], "".join(lines).encode())

    def save(self) -> None:
        _write(
            self._paths[1],
            msgspec.json.format(msgspec.json.encode(_Book(self.episodes, self.feed_errors))),
        )


def parse_feed(data: bytes) -> list[Episode]:
    """Return a feed's episodes, the newest first where all have a date, else in the feed's own order.

    Raises:
        FeedError: the bytes are no feed.
    """
    try:
        # A stream: feedparser takes bytes for the name of a file.
        found: Any = feedparser.parse(io.BytesIO(data or b" "), sanitize_html=False)
        entries = [(entry, _enclosure(entry)) for entry in found.entries]
    except Exception as error:  # feedparser has no list of what odd bytes make it raise
        raise FeedError(f"the feed cannot be read: {error}") from error
    if not found.version or (found.bozo and not entries):
        raise FeedError(f"the answer is no feed: {found.get('bozo_exception', 'a web page, say')}")
    entries = [each for each in entries if each[1] is not None]
    dates = [entry.get("published_parsed") or entry.get("updated_parsed") for entry, _ in entries]
    if all(dates):
        order = sorted(range(len(dates)), key=lambda at: timegm(dates[at]), reverse=True)
        entries = [entries[at] for at in order]
    episodes = []
    for entry, enclosure in entries:
        url, size = _text(enclosure["href"]), str(enclosure.get("length", ""))
        title, guid = _text(entry.get("title", "")) or url, _text(entry.get("id", "")) or url
        known = size.isascii() and size.isdecimal() and len(size) < 16
        length = int(size) if known else 0
        episodes.append(Episode("", guid, title, url, length, media_type=_media_type(enclosure)))
    return episodes


def _text(value: object) -> str:
    """Return a text of a feed in one line, without half characters."""
    text = str(value)[:_TEXT_LENGTH].encode(errors="replace").decode()
    return " ".join(text.split())


def suffix_of(url: str) -> str:
    """Return what the last name in an address ends with (".mp3"); empty: nothing that is short."""
    last = unquote(urlsplit(url).path).rpartition("/")[2]
    # A query that was quoted twice belongs to the path.
    suffix = Path(last.partition("?")[0]).suffix
    return suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,5}", suffix) else ""


def _media_type(enclosure: Any) -> str:
    """Return a file's type without parameters, in small letters."""
    return _text(enclosure.get("type", "")).partition(";")[0].strip().lower()


def _enclosure(entry: Any) -> Any:
    """Return the file of an entry: audio or video first, never its cover picture."""
    files = [each for each in entry.get("enclosures", ()) if is_web(each.get("href", "").strip())]
    ranks = [(_rank(each), at) for at, each in enumerate(files)]
    best, at = min(ranks, default=(_NEVER, 0))
    return files[at] if best < _NEVER else None


_NEVER: Final = 2


def _rank(enclosure: Any) -> int:
    """Return 0 for a recording, 1 for another file, `_NEVER` for a picture; the type counts first."""
    kind = _media_type(enclosure).partition("/")[0]
    suffix = suffix_of(enclosure["href"].strip()).lower()
    if kind in ("audio", "video"):
        return 0
    if kind == "image" or suffix in _PICTURES:
        return _NEVER
    return 0 if suffix in _RECORDINGS else 1


async def read_feed(url: str, networks: LeadingNetworks) -> list[Episode]:
    """Read a feed over a network that leads to its server, one that is not metered if possible.

    Raises:
        WebError: this attempt failed.
        TransferError: the server has no such file, or it is no feed.
    """
    leading = await networks.to(urlsplit(url).hostname or "")
    first = min(leading, key=lambda each: each.metered, default=None)
    if first is None:
        raise WebError("no network leads to the server")
    way = WebWay(first.interface)
    data = await web_getting.read(url, _MOST_FEED_BYTES, way)
    found = await asyncio.to_thread(parse_feed, data)
    for each in found:
        each.least = way.least
    return found


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f'{where} "{name}" cannot be the name of a podcast; letters, digits, and . _ - behind '
            "the first can"
        )


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        own_file.write(path, content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
