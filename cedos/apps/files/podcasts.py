"""Brings podcasts: a feed, a deadline and a file for each episode (ReadyCast; Cedos, V).

An episode is a transfer with a deadline in the daemon's table (`FollowedTransfer`), which gives networks
to the most urgent first. An attempt in vain is followed by a pause that grows from 5 s to an hour. An
episode in its pause has no turn, so that it never stops others.
"""

import asyncio
import os
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cedos.api.asking import FollowedTransfer
from cedos.api.transfers import TransferReport, TurnMessage, sentence
from cedos.apps.files import web_getting
from cedos.apps.files.partial import OpenFolder, Partial, disk_error
from cedos.apps.files.podcast_library import Episode, EpisodeState, Library
from cedos.apps.files.web_getting import LeadingNetworks
from cedos.config.directories import directories
from cedos.errors import DiskError, TransferBusyError, TransferError, WebError
from cedos.session.io.links import Egress
from cedos.web import KEEP_FREE_BYTES, LEAST_BYTES, MOST_FILE_BYTES, WebWay

_MOST_AT_ONCE: Final = 64  # episodes with a row in the table of transfers
_MOST_OF_FEED: Final = 16  # of these: its servers may be slow, or never answer
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 3600.0
_SOON_S: Final = 300.0  # a longer pause is at most half of the time until the deadline
_ENOUGH: Final = 4  # attempts in vain, after which a late episode is left to the next run
_SAID_S: Final = 60.0


def _clock_s() -> float:
    """Return a clock that also counts while the host sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class WantedEpisode:
    """An episode that this run brings: its row in the table of transfers, and its attempts."""

    def __init__(self, episode: Episode) -> None:
        self.episode = episode
        self.failures = 0
        self.egress: Egress | None = None  # of the attempt that runs
        self._attempt: asyncio.Timeout | None = None
        self._failed_over = ""
        self._leading: Sequence[Egress] = ()
        self._following: FollowedTransfer | None = None
        self._changed = asyncio.Event()
        self._anew = False  # this attempt dropped what had come before
        self._used: dict[str, int] = {}
        self._again_s = 0.0
        self._held = False  # its feed has brought enough for the day
        self._have = self._furthest = episode.here_bytes()

    @property
    def host(self) -> str:
        return urlsplit(self.episode.url).hostname or ""

    @property
    def server(self) -> str:
        """Return the host with the port, as the URL has them."""
        return "//".join(urlsplit(self.episode.url)[:2])

    @property
    def pause_s(self) -> float:
        return max(self._again_s - _clock_s(), 0.0)

    @property
    def turn(self) -> TurnMessage | None:
        """The turn of the table; None: in a pause, or not in the table."""
        return None if self._following is None or self.pause_s else self._following.turn

    @property
    def is_given_up(self) -> bool:
        in_vain = self._held or self.failures >= _ENOUGH
        return in_vain and time.time() >= self.episode.by_unix_s

    async def follow(
        self, attempt: Callable[["WantedEpisode", Egress], Awaitable[None]], *, stay: bool
    ) -> None:
        """Have it in the table, with attempts over the networks of its turn, until it has ended."""
        self._following = following = FollowedTransfer(
            directories().socket,
            self._report,
            lambda: {each.interface: each.metered for each in self._leading},
            self.check,
        )
        telling = asyncio.create_task(following.run())
        paused = False
        try:
            while self.episode.state is EpisodeState.WANTED and (stay or not self.is_given_up):
                # The table learns at once that a pause has begun or ended.
                if paused is not bool(self.pause_s):
                    paused = not paused
                    following.tell_soon()
                if (egress := self._choose()) is None:
                    await self._changed.wait()
                    self._changed.clear()
                    continue
                self.egress, self._held = egress, False
                try:
                    async with asyncio.timeout(None) as self._attempt:
                        await attempt(self, egress)
                except TimeoutError:
                    pass  # `check` took the network away
                finally:
                    self.egress = self._attempt = None
        finally:
            self._following = None
            if self.episode.state is EpisodeState.WANTED:
                following.leave()
            else:
                await following.end()
            telling.cancel()
            await asyncio.wait({telling})

    def on_networks(self, leading: Sequence[Egress]) -> None:
        """Take the networks that lead to the server; a new one ends the pause."""
        if {each.interface for each in leading} - {each.interface for each in self._leading}:
            self._again_s = 0.0
        self._leading = leading
        self.check()

    def check(self) -> None:
        """End the attempt if its network is not that of the turn any more."""
        self._changed.set()
        attempt = self._attempt
        if attempt is not None and not attempt.expired() and self._choose() is not self.egress:
            attempt.reschedule(0.0)

    def _choose(self) -> Egress | None:
        """Return the network of the turn to use now; that of the attempt, if it is still the best."""
        allowed = () if self.turn is None else self.turn.networks
        can = [each for each in self._leading if each.interface in allowed]
        best = min(
            can, key=lambda each: (each.interface == self._failed_over, each.metered), default=None
        )
        same = best and self.egress and best.interface == self.egress.interface
        return self.egress if same else best

    def _report(self) -> TransferReport:
        episode = self.episode
        return TransferReport(
            key=episode.key,
            name=episode.name[:300],
            server=self.host[:300],
            size_bytes=episode.size_bytes or None,
            done_bytes=self._have,
            deadline_unix_s=episode.by_unix_s,
            used_bytes=self._used,
            why=episode.why[:300],
            again_unix_s=time.time() + self.pause_s if self.pause_s else None,
        )

    def hold(self, pause_s: float) -> None:
        """Begin a pause that is no network's fault: its feed has brought enough for the day."""
        self._failed_over, self._held = "", True
        self._again_s = _clock_s() + pause_s

    def on_failure(self, over: str = "") -> float:
        """Begin a pause after a failure over an interface; return its length in seconds."""
        self.failures += 1
        self._failed_over, self._anew = over, False
        left_s = self.episode.by_unix_s - time.time()
        longest_s = min(max(left_s / 2.0, _SOON_S), _LONGEST_PAUSE_S)
        pause_s = min(_PAUSE_S * 2.0 ** min(self.failures - 1, 20), longest_s)
        self._again_s = _clock_s() + pause_s
        return pause_s

    def on_bytes(self, egress: Egress, have: int) -> None:
        """Count received bytes.

        Many more than there ever were end a row of failures, if they go on.
        """
        self._anew = self._anew or have < self._have  # a changed file, or one that cannot go on
        new = have - self._have if have >= self._have else have
        self._have = have
        self._used[egress.interface] = self._used.get(egress.interface, 0) + new
        if have >= self._furthest + LEAST_BYTES and not self._anew:
            self._furthest, self.failures = have, 0


class EpisodeFetching:
    """The transfers of a library's wanted episodes by their deadlines."""

    def __init__(
        self,
        library: Library,
        networks: LeadingNetworks,
        say: Callable[[str], None],  # receives lines for the user
        complain: Callable[[str], None],  # receives a line for each episode that could not be had
    ) -> None:
        self._library, self._networks = library, networks
        self._say, self._complain = say, complain
        self._ended = asyncio.Event()
        self._said: dict[str, float] = {}

    async def run(self, *, stay: bool = False) -> None:
        """Bring episodes until none is wanted, or the rest has failed after its deadline; or for ever.

        DiskError: the disk is full, or cannot be written at all.
        """
        await asyncio.to_thread(self._library.forget_ended)
        tasks: dict[str, asyncio.Task[None]] = {}
        pending: dict[str, WantedEpisode] = {}
        try:
            while True:
                pending = {key: each for key, each in pending.items() if not tasks[key].done()}
                # Take new episodes, the most urgent first, as long as the table has rows for them.
                of_feed = Counter(each.episode.podcast for each in pending.values())
                new: list[WantedEpisode] = []
                for each in self._library.wanted_episodes():
                    if len(pending) + len(new) >= _MOST_AT_ONCE:
                        break
                    if each.key not in tasks and of_feed[each.podcast] < _MOST_OF_FEED:
                        of_feed[each.podcast] += 1
                        new.append(WantedEpisode(each))
                if not stay and not pending and not new:
                    return
                await self._look([*pending.values(), *new])
                for one in new:
                    pending[one.episode.key] = one
                    bringing = self._bring(one, stay=stay)
                    tasks[one.episode.key] = asyncio.create_task(bringing)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._ended.wait()
                self._ended.clear()
                for task in tasks.values():
                    if task.done():
                        task.result()  # the disk is full
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)
            self._library.save()

    async def _bring(self, each: WantedEpisode, *, stay: bool) -> None:
        episode = each.episode
        try:
            await each.follow(self._attempt, stay=stay)
        finally:
            self._ended.set()
        if episode.state is EpisodeState.WANTED:
            tried = f"tried {each.failures} times in vain, " if each.failures >= _ENOUGH else ""
            self._complain(f"{episode.name}: {episode.why}; {tried}left to the next run")

    async def _look(self, pending: list[WantedEpisode]) -> None:
        """Tell all episodes the networks to their servers; say what they all wait for."""
        by_server = {each.server: each.episode.url for each in pending}
        found = await asyncio.gather(*map(self._leading, by_server.values()))
        leading = dict(zip(by_server, found, strict=True))
        for each in pending:
            networks, why = leading[each.server]
            if why:
                each.episode.why = why
                self._say_once(f"{each.episode.key} {why}", f"{each.episode.name} waits: {why}")
            each.on_networks(networks)
        ready = [each for each in pending if each.turn is not None]
        turn = ready[0].turn if ready else None
        if turn is not None and not turn.networks and not any(each.egress for each in ready):
            what = f"{len(ready)} episode{'s' * (len(ready) != 1)}"
            text = sentence(turn, ready[0].episode.by_unix_s, datetime.now())
            self._say_once(f"{what} {turn.serial} {turn.spare}", f"{what}: {text}")

    async def _leading(self, url: str) -> tuple[list[Egress], str]:
        """Return the networks that lead to a server, and why rules leave none."""
        try:
            return await self._networks.to(url), ""
        except WebError as error:
            return [], str(error)

    async def _attempt(self, each: WantedEpisode, egress: Egress) -> None:
        episode, said = each.episode, f"{each.episode.name} over {egress.interface}"
        if egress.metered:
            free = each.turn is not None and each.turn.free_up
            why = "Wi-Fi alone" if free else "waiting longer"
            said += f", which is metered: {why} may be too late"
        self._say_once(said, said)
        try:
            await self._fetch(each, egress)
        except TransferError as error:
            episode.why = str(error)
            if isinstance(error, DiskError) and error.full:
                raise
            if isinstance(error, WebError | DiskError | TransferBusyError):
                if pause_s := self._library.held_s(episode.podcast):
                    each.hold(pause_s)
                else:
                    pause_s = each.on_failure(egress.interface)
                pause = f"{pause_s:.0f} s" if pause_s < 100.0 else f"{pause_s / 60.0:.0f} min"
                if not each.is_given_up:
                    self._say(f"{episode.name}: {error}; it is tried again in {pause}")
            else:
                episode.state = EpisodeState.REFUSED
                self._complain(f"{episode.name}: {error}")
        else:
            episode.state, episode.came_unix_s, episode.why = EpisodeState.HERE, time.time(), ""
            late_s = round(episode.came_unix_s - episode.by_unix_s)
            late = f", {timedelta(seconds=late_s)} late" if late_s > 0 else ""
            self._say(f"{episode.name} is here{late}: {episode.file}")
        finally:
            self._library.save()

    async def _fetch(self, each: WantedEpisode, egress: Egress) -> None:
        """Fetch an episode as far as its network goes. TransferError: not all of it came."""
        episode = each.episode
        self._library.check_day(episode.podcast)
        if (partial := _part(episode)) is None:
            return
        folder = Path(episode.file).parent

        way = WebWay(egress.interface, episode.least, self._networks.forbids)
        counted = 0

        def count() -> None:  # also of what frames bodies, and leads elsewhere
            nonlocal counted
            self._library.count(episode.podcast, way.received_bytes - counted)
            counted = way.received_bytes

        def on_bytes(have: int, size: int | None) -> None:
            each.on_bytes(egress, have)
            count()
            episode.size_bytes = size or episode.size_bytes
            if max(have, size or 0) > MOST_FILE_BYTES:
                raise TransferError(f"it is larger than {MOST_FILE_BYTES // 10**9} GB")
            if shutil.disk_usage(folder).free < KEEP_FREE_BYTES:
                raise DiskError(f"{folder}: less than 1 GB is free on the disk", full=True)
            if have == size:  # the note goes with the part
                self._library.save()
            else:
                self._library.check_day(episode.podcast)

        try:
            await web_getting.fetch(episode.url, partial, way, on_bytes)
        finally:
            count()
            partial.close()

    def _say_once(self, state: str, text: str) -> None:
        """Say what is so now, unless that was so within the last minute."""
        now = time.monotonic()
        self._said = {known: at_s for known, at_s in self._said.items() if now - at_s < _SAID_S}
        if state not in self._said:
            self._say(text)
        self._said[state] = now


def _part(episode: Episode) -> Partial | None:
    """Return what is here of an episode; None: all of it. TransferError: the disk cannot be written."""
    target = Path(episode.file)
    try:
        if target.exists():
            return None
        target.parent.mkdir(parents=True, exist_ok=True)
        podcasts = OpenFolder.of(target.parent.parent)
    except OSError as error:
        raise disk_error(target, error) from error
    try:
        partial = Partial(target, episode.source, podcasts)
        partial.hash_all()
        return partial
    finally:
        os.close(podcasts.number)
