"""Brings podcasts: a feed, a deadline and a file for each episode (ReadyCast; Cedos, V).

An episode is a transfer with a deadline in the daemon's table (`FollowedTransfer`). While its turn allows
a network that leads to its server, it comes over that network; a network carries one episode at a time,
the most urgent. An attempt in vain is followed by a pause that grows from 5 s to an hour. An episode in
its pause has no turn, so that it never stops others.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cedos.api.asking import FollowedTransfer
from cedos.api.transfers import TransferReport, sentence
from cedos.apps.files import web_getting
from cedos.apps.files.partial import Partial, disk_error
from cedos.apps.files.podcast_library import Episode, EpisodeState, Library, Subscription, read_feed
from cedos.apps.files.web_getting import LeadingNetworks, WebWay
from cedos.config.directories import directories
from cedos.errors import DiskError, TransferBusyError, TransferError, WebError
from cedos.session.io.links import Egress

_MOST_FOLLOWED: Final = 64  # episodes with a row in the table of transfers
_LOOK_S: Final = 1.0
_PAUSE_S: Final = 5.0
_LONGEST_PAUSE_S: Final = 3600.0
_SOON_S: Final = 300.0  # a longer pause is at most half of the time until the deadline
_ENOUGH: Final = 4  # attempts in vain, after which a late episode is left to the next run
_TITLE_BYTES: Final = 120  # eCryptfs takes names of 143 bytes


class _Tracked:
    """An episode that this run brings: its row in the table of transfers, and its attempts."""

    def __init__(self, episode: Episode, changed: Callable[[], None]) -> None:
        self.episode, self._changed = episode, changed
        self.failures = 0
        self.failed_over = ""
        self.leading: Sequence[Egress] = ()
        self.egress: Egress | None = None
        self.attempt: asyncio.Timeout | None = None
        self.task: asyncio.Task[None] | None = None
        self.following: FollowedTransfer | None = None
        self.wake = asyncio.Event()
        self._used: dict[str, int] = {}
        self._again_s = 0.0  # by a clock that also counts while the host sleeps
        episode.read_note()
        self._have = self._furthest = episode.here_bytes()

    @property
    def host(self) -> str:
        return urlsplit(self.episode.url).hostname or ""

    @property
    def pause_s(self) -> float:
        return max(self._again_s - time.clock_gettime(time.CLOCK_BOOTTIME), 0.0)

    @property
    def is_given_up(self) -> bool:
        late = time.time() >= self.episode.by_unix_s
        return late and self.failures >= _ENOUGH and self.egress is None

    def follow(self) -> FollowedTransfer:
        def metered() -> Mapping[str, bool]:
            return {each.interface: each.metered for each in self.leading}

        self.following = FollowedTransfer(
            directories().socket, self._report, metered, self._on_turn
        )
        return self.following

    def _on_turn(self) -> None:
        self.wake.set()
        self._changed()

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
            all_bytes=episode.by_network,
            why=episode.why[:300],
            again_unix_s=time.time() + self.pause_s if self.pause_s else None,
        )

    def on_failure(self) -> float:
        """Begin a pause; return its length in seconds."""
        self.failures += 1
        left_s = self.episode.by_unix_s - time.time()
        longest_s = min(max(left_s / 2.0, _SOON_S), _LONGEST_PAUSE_S)
        pause_s = min(_PAUSE_S * 2.0 ** min(self.failures - 1, 20), longest_s)
        self._again_s = time.clock_gettime(time.CLOCK_BOOTTIME) + pause_s
        return pause_s

    def on_networks(self, leading: Sequence[Egress]) -> None:
        """Take the networks that lead to the server; a new one ends the pause."""
        if {each.interface for each in leading} - {each.interface for each in self.leading}:
            self._again_s = 0.0
        self.leading = leading
        self.wake.set()

    def on_bytes(self, egress: Egress, have: int) -> None:
        """Count received bytes. Only more than there ever were ends a row of failures."""
        new = have - self._have if have >= self._have else have  # a changed file begins anew
        self._have = have
        for counts in (self._used, self.episode.by_network):
            counts[egress.interface] = counts.get(egress.interface, 0) + new
        self.episode.metered_bytes += new * egress.metered
        if have > self._furthest:
            self._furthest, self.failures = have, 0


class EpisodeFetching:
    """The transfers of wanted episodes by their deadlines.

    Args:
        folder: where files go to, a folder for each podcast.
        say: receives lines for the user.
        complain: receives a line for each episode that could not be had.
    """

    def __init__(
        self,
        library: Library,
        folder: Path,
        networks: LeadingNetworks,
        say: Callable[[str], None],
        complain: Callable[[str], None],
    ) -> None:
        self._library, self._folder, self._networks = library, folder, networks
        self._say, self._complain = say, complain
        self._tracked: dict[str, _Tracked] = {}
        self._changed = asyncio.Event()
        self._said: dict[str, float] = {}

    async def update(self, name: str, wanted: Subscription) -> int:
        """Read a feed; return how many of its episodes are newly wanted. Errors: as `read_feed`."""
        try:
            found = await read_feed(wanted.url, self._networks)
        except TransferError as error:
            self._library.feed_errors[name] = str(error)
            self._library.save()
            raise
        self._library.feed_errors.pop(name, None)
        known = {each.guid: each for each in self._library.episodes if each.podcast == name}
        for each in found:
            if each.guid in known and known[each.guid].state is EpisodeState.WANTED:
                known[each.guid].follow(each)
        new = [each for each in found[: wanted.keep] if each.guid not in known]
        for each in new:
            each.podcast, each.by_unix_s = name, wanted.next_unix_s()
            each.file = str(self._folder / name / _file_name(each))
        self._library.episodes.extend(new)
        self._library.save()
        self._changed.set()
        return len(new)

    async def run(self, *, stay: bool = False) -> None:
        """Bring episodes until none is wanted, or the rest has failed after its deadline; or for ever.

        Raises:
            DiskError: the disk is full, or cannot be written at all.
        """
        await asyncio.to_thread(self._library.forget_ended)
        try:
            while True:
                queue = [self._tracked_of(each) for each in self._library.wanted()]
                if not stay and all(each.is_given_up for each in queue):
                    break
                await self._follow(queue)
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_S):
                        await self._changed.wait()
            for each in queue:
                tried = f"tried {each.failures} times in vain"
                self._complain(
                    f"{each.episode.name}: {each.episode.why}; {tried}, left to the next run"
                )
        finally:
            for each in self._tracked.values():
                await self._end(each)
            self._library.save()

    def _tracked_of(self, episode: Episode) -> _Tracked:
        if episode.key not in self._tracked:
            self._tracked[episode.key] = _Tracked(episode, self._changed.set)
        return self._tracked[episode.key]

    async def _follow(self, queue: list[_Tracked]) -> None:
        """Have the first episodes in the table of transfers; those that failed often come last."""
        queue.sort(key=lambda each: each.failures // _ENOUGH)
        followed = queue[:_MOST_FOLLOWED]
        hosts = {each.host for each in followed}
        found = await asyncio.gather(*(self._networks.to(host) for host in hosts))
        leading = dict(zip(hosts, found, strict=True))
        for each in self._tracked.values():
            if each not in followed or (each.task is not None and each.task.done()):
                await self._end(each)
        for each in followed:
            each.on_networks(leading[each.host])
            if each.task is None:
                each.task = asyncio.create_task(self._bring(each))
            # The turn, or a more urgent episode, has taken the network away.
            attempt = each.attempt
            if attempt and not attempt.expired() and self._choose(each) is not each.egress:
                attempt.reschedule(0.0)
        ready = [each for each in followed if not each.pause_s]
        turn = ready[0].following.turn if ready and ready[0].following else None
        if turn is not None and not turn.networks and not any(each.egress for each in ready):
            what = f"{len(ready)} episode{'s' * (len(ready) != 1)}"
            text = sentence(turn, ready[0].episode.by_unix_s, datetime.now())
            self._say_once(f"{what} {turn.serial} {turn.spare}", f"{what}: {text}")

    async def _end(self, each: _Tracked) -> None:
        """Stop following an episode. TransferError: the disk cannot be written."""
        task, each.task = each.task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.result()

    def _choose(self, each: _Tracked) -> Egress | None:
        """Return the network for an episode now: of its turn, and without a more urgent episode."""
        turn = each.following.turn if each.following is not None else None
        if turn is None or each.pause_s:
            return None
        rank = (each.episode.by_unix_s, each.episode.key)
        busy = {
            other.egress.interface
            for other in self._tracked.values()
            if other.egress is not None and (other.episode.by_unix_s, other.episode.key) < rank
        }
        can = [one for one in each.leading if one.interface in set(turn.networks) - busy]
        best = min(
            can, key=lambda one: (one.interface == each.failed_over, one.metered), default=None
        )
        same = best and each.egress and best.interface == each.egress.interface
        return each.egress if same else best

    async def _bring(self, each: _Tracked) -> None:
        """Bring an episode over one network after the other, until it has ended or this is cancelled."""
        following = each.follow()
        follow = asyncio.create_task(following.run())
        paused = False
        try:
            while each.episode.state is EpisodeState.WANTED:
                # The table learns at once that a pause has begun or ended.
                if paused is not bool(each.pause_s):
                    paused = not paused
                    following.tell_soon()
                if (egress := self._choose(each)) is None:
                    await each.wake.wait()
                    each.wake.clear()
                else:
                    await self._attempt(each, egress)
        finally:
            if each.episode.state is EpisodeState.WANTED:
                following.leave()
            else:
                await following.end()
            follow.cancel()
            await asyncio.wait({follow})
            self._changed.set()

    async def _attempt(self, each: _Tracked, egress: Egress) -> None:
        episode = each.episode
        free = each.following is not None and each.following.turn and each.following.turn.free_up
        late = f", which is metered: {'Wi-Fi alone' if free else 'waiting longer'} may be too late"
        said = f"{each.episode.name} over {egress.interface}{late if egress.metered else ''}"
        self._say_once(said, said)
        each.egress = egress
        try:
            async with asyncio.timeout(None) as each.attempt:
                await self._fetch(each, egress)
        except TimeoutError:  # `_follow` took the network away
            return
        except TransferError as error:
            episode.why, each.failed_over, each.egress = str(error), egress.interface, None
            if isinstance(error, DiskError) and error.full:
                raise
            if isinstance(error, WebError | DiskError | TransferBusyError):
                pause_s = each.on_failure()
                pause = f"{pause_s:.0f} s" if pause_s < 100.0 else f"{pause_s / 60.0:.0f} min"
                if not each.is_given_up:
                    self._say(f"{each.episode.name}: {error}; it is tried again in {pause}")
            else:
                episode.state = EpisodeState.REFUSED
                self._complain(f"{episode.name}: {error}")
        else:
            episode.state, episode.came_unix_s, episode.why = EpisodeState.HERE, time.time(), ""
            late_s = round(episode.came_unix_s - episode.by_unix_s)
            late = f", {timedelta(seconds=late_s)} late" if late_s > 0 else ""
            self._say(f"{each.episode.name} is here{late}: {episode.file}")
        finally:
            each.egress = each.attempt = None
            self._library.save()

    async def _fetch(self, each: _Tracked, egress: Egress) -> None:
        episode = each.episode
        if (partial := _part(episode)) is None:
            return

        def on_bytes(have: int, size: int | None) -> None:
            each.on_bytes(egress, have)
            episode.size_bytes = size or episode.size_bytes
            partial.note_networks(episode.by_network, episode.metered_bytes)
            if have == size:  # the note goes with the part
                self._library.save()

        try:
            way = WebWay(egress.interface, episode.least)
            await web_getting.fetch(episode.url, partial, way, on_bytes)
        finally:
            partial.close()

    def _say_once(self, state: str, text: str) -> None:
        """Say what is so now, unless that was so within the last minute."""
        now = time.monotonic()
        self._said = {known: at_s for known, at_s in self._said.items() if now - at_s < 60.0}
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
    except OSError as error:
        raise disk_error(target, error) from error
    return Partial(target, episode.source)


def _file_name(episode: Episode) -> str:
    """Return a name that leads to no other folder, is unique, and fits with the suffix of its part."""
    title = re.sub(r"[^\w -]+", "", episode.title).strip()[:80] or "episode"
    title = title.encode()[:_TITLE_BYTES].decode(errors="ignore")
    number = hashlib.sha256(episode.guid.encode()).hexdigest()[:6]
    return f"{title} {number}{episode.suffix}"
