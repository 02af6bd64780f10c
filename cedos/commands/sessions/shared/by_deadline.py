"""Files that can wait until a time: all of one command at once, as they share the networks."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cedos.api.asking.followed_transfer import FollowedTransfer
from cedos.api.transfers import TransferReport
from cedos.api.turn_text import lateness, sentence
from cedos.commands.console.program import say
from cedos.commands.console.progress import ProgressLine, size
from cedos.commands.sessions.shared.session_pool import PooledSession, SessionPool
from cedos.commands.sessions.shared.sources import Source
from cedos.commands.sessions.shared.transfers import Endpoints
from cedos.commands.sessions.shared.waiting_file import WaitingFile, download, upload, web_upload
from cedos.commands.sessions.shared.web_target import WebTarget
from cedos.config.directories import directories
from cedos.errors import CedosError, SessionError, TransferError
from cedos.files.progress import Progress
from cedos.model import Direction
from cedos.session.known_hosts import KnownServer
from cedos.session.sockets.connection import Connection

_DRAWN_EVERY_S: Final = 0.2
_LATE_LOOKS: Final = 10
_BEYOND_S: Final = 86_400.0
"""A server's session is kept for a day beyond the deadline: the file is wanted still."""

_MOST_S: Final = 30 * 86_400.0
_MOST_FILES: Final = 256
"""Each has a lock and an open file of its own; programs may have 1024 files open."""


class FileByDeadline:
    """One file that can wait, over whatever sessions it takes; while it waits others have them."""

    def __init__(self, file: WaitingFile, pool: SessionPool, by_unix_s: float) -> None:
        self.file, self.pool, self._by_unix_s = file, pool, by_unix_s
        self._used: dict[str, int] = {}
        self._session: PooledSession | None = None
        self._asked = False
        self.following = FollowedTransfer(
            directories().socket, self._report, self._networks, self._changed
        )
        self._move = file.move(self, pool.ends.deadline_s)
        self._moving, self.close = self._move.moving, self._move.close
        self.seconds = 0.0
        self._ended_unix_s: float | None = None

    @property
    def progress(self) -> Progress:
        return self._moving.progress

    async def ask(self) -> None:
        """For its size: before that is known there is nothing to plan. CedosError: it cannot be had."""
        await self._ended_well(self._moving.ask())
        self._asked = True

    async def run(self) -> None:
        """Until it is here.

        Raises:
            CedosError: it cannot be had.
        """
        began_s = time.monotonic()
        following = asyncio.create_task(self.following.run())
        try:
            await self._ended_well(self._moving.run())
            self._ended_unix_s = time.time()
            await self.following.end()
        finally:
            self.seconds = time.monotonic() - began_s
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following

    async def until_done(
        self, over: Callable[[Connection], Awaitable[bool]], progress: Progress, patience_s: float
    ) -> None:
        """As `ServerLink`: once it is its turn."""
        await self.mine()
        async with self.pool.session(self) as session:
            self._session = session
            try:
                await session.link.until_done(over, progress, patience_s)
            finally:
                self._used, self._session = self._carried(), None
                self._move.note(self._in_all())

    def may_use(self, interface: str) -> bool:
        return self.following.may_use(interface)

    async def mine(self) -> None:
        if self._asked:
            await self.following.mine()

    @staticmethod
    async def _ended_well(moving: Awaitable[None]) -> None:
        try:
            await moving
        except TimeoutError as error:
            raise SessionError("no server for too long") from error

    @property
    def state(self) -> str:
        """What it waits for, or does, in words."""
        turn, progress = self.following.turn, self.progress
        if progress.connection is None and progress.state:
            return progress.state
        if turn is None:
            return "asking for its size" if progress.size_bytes is None else ""
        return sentence(turn, self._by_unix_s, datetime.now())

    @property
    def lateness(self) -> str:
        """That it will be late, in words; empty: it will not, as far as can be told."""
        turn = self.following.turn
        return "" if turn is None else lateness(turn, self._by_unix_s, datetime.now())

    @property
    def fact(self) -> dict[str, Any]:
        progress = self.progress
        late_s = max((self._ended_unix_s or time.time()) - self._by_unix_s, 0.0)
        carried = "received_bytes" if self.file.direction is Direction.DOWN else "sent_bytes"
        return {
            **self.file.facts,
            "bytes": progress.have_bytes,
            "here_before_bytes": progress.began_bytes,
            "sessions": max(
                progress.sessions - 1, 0
            ),  # without the one that was asked for its size
            "seconds": round(self.seconds, 3),
            carried: dict(self._carried()),
            "by_unix_s": self._by_unix_s,
            "in_time": late_s == 0.0,
            "late_s": round(late_s, 3),
            **self._moving.told,
            "error": None,
        }

    def _networks(self) -> Mapping[str, bool]:
        return {
            name: metered
            for name, metered in self.pool.networks().items()
            if not (only := self.pool.ends.networks) or name in only
        }

    def _carried(self) -> dict[str, int]:
        found = dict(self._used)
        if self._session is not None:
            for name, count in self._session.carried(self.file.direction).items():
                found[name] = found.get(name, 0) + count
        return found

    def _in_all(self) -> dict[str, int]:
        """With what earlier programs have noted."""
        carried, before = self._carried(), self._move.came_before()
        return {
            name: carried.get(name, 0) + before.get(name, 0) for name in (carried | dict(before))
        }

    def _changed(self) -> None:
        if self._session is not None:
            self._session.networks_changed()

    def _report(self) -> TransferReport:
        progress, in_all = self.progress, self._in_all()
        self._move.note(in_all)  # as often as the daemon is told
        return TransferReport(
            key=self.file.key,
            name=self.file.name[:300],
            server=self.pool.ends.server.host[:300],
            direction=self.file.direction,
            size_bytes=progress.size_bytes,
            done_bytes=progress.have_bytes,
            deadline_unix_s=self._by_unix_s,
            used_bytes=self._carried(),
            all_bytes=in_all,
        )


class FilesByDeadline:
    """All files of one command: `done` and `failed` get each as it ends."""

    def __init__(
        self,
        by_unix_s: float,
        quiet: bool,
        done: Callable[[dict[str, Any]], None],
        failed: Callable[[str, Path, CedosError], None],
    ) -> None:
        self._by_unix_s, self._quiet = by_unix_s, quiet
        self._done, self._failed = done, failed
        self._waiting: list[FileByDeadline] = []
        self._pools: dict[KnownServer, SessionPool] = {}

    def add(self, source: Source, target: Path, ends: Endpoints) -> None:
        """One more that is fetched by `run`.

        Raises:
            TransferError: it cannot be written, or there are too many.
        """
        self._add(download(source, target, ends), ends)

    def add_upload(self, source: Path, path: str, where: str, ends: Endpoints) -> None:
        """One more that is sent by `run`, to `path` of the server; `where`: that in full.

        Raises:
            TransferError: it cannot be read, or there are too many.
        """
        self._add(upload(source, path, where, ends), ends)

    def add_web_upload(self, source: Path, url: str, target: WebTarget, ends: Endpoints) -> None:
        """One more that the gateway of `ends` sends on. Errors: as of `add_upload`."""
        self._add(web_upload(source, url, target), ends)

    def _add(self, file: WaitingFile, ends: Endpoints) -> None:
        if len(self._waiting) >= _MOST_FILES:
            raise TransferError(
                f"{file.path}: one command takes {_MOST_FILES} files with --by; "
                "repeat it when these are here"
            )
        pool = self._pools.get(ends.server)
        if pool is None:
            until_s = max(self._by_unix_s - time.time(), 0.0) + _BEYOND_S
            ends = replace(ends, deadline_s=min(max(until_s, ends.deadline_s), _MOST_S))
            pool = self._pools[ends.server] = SessionPool(ends)
        self._waiting.append(FileByDeadline(file, pool, self._by_unix_s))

    async def run(self) -> None:
        """Until each is here or cannot be had; where it is cancelled, says what is kept."""
        line = _Line(self._waiting, self._quiet)
        drawing = asyncio.get_running_loop().create_task(line.run())
        try:
            await asyncio.gather(*(self._of(pool, line) for pool in self._pools.values()))
        except asyncio.CancelledError:
            line.clear()
            for each in self._waiting:
                _say_kept(each)
            raise
        finally:
            drawing.cancel()
            line.clear()
            for each in self._waiting:
                each.close()

    async def _of(self, pool: SessionPool, line: "_Line") -> None:
        """All files of one server: their sizes over one session, then each when it is its turn."""
        known: list[FileByDeadline] = []
        nobody: CedosError | None = None
        for each in [each for each in self._waiting if each.pool is pool]:
            try:
                if nobody is not None:
                    raise nobody
                await each.ask()
                known.append(each)
            except CedosError as error:
                nobody = None if pool.reached else error  # who waited for it waited for all of them
                self._given_up(each, error, line)
        await asyncio.gather(*(self._one(each, line) for each in known))
        await pool.close()

    async def _one(self, each: FileByDeadline, line: "_Line") -> None:
        try:
            await each.run()
        except CedosError as error:
            self._given_up(each, error, line)
        else:
            line.clear()
            self._waiting.remove(each)
            each.close()
            self._done(each.fact)

    def _given_up(self, each: FileByDeadline, error: CedosError, line: "_Line") -> None:
        line.clear()
        self._failed(each.file.origin, each.file.path, error)
        _say_kept(each)
        self._waiting.remove(each)
        each.close()


def _say_kept(each: FileByDeadline) -> None:
    if have := each.progress.have_bytes:
        up = each.file.direction is Direction.UP
        kept = f"{size(have)} are kept{' there' if up else ''}"
        why = f"{each.file.path}: {kept}; the same command goes on"
        say("cedos-put" if up else "cedos-get", CedosError(why))


class _Line:
    """The first file that is not here, and how many others."""

    def __init__(self, waiting: list[FileByDeadline], quiet: bool) -> None:
        self._waiting, self._quiet = waiting, quiet
        self._lines = {
            id(each): ProgressLine(each.file.name, each.progress, quiet=quiet) for each in waiting
        }
        self._late_looks: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            if self._waiting:
                served = [each for each in self._waiting if _carried(each)] or self._waiting
                line = self._lines[id(served[0])]
                others = len(self._waiting) - 1
                more = f"; {others} more file{'s' * (others != 1)}" if others else ""
                line.draw(f"{served[0].state}{more}")
                for each in self._waiting:
                    if not line.shown:
                        self._say_late(each)
            await asyncio.sleep(_DRAWN_EVERY_S)

    def _say_late(self, each: FileByDeadline) -> None:
        """Once, and not of what the first seconds of a network alone make look so."""
        late, progress = each.lateness, each.progress
        if _carried(each) and progress.have_bytes <= progress.began_bytes:
            late = ""  # nobody has measured anything yet
        looks = self._late_looks.get(id(each), 0) + 1 if late else 0
        if self._late_looks.get(id(each), 0) >= _LATE_LOOKS:
            return  # it was said
        self._late_looks[id(each)] = looks
        if looks == _LATE_LOOKS:
            up = each.file.direction is Direction.UP
            say("cedos-put" if up else "cedos-get", CedosError(f"{each.file.path}: {late}"))

    def clear(self) -> None:
        for line in self._lines.values():
            line.clear()


def _carried(each: FileByDeadline) -> bool:
    turn = each.following.turn
    return turn is not None and bool(turn.networks)
