"""Brings episodes: over unmetered networks at once, over metered ones as late as the deadline allows."""

import asyncio
import hashlib
import re
import socket
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import aiohttp

from cedos.errors import FeedError, HostError, TransferError, WebError
from cedos.files.partial import Partial
from cedos.files.podcasts import feed
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.subscriptions import Subscription
from cedos.files.web_getting import fetch, session
from cedos.selector.deadlines.deadline_flow import DeadlineFlow, expected_bytes
from cedos.selector.deadlines.latest import next_begin_s
from cedos.session.io.links import Egress, EgressReader

_UNKNOWN_BPS: Final = 1e6
_RELIABLE: Final = 0.5  # rates of mobile networks vary by half within minutes
_SPARE_S: Final = 30.0
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 5.0
_FEED_S: Final = 60.0


class EpisodeFetching:
    """Whatever is wanted, one at a time, the most urgent first (Cedos, III-D).

    `say` gets a line for a person; `proxy`: a gateway's, for servers that are asked through it.
    """

    def __init__(
        self,
        book: EpisodeBook,
        folder: Path,
        say: Callable[[str], None],
        proxy: str | None = None,
        only: Callable[[str], bool] = lambda _interface: True,
    ) -> None:
        self._book, self._folder, self._say = book, folder, say
        self._proxy, self._only = proxy, only
        self._reader = EgressReader()
        self._waits = ""
        self.refused = 0

    def close(self) -> None:
        self._reader.close()

    async def update(self, name: str, wanted: Subscription) -> int:
        """Reads a feed; how many of its episodes are wanted from now on.

        Raises:
            WebError: it did not come this time.
            TransferError: it is no feed, or not there.
        """
        found = feed.parse(await self._read(wanted.url))
        by_unix_s = _next(wanted.by).timestamp()
        new = 0
        for each in found.episodes[: wanted.keep]:
            if self._book.knows(name, each.guid):
                continue
            target = self._folder / name / _file_name(each)
            record = EpisodeRecord(
                name, each.guid, each.title, each.url, each.size_bytes, by_unix_s, str(target)
            )
            self._book.add(record)
            new += 1
        self._book.save()
        return new

    async def _read(self, url: str) -> bytes:
        egresses = await self._egresses(url)
        first = min(egresses, key=lambda each: each.metered, default=None)
        interface = None if first is None or self._proxy else first.interface
        try:
            async with (
                asyncio.timeout(_FEED_S),
                session(interface) as client,
                client.get(url, proxy=self._proxy) as answer,
            ):
                if answer.status != 200:
                    raise TransferError(f"{url}: the server says {answer.status} {answer.reason}")
                data = bytearray()
                async for block in answer.content.iter_chunked(1 << 16):
                    data += block
                    if len(data) > feed.MOST_BYTES:
                        raise FeedError(f"{url}: more than {feed.MOST_BYTES} bytes")
                return bytes(data)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise WebError(f"{url}: {error or type(error).__name__}") from error

    async def run(self) -> None:
        """Until nothing is wanted any more.

        Raises:
            TransferError: the disk cannot.
        """
        while wanted := self._book.wanted():
            await self._one(wanted)

    async def _one(self, wanted: list[EpisodeRecord]) -> None:
        first = wanted[0]
        egresses = await self._egresses(first.url)
        begin_unix_s = self.must_begin_unix_s(wanted)
        free = next((each for each in egresses if not each.metered), None)
        now = time.time()
        if free is not None:
            await self._attempt(first, free)
        elif now >= begin_unix_s and egresses:
            await self._attempt(first, egresses[0])
        else:
            until = (
                f"; over a metered network from {datetime.fromtimestamp(begin_unix_s):%H:%M} on"
                if begin_unix_s > now
                else ", for no network is there"
            )
            self._wait(f"{len(wanted)} wait for Wi-Fi{until}")
            await asyncio.sleep(min(max(begin_unix_s - now, 0.0), _LOOK_S) or _LOOK_S)

    def must_begin_unix_s(self, wanted: list[EpisodeRecord]) -> float:
        """When the first byte must come over whatever there is, by what metered networks carried."""
        flows = [
            DeadlineFlow(
                (each.podcast, each.guid), _left(each), each.by_unix_s, exact=each.size_bytes > 0
            )
            for each in wanted
        ]
        rate_bps = (self._book.metered_bps or _UNKNOWN_BPS) * _RELIABLE
        return next_begin_s(flows, rate_bps, _SPARE_S)

    async def _attempt(self, episode: EpisodeRecord, egress: Egress) -> None:
        """Over one network, until it is here, breaks off, or an unmetered network makes it needless."""
        partial = _partial(episode)
        if partial is None:
            self._here(episode)
            self._book.save()
            return
        began, began_s = partial.have, time.monotonic()
        self._wait(
            f"{episode.podcast}: {episode.title!r} over {egress.interface}"
            + (", which is metered: it would be late else" if egress.metered else "")
        )

        def came(_have: int, size: int | None) -> None:
            episode.size_bytes = size or episode.size_bytes

        fetching = asyncio.get_running_loop().create_task(
            fetch(
                episode.url, partial, None if self._proxy else egress.interface, self._proxy, came
            )
        )
        try:
            while not fetching.done():
                await asyncio.wait((fetching,), timeout=_LOOK_S)
                if egress.metered and any(
                    not each.metered for each in await self._egresses(episode.url)
                ):
                    return
            fetching.result()
            self._here(episode)
        except WebError as error:
            self._wait(f"{episode.podcast}: {error}; it is tried again")
            await asyncio.sleep(_PAUSE_S)
        except TransferError as error:
            if partial.path.exists() and not str(error).startswith("the server"):
                raise
            episode.state, episode.why = EpisodeState.REFUSED, str(error)
            self.refused += 1
            self._say(f"{episode.podcast}: {episode.title!r}: {error}")
        finally:
            fetching.cancel()
            await asyncio.wait((fetching,))
            new = max(partial.have - began, 0)
            if egress.metered:
                episode.metered_bytes += new
                took_s = time.monotonic() - began_s
                if new > 500_000:
                    self._book.measured(8 * new / took_s)
            else:
                episode.unmetered_bytes += new
            partial.close()
            self._book.save()

    def _here(self, episode: EpisodeRecord) -> None:
        episode.state, episode.came_unix_s = EpisodeState.HERE, time.time()
        late_s = episode.came_unix_s - episode.by_unix_s
        late = f", {timedelta(seconds=round(late_s))} late" if late_s > 0 else ""
        self._say(f"{episode.podcast}: {episode.title!r} is here{late}: {episode.file}")

    def _wait(self, text: str) -> None:
        """Says what it does or waits for, once."""
        if text != self._waits:
            self._waits = text
            self._say(text)

    async def _egresses(self, url: str) -> list[Egress]:
        """The networks that lead to a URL's host, or to the proxy's; none while its name is unknown."""
        host = urlsplit(self._proxy or url).hostname or ""
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, 0, type=socket.SOCK_STREAM)
            found: dict[str, Egress] = {}
            for info in infos:
                for each in self._reader.egresses(ip_address(str(info[4][0]).partition("%")[0])):
                    found.setdefault(each.interface, each)
        except (OSError, ValueError, HostError):
            return []
        return [each for each in found.values() if self._only(each.interface)]


def _partial(episode: EpisodeRecord) -> Partial | None:
    """What has come of an episode, to be gone on with; None: all of it is here.

    Raises:
        TransferError: the disk cannot, or another program fetches it.
    """
    target = Path(episode.file)
    if target.exists():
        return None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TransferError(f"{target.parent}: {error.strerror}") from error
    return Partial(target, episode.url)


def _left(episode: EpisodeRecord) -> float:
    part = Path(episode.file + ".part")
    have = part.stat().st_size if part.exists() else 0
    size = episode.size_bytes or have + expected_bytes(have)
    return max(size - have, 1.0)


def _next(by: str) -> datetime:
    """The next such time of day."""
    hour, minute = map(int, by.split(":"))
    now = datetime.now()
    found = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return found if found > now else found + timedelta(days=1)


def _file_name(episode: feed.Episode) -> str:
    """A name that nothing of the publisher's can lead elsewhere, and that no other episode has."""
    last = unquote(urlsplit(episode.url).path).rpartition("/")[2]
    suffix = Path(last).suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,5}", Path(last).suffix) else ""
    title = re.sub(r"[^\w -]+", "", episode.title).strip()[:80] or "episode"
    number = hashlib.sha256(episode.guid.encode()).hexdigest()[:6]
    return f"{title} {number}{suffix}"
