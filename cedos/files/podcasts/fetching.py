"""Brings episodes: over unmetered networks at once, over metered ones as late as the deadline allows."""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from cedos.api.transfers import sentence
from cedos.errors import TransferError, WebError
from cedos.files.podcasts import feed
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.episode_transfer import EpisodeTransfer, forget, here_bytes
from cedos.files.podcasts.feed_reading import read_feed
from cedos.files.podcasts.leading_networks import LeadingNetworks
from cedos.files.podcasts.retries import Retries
from cedos.files.podcasts.state_news import StateNews
from cedos.files.podcasts.subscriptions import Subscription
from cedos.session.io.links import Egress

_UNKNOWN_BPS: Final = 1e6
_HOLD: Final = 1.5
"""A network that carries an episode is left for one that is so much quicker."""

_LOOK_S: Final = 1.0
_KEEP_S: Final = 5.0
_TELL_S: Final = 5.0
_LISTED_S: Final = 8 * 86_400.0
"""After that no daemon has a transfer in its table any more."""

_MOST_FOLLOWED: Final = 64
"""Each waits for its turn in a thread of its own; the others are wanted later."""


class EpisodeFetching:
    """Whatever is wanted, when its turn comes in the table of transfers with deadlines (Cedos, III-D).

    An episode comes over one network at a time, two episodes over two where both are needed. One that
    did not come is tried again after a pause, in which it keeps nothing from the others, until its
    deadline.
    `say` gets a line for a person, `complain` what could not be had; `proxy`: a gateway's, for servers
    that are asked through it; `networks`: those that may be used.
    """

    def __init__(
        self,
        book: EpisodeBook,
        folder: Path,
        say: Callable[[str], None],
        proxy: str | None = None,
        networks: LeadingNetworks | None = None,
        complain: Callable[[str], None] | None = None,
    ) -> None:
        self._networks = networks or LeadingNetworks()
        self._book, self._folder, self._say = book, folder, say
        self._complain = complain or say
        self._proxy = proxy
        self._transfers: list[EpisodeTransfer] = []
        self._retries: dict[tuple[str, str], Retries] = {}
        self._leading: dict[str, list[Egress]] = {}
        self._rates: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._disk: TransferError | None = None
        self._stays = False
        self._kept_s = time.monotonic()
        self._news = StateNews(say)
        # Those that ended while no daemon was there: one that begins anew would list them as waiting.
        self._untold = [
            each
            for each in book.episodes
            if each.state is not EpisodeState.WANTED and time.time() < each.by_unix_s + _LISTED_S
        ]
        self._told_s = -_TELL_S
        self.missing = 0

    def close(self) -> None:
        self._networks.close()

    async def update(self, name: str, wanted: Subscription) -> int:
        """Reads a feed; how many of its episodes are wanted from now on.

        Raises:
            WebError: it did not come this time.
            TransferError: it is no feed, or not there.
        """
        try:
            found = await read_feed(wanted.url, self._networks, self._proxy)
        except TransferError as error:
            self._book.feed_errors[name] = str(error)
            self._book.save()
            raise
        self._book.feed_errors.pop(name, None)
        by_unix_s = wanted.next_unix_s()
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

    async def run(self, *, stay: bool = False) -> None:
        """Until nothing is wanted any more, or was in vain until its deadline; `stay`: not even then.

        `missing` is then how many did not come.

        Raises:
            TransferError: the disk cannot.
        """
        self._stays = stay
        try:
            while not self._is_over():
                wanted = self._book.wanted()
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
            for record in self._book.wanted():
                self.missing += 1
                tried = f"tried {self._retries_of(record).failures} times in vain"
                self._complain(
                    f"{record.podcast}: {record.title}: {record.why}; {tried}, left to the next run"
                )
        finally:
            for each in self._transfers:
                if not await each.end(wanted=each.record.state is EpisodeState.WANTED):
                    self._untold.append(each.record)
            self._transfers.clear()
            self._book.save()
            self._told_s = -_TELL_S
            await self._tell()

    def _is_over(self) -> bool:
        """Whether all that is still wanted was tried often enough in vain."""
        if self._stays or self._disk or any(each.egress for each in self._transfers):
            return False
        return all(self._retries_of(each).enough for each in self._book.wanted())

    def _retries_of(self, record: EpisodeRecord) -> Retries:
        key = (record.podcast, record.guid)
        if key not in self._retries:
            self._retries[key] = Retries(here_bytes(record), record.by_unix_s)
        return self._retries[key]

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
        hosts = {_host(each.url) for each in self._followed(wanted)}
        found = await asyncio.gather(*(self._networks.to(host) for host in hosts))
        before, self._leading = self._leading, dict(zip(hosts, found, strict=True))
        for each in self._transfers:
            host = _host(each.record.url)
            known = {one.interface for one in before.get(host, [])}
            if host in before and any(
                one.interface not in known for one in self._leading.get(host, [])
            ):
                each.retries.anew()

    def _followed(self, wanted: list[EpisodeRecord]) -> list[EpisodeRecord]:
        """As many as can be; those that failed often come last, and all of them in turn."""
        return sorted(wanted, key=lambda each: self._retries_of(each).rounds)[:_MOST_FOLLOWED]

    async def _follow(self, wanted: list[EpisodeRecord]) -> None:
        """The most urgent are in the table of transfers with deadlines, and no others."""
        followed = self._followed(wanted)
        for gone in [each for each in self._transfers if each.record not in followed]:
            self._transfers.remove(gone)
            if not await gone.end(wanted=gone.record in wanted):
                self._untold.append(gone.record)
        known = {id(each.record) for each in self._transfers}
        for record in followed:
            if id(record) not in known:
                host = _host(record.url)
                leading = partial(lambda name: self._leading.get(name, []), host)
                self._transfers.append(
                    EpisodeTransfer(
                        *(record, host, self._retries_of(record), leading),
                        changed=self._changed.set,
                        keep=self._book.save,
                    )
                )
        self._transfers.sort(key=lambda each: each.record.by_unix_s)
        for each in self._transfers:
            each.follow()

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
            if egress is not None and each.egress is None:
                self._begin(each, egress)
        self._say_waiting()
        self._news.look()

    def _best(self, each: EpisodeTransfer, taken: set[str]) -> Egress | None:
        """The network for an episode, of those that its turn allows and no earlier one has."""
        if each.turn is None:
            return None
        leading = self._leading.get(_host(each.record.url), [])
        can = [one for one in leading if one.interface in each.turn.networks]
        if self._proxy:  # the proxy chooses; only whether it is time is decided here
            return min(can, key=lambda one: one.metered, default=None) if not taken else None
        can = [one for one in can if one.interface not in taken]

        def rate(one: Egress) -> tuple[bool, float, bool]:
            here = each.egress is not None and each.egress.interface == one.interface
            return (one.interface != each.failed_over,
                    self._rates.get(one.interface, _UNKNOWN_BPS) * (_HOLD if here else 1.0),
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
        said = f"{record.podcast}: {record.title} over {over}{why}"
        self._news.now(said, said)

        def done(failed: TransferError | None, rate_bps: float) -> None:
            self._news.over()
            record.why = str(failed or "")
            if rate_bps > 0.0:  # else it says something of the server, and nothing of the network
                self._rates[egress.interface] = rate_bps
            if failed is None:
                self._here(record)
            elif isinstance(failed, WebError):
                pause_s = each.retries.failed()
                if not self._is_over():
                    pause = f"{pause_s:.0f} s" if pause_s < 100.0 else f"{pause_s / 60.0:.0f} min"
                    again = f"it is tried again in {pause}"
                    self._say(f"{record.podcast}: {record.title}: {failed}; {again}")
            elif str(failed).startswith(str(Path(record.file).parent)):
                self._disk = failed
            else:
                record.state = EpisodeState.REFUSED
                self.missing += 1
                self._complain(f"{record.podcast}: {record.title}: {failed}")
            self._book.save()

        each.begin(egress, self._proxy, done)

    def _say_waiting(self) -> None:
        paused = [each for each in self._transfers if each.retries.again_unix_s is not None]
        waiting = [each for each in self._transfers if each not in paused]
        if not waiting or any(each.egress for each in waiting):
            return
        first = waiting[0]
        turn = first.turn
        if turn is None or turn.networks:
            return
        count = len(self._book.wanted()) - len(paused)
        what = f"{count} episode{'s' * (count != 1)}"
        text = sentence(turn, first.record.by_unix_s, datetime.now())
        # Its instants move a little each second; that is no news.
        self._news.now(
            f"{count} {turn.serial} {turn.spare} {turn.begin_unix_s is None}", f"{what}: {text}"
        )

    def _here(self, episode: EpisodeRecord) -> None:
        episode.state, episode.came_unix_s = EpisodeState.HERE, time.time()
        late_s = episode.came_unix_s - episode.by_unix_s
        late = f", {timedelta(seconds=round(late_s))} late" if late_s > 0 else ""
        self._say(f"{episode.podcast}: {episode.title} is here{late}: {episode.file}")


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _file_name(episode: feed.Episode) -> str:
    """A name that nothing of the publisher's can lead elsewhere, and that no other episode has."""
    last = unquote(urlsplit(episode.url).path).rpartition("/")[2]
    suffix = Path(last).suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,5}", Path(last).suffix) else ""
    title = re.sub(r"[^\w -]+", "", episode.title).strip()[:80] or "episode"
    number = hashlib.sha256(episode.guid.encode()).hexdigest()[:6]
    return f"{title} {number}{suffix}"
