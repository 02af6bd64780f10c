"""RSS 2.0 feeds: titles, identifiers, and where each episode's file is. Pure.

Expat alone reads them: a document type is refused, and with it every entity of one's own, so that nothing
grows while it is read. What is kept has bounds.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit
from xml.parsers import expat

from cedos.errors import FeedError

MOST_BYTES: Final = 8 << 20
MOST_EPISODES: Final = 2000
_DEEPEST: Final = 64
_LONGEST_TEXT: Final = 4096
_PAGE: Final = "what came is a web page, no RSS feed"
_OTHERS: Final = {"html": _PAGE, "feed": "what came is an Atom feed; only RSS can be read"}
_WANTED: Final = frozenset({"title", "guid", "pubDate"})


@dataclass(frozen=True, slots=True)
class Episode:
    """`size_bytes` 0: not told; `published` None: not told, or no date."""

    guid: str
    title: str
    url: str
    size_bytes: int = 0
    published: datetime | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """The episodes as the publisher orders them, usually the newest first."""

    title: str
    episodes: tuple[Episode, ...]


def parse(data: bytes) -> Feed:
    """A feed.

    Raises:
        FeedError: it is none, or too much of one.
    """
    if len(data) > MOST_BYTES:
        raise FeedError(f"a feed of {len(data)} bytes; {MOST_BYTES} are the most")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.StartDoctypeDeclHandler = reader.doctype
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise FeedError(f"what came is no feed: {error}") from error
    if not reader.is_feed:
        raise FeedError("what came is no RSS feed: there is no <rss> with a <channel>")
    return Feed(reader.title, tuple(reader.episodes))


class _Reader:
    def __init__(self) -> None:
        self.is_feed = False
        self.title = ""
        self.episodes: list[Episode] = []
        self._path: list[str] = []
        self._texts: dict[str, list[str]] = {}
        self._length = 0
        self._enclosure: dict[str, str] = {}

    def doctype(self, name: str, *_arguments: object) -> None:
        if name.lower() == "html":
            raise FeedError(_PAGE)
        raise FeedError("the feed declares a document type; that is refused")

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) == 1 and (why := _OTHERS.get(name.lower())):
            raise FeedError(why)
        if len(self._path) > _DEEPEST:
            raise FeedError(f"the feed is nested more than {_DEEPEST} deep")
        if self._path == ["rss", "channel"]:
            self.is_feed = True
        if self._path == ["rss", "channel", "item"]:
            self._texts, self._enclosure = {}, {}
        if self._path == ["rss", "channel", "item", "enclosure"] and not self._enclosure:
            self._enclosure = attributes
        self._length = 0

    def text(self, data: str) -> None:
        path = self._path
        inside = path[:3] == ["rss", "channel", "item"] and len(path) == 4 and path[3] in _WANTED
        if (inside or path == ["rss", "channel", "title"]) and self._length < _LONGEST_TEXT:
            self._texts.setdefault(path[-1], []).append(data[: _LONGEST_TEXT - self._length])
            self._length += len(data)

    def end(self, _name: str) -> None:
        path = list(self._path)
        self._path.pop()
        if path == ["rss", "channel", "title"]:
            self.title = _line(self._texts.pop("title", []))
        if path != ["rss", "channel", "item"]:
            return
        url = self._enclosure.get("url", "").strip()[:_LONGEST_TEXT]
        if not _fetchable(url) or len(self.episodes) >= MOST_EPISODES:
            return
        size = self._enclosure.get("length", "")
        known = size.isascii() and size.isdecimal() and len(size) < 16
        self.episodes.append(
            Episode(
                _line(self._texts.get("guid", [])) or url,
                _line(self._texts.get("title", [])) or url,
                url,
                int(size) if known else 0,
                _date(_line(self._texts.get("pubDate", []))),
            )
        )


def _line(parts: list[str]) -> str:
    return " ".join("".join(parts).split())


def _date(text: str) -> datetime | None:
    try:
        found = parsedate_to_datetime(text)
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _fetchable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        return False
