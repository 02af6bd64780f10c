"""One episode that is wanted: its row in the table of transfers with deadlines, and its coming."""

import asyncio
import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from cedos.api import asking
from cedos.api.asking import FollowedTransfer
from cedos.api.transfers import TransferReport, TurnMessage
from cedos.config.directories import directories
from cedos.errors import TransferError
from cedos.files.part_note import NotedBytes, PartNote
from cedos.files.partial import Partial
from cedos.files.podcasts.episode_book import EpisodeRecord
from cedos.files.podcasts.retries import Retries
from cedos.files.web_getting import fetch
from cedos.session.io.links import Egress


class EpisodeTransfer:
    """Told of to the daemon (without one: to a table of this process's own) while it is wanted.

    In its pause it stays in that table, but has no turn there, which is the others'.

    Args:
        retries: when it may be tried again; told of each attempt.
        egresses: the networks that lead to its server now.
        changed: its turn is another one, or an attempt has ended.
        keep: writes the book: an episode is about to be whole, and its part's note goes then.

    Attributes:
        egress: over which an attempt is under way.
        failed_over: the interface over which the last attempt was in vain.
    """

    def __init__(
        self,
        record: EpisodeRecord,
        server: str,
        retries: Retries,
        egresses: Callable[[], Sequence[Egress]],
        changed: Callable[[], None],
        keep: Callable[[], None],
    ) -> None:
        self.record = record
        self.retries = retries
        self.egress: Egress | None = None
        self.failed_over = ""
        self._server, self._egresses = server, egresses
        self._on_change, self._keep = changed, keep
        self._key = _key(record)
        self._used: dict[str, int] = {}
        self._have = here_bytes(record)
        noted = carried(record)
        record.by_network, record.metered_bytes = dict(noted.by_network), noted.metered_bytes
        self._attempt: asyncio.Task[None] | None = None
        self._following: FollowedTransfer | None = None
        self._follow: asyncio.Task[None] | None = None
        self._paused = False

    @property
    def turn(self) -> TurnMessage | None:
        """What it may do now; None: that is being asked, or it is in its pause."""
        if self._following is None or self.retries.again_unix_s is not None:
            return None
        return self._following.turn

    def follow(self) -> None:
        """Has it in the table, and its pause ended there once that is over."""
        if self._following is None:
            self._following = FollowedTransfer(
                directories().socket, self._report, self._metered, self._on_change
            )
            self._follow = asyncio.get_running_loop().create_task(self._following.run())
        elif self._paused and self.retries.again_unix_s is None:
            self._paused = False
            self._following.tell_soon()

    def begin(
        self, egress: Egress, proxy: str | None, done: Callable[[TransferError | None, float], None]
    ) -> None:
        """Brings it over one network; `done` gets what went wrong (None: it is here) and its rate."""
        self.egress = egress
        self._attempt = asyncio.get_running_loop().create_task(self._bring(egress, proxy, done))

    async def stop(self) -> None:
        """Ends an attempt; what has come is kept."""
        if self._attempt is not None:
            await _cancelled(self._attempt)
        self._attempt = self.egress = None

    async def end(self, *, wanted: bool = False) -> bool:
        """No longer followed; `wanted`: it stays in the daemon's table, for the next run.

        Whether the daemon knows.
        """
        await self.stop()
        following, follow = self._following, self._follow
        if following is None or follow is None:
            return wanted
        if wanted:
            following.leave()
        knows = wanted or await following.end(patient=False)
        await _cancelled(follow)
        self._following = self._follow = None
        return knows

    async def _bring(
        self,
        egress: Egress,
        proxy: str | None,
        done: Callable[[TransferError | None, float], None],
    ) -> None:
        began_s, total = time.monotonic(), 0
        failed: TransferError | None = None
        try:
            partial = _partial(self.record)
            if partial is not None:
                counted = partial.have

                def came(have: int, size: int | None) -> None:
                    nonlocal counted, total
                    # A file that has changed begins anew.
                    new, counted = max(have - counted, 0) if have > counted else have, have
                    total += new
                    self._have = have
                    self.retries.came(have)
                    self.record.size_bytes = size or self.record.size_bytes
                    self._count(egress, new)
                    partial.note_networks(self.record.by_network, self.record.metered_bytes)
                    if have == size:
                        self._keep()

                try:
                    interface = None if proxy else egress.interface
                    await fetch(self.record.url, partial, interface, proxy, came)
                finally:
                    partial.close()
        except TransferError as error:
            failed = error
        self.egress = None
        self.failed_over = egress.interface if failed is not None else ""
        took_s = max(time.monotonic() - began_s, 1e-3)
        done(failed, 8.0 * total / took_s)
        if self.retries.again_unix_s is not None and self._following is not None:
            self._paused = True
            self._following.tell_soon()
        self._attempt = None
        self._on_change()

    def _count(self, egress: Egress, n_bytes: int) -> None:
        for counts in (self._used, self.record.by_network):
            counts[egress.interface] = counts.get(egress.interface, 0) + n_bytes
        if egress.metered:
            self.record.metered_bytes += n_bytes

    def _metered(self) -> dict[str, bool]:
        return {each.interface: each.metered for each in self._egresses()}

    def _report(self) -> TransferReport:
        return TransferReport(
            key=self._key,
            name=f"{self.record.podcast}: {self.record.title}"[:300],
            server=self._server[:300],
            size_bytes=self.record.size_bytes or None,
            done_bytes=self._have,
            deadline_unix_s=self.record.by_unix_s,
            used_bytes=self._used,
            all_bytes=self.record.by_network,
            why=self.record.why[:300],
            again_unix_s=self.retries.again_unix_s,
        )


def forget(record: EpisodeRecord) -> bool:
    """Tells the daemon that nobody waits for it any more; whether there is one that has heard."""
    return asking.forget(directories().socket, _key(record))


async def _cancelled(task: "asyncio.Task[None]") -> None:
    """Ends it; who is cancelled meanwhile hears of that, unlike by awaiting it."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def _key(record: EpisodeRecord) -> str:
    """Its own for good, also after a restart."""
    text = f"{record.podcast}\0{record.guid}\0{record.file}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


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


def here_bytes(episode: EpisodeRecord) -> int:
    """What has come of it."""
    for name in (episode.file, f"{episode.file}.part"):
        with suppress(OSError):
            return Path(name).stat().st_size
    return 0


def carried(episode: EpisodeRecord) -> NotedBytes:
    """What came of it over which networks, as far as the book or its part's note has that.

    The book is written every few seconds; what came since then is in the note, also after a kill.
    """
    found = PartNote(Path(episode.file)).read()
    noted = NotedBytes() if found is None else found[1]
    by_network = {
        name: max(episode.by_network.get(name, 0), noted.by_network.get(name, 0))
        for name in episode.by_network | noted.by_network
    }
    return NotedBytes(by_network, max(episode.metered_bytes, noted.metered_bytes))
