"""Brings episodes: over unmetered networks at once, over metered ones as late as the deadline allows."""

import asyncio
import hashlib
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from cedos.api.turn_text import sentence
from cedos.errors import HostError, TransferError, WebError
from cedos.files.podcasts import feed
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.episode_transfer import EpisodeTransfer, forget
from cedos.files.podcasts.subscriptions import Subscription
from cedos.files.web_getting import read
from cedos.session.io.advice import Chooser
from cedos.session.io.links import Egress, EgressReader

_UNKNOWN_BPS: Final = 1e6
_HOLD: Final = 1.5
"""A network that carries an episode is left for one that is so much quicker."""

_LOOK_S: Final = 1.0
_PAUSE_S: Final = 5.0
_NAMES_S: Final = 60.0
_KEEP_S: Final = 5.0
_TELL_S: Final = 5.0
_LISTED_S: Final = 8 * 86_400.0
"""After that no daemon has a transfer in its table any more."""

_MOST_FOLLOWED: Final = 64
"""Each waits for its turn in a thread of its own; the others are wanted later."""


class EpisodeFetching:
    """Whatever is wanted, when its turn comes in the table of transfers with deadlines (Cedos, III-D).

    An episode comes over one network at a time, two episodes over two where both are needed.
    `say` gets a line for a person; `proxy`: a gateway's, for servers that are asked through it;
    `chooser`: who knows this host's networks.
    """

    def __init__(
        self,
        book: EpisodeBook,
        folder: Path,
        say: Callable[[str], None],
        proxy: str | None = None,
        only: Callable[[str], bool] = lambda _interface: True,
        chooser: Chooser | None = None,
    ) -> None:
        self._chooser = chooser
        self._book, self._folder, self._say = book, folder, say
        self._proxy, self._only = proxy, only
        self._reader = EgressReader()
        self._transfers: list[EpisodeTransfer] = []
        self._leading: dict[str, list[Egress]] = {}
        self._addresses: dict[str, tuple[tuple[str, ...], float]] = {}
        self._rates: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._disk: TransferError | None = None
        self._kept_s = time.monotonic()
        self._waits = ""
        # Those that ended while no daemon was there: one that begins anew would list them as waiting.
        self._untold = [
            each
            for each in book.episodes
            if each.state is not EpisodeState.WANTED and time.time() < each.by_unix_s + _LISTED_S
        ]
        self._told_s = -_TELL_S
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
        self._changed.set()
        return new

    async def _read(self, url: str) -> bytes:
        egresses = await self._egresses(_host(url))
        first = min(egresses, key=lambda each: each.metered, default=None)
        interface = None if first is None or self._proxy else first.interface
        return await read(url, feed.MOST_BYTES, interface, self._proxy)

    async def run(self, *, stay: bool = False) -> None:
        """Until nothing is wanted any more; `stay`: not even then.

        Raises:
            TransferError: the disk cannot.
        """
        try:
            while (wanted := self._book.wanted()) or stay:
                await self._look(wanted)
                await self._follow(wanted)
                self._changed.clear()
                await self._serve()
                self._keep()
                await self._tell()
                if self._disk is not None:
                    raise self._disk
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
        finally:
            for each in self._transfers:
                if not await each.end(wanted=each.record.state is EpisodeState.WANTED):
                    self._untold.append(each.record)
            self._transfers.clear()
            self._book.save()
            self._told_s = -_TELL_S
            await self._tell()

    def _keep(self) -> None:
        """A crash shall not lose much of what was counted."""
        if time.monotonic() - self._kept_s > _KEEP_S and any(
            each.egress for each in self._transfers
        ):
            self._kept_s = time.monotonic()
            self._book.save()

    async def _tell(self) -> None:
        """Tells the daemon what it has not heard yet, if there is one now."""
        now = time.monotonic()
        if now - self._told_s < _TELL_S:
            return
        self._told_s = now
        while self._untold:
            if not await asyncio.to_thread(forget, self._untold[-1]):
                return
            self._untold.pop()

    async def _look(self, wanted: list[EpisodeRecord]) -> None:
        """Which networks lead to the servers now."""
        hosts = {_host(each.url) for each in wanted[:_MOST_FOLLOWED]}
        found = await asyncio.gather(*(self._egresses(host) for host in hosts))
        self._leading = dict(zip(hosts, found, strict=True))

    async def _follow(self, wanted: list[EpisodeRecord]) -> None:
        """The most urgent are in the table of transfers with deadlines, and no others."""
        for gone in [each for each in self._transfers if each.record not in wanted]:
            self._transfers.remove(gone)
            if not await gone.end():
                self._untold.append(gone.record)
        known = {id(each.record) for each in self._transfers}
        for record in wanted[:_MOST_FOLLOWED]:
            if id(record) not in known:
                host = _host(record.url)
                leading = partial(lambda name: self._leading.get(name, []), host)
                self._transfers.append(EpisodeTransfer(record, host, leading, self._changed.set))
        self._transfers.sort(key=lambda each: each.record.by_unix_s)

    async def _serve(self) -> None:
        """Each network that turns allow brings one episode, the most urgent first."""
        taken: set[str] = set()
        for each in self._transfers:
            egress = self._best(each, taken)
            if egress is not None:
                taken.add(egress.interface)
            if each.egress is not None and (
                egress is None or each.egress.interface != egress.interface
            ):
                await each.stop()
                self._book.save()
            if egress is not None and each.egress is None and not each.waits:
                self._begin(each, egress)
        self._say_waiting()

    def _best(self, each: EpisodeTransfer, taken: set[str]) -> Egress | None:
        """The network for an episode, of those that its turn allows and no earlier one has."""
        if each.turn is None:
            return None
        leading = self._leading.get(_host(each.record.url), [])
        can = [one for one in leading if one.interface in each.turn.networks]
        if self._proxy:  # the proxy chooses; only whether it is time is decided here
            return min(can, key=lambda one: one.metered, default=None) if not taken else None
        can = [one for one in can if one.interface not in taken]

        def rate(one: Egress) -> tuple[float, bool]:
            here = each.egress is not None and each.egress.interface == one.interface
            return (self._rates.get(one.interface, _UNKNOWN_BPS) * (_HOLD if here else 1.0),
                    not one.metered)  # fmt: skip

        return max(can, key=rate, default=None)

    def _begin(self, each: EpisodeTransfer, egress: Egress) -> None:
        record = each.record
        why = ""
        if egress.metered:
            free = each.turn is not None and each.turn.free_up
            why = (
                f", which is metered: {'Wi-Fi alone' if free else 'waiting longer'} may be too late"
            )
        over = "the proxy" if self._proxy else egress.interface
        self._told(f"{record.podcast}: {record.title!r} over {over}{why}")

        def done(failed: Exception | None, rate_bps: float) -> None:
            self._rates[egress.interface] = rate_bps
            if failed is None:
                self._here(record)
            elif isinstance(failed, WebError):
                self._told(f"{record.podcast}: {failed}; it is tried again")
            elif isinstance(failed, TransferError) and str(failed).startswith(
                str(Path(record.file).parent)
            ):
                self._disk = failed
            else:
                record.state, record.why = EpisodeState.REFUSED, str(failed)
                self.refused += 1
                self._say(f"{record.podcast}: {record.title!r}: {failed}")
            self._book.save()

        each.begin(egress, self._proxy, done)

    def _say_waiting(self) -> None:
        if not self._transfers or any(each.egress or each.waits for each in self._transfers):
            return
        first = self._transfers[0]
        turn = first.turn
        if turn is None or turn.networks:
            return
        count = len(self._book.wanted())
        what = f"{count} episode{'s' * (count != 1)}"
        text = sentence(turn, first.record.by_unix_s, datetime.now())
        # Its instants move a little each second; that is no news.
        self._told(
            f"{what}: {text}", f"{count} {turn.serial} {turn.spare} {turn.begin_unix_s is None}"
        )

    def _here(self, episode: EpisodeRecord) -> None:
        episode.state, episode.came_unix_s = EpisodeState.HERE, time.time()
        late_s = episode.came_unix_s - episode.by_unix_s
        late = f", {timedelta(seconds=round(late_s))} late" if late_s > 0 else ""
        self._say(f"{episode.podcast}: {episode.title!r} is here{late}: {episode.file}")

    def _told(self, text: str, same: str = "") -> None:
        """Says what it does or waits for, once."""
        if (same or text) != self._waits:
            self._waits = same or text
            self._say(text)

    async def _egresses(self, host: str) -> list[Egress]:
        """The networks that lead to a host; none while its name is unknown."""
        now = time.monotonic()
        addresses, until_s = self._addresses.get(host, ((), 0.0))
        try:
            if now >= until_s:
                loop = asyncio.get_running_loop()
                infos = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
                addresses = tuple({str(info[4][0]).partition("%")[0] for info in infos})
                self._addresses[host] = (addresses, now + _NAMES_S)
        except (OSError, ValueError):  # what was known last will do
            self._addresses[host] = (addresses, now + _PAUSE_S)
        if self._chooser is not None:
            await self._chooser.learn()
        found: dict[str, Egress] = {}
        try:
            for address in addresses:
                for each in self._reader.egresses(ip_address(address)):
                    found.setdefault(each.interface, self._as_known(each))
        except (ValueError, HostError):
            return []
        return [each for each in found.values() if self._only(each.interface)]

    def _as_known(self, egress: Egress) -> Egress:
        known = self._chooser.network(egress.interface) if self._chooser is not None else None
        return egress if known is None else replace(egress, kind=known.kind, metered=known.metered)


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


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
