"""Files with a deadline: all files of one command, which share the networks and some sessions.

A file asks for its size, waits for its turn, and then gets a session from the pool of its server.
When its turn ends it gives the session back, and another file may take it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from cedos.api.asking import FollowedTransfer
from cedos.api.transfers import TransferReport, lateness, sentence
from cedos.apps.files.server_link import Progress, ServerLink
from cedos.commands.console.manual import say
from cedos.commands.console.progress import ProgressLine
from cedos.commands.console.render import size
from cedos.commands.console.transfers import Endpoints
from cedos.commands.console.waiting_files import (
    WaitingFile,
)
from cedos.config.directories import directories
from cedos.errors import CedosError, SessionError, TransferError
from cedos.model import Direction
from cedos.plain_text import plain
from cedos.session.known_hosts import KnownServer
from cedos.session.sockets.connection import Connection

_DRAWN_EVERY_S: Final = 0.2
_LATE_LOOKS: Final = 10
# The time for which sessions live after the deadline, because late files are still wanted.
_BEYOND_S: Final = 86_400.0
_MOST_S: Final = 30 * 86_400.0
# A file that is fetched keeps two open, its part and its folder. A process may have 1024.
_MOST_FILES: Final = 256
# The time for which a session without a user keeps its paths.
_LINGER_S: Final = 3.0


class PooledSession:
    """A session, made again after it ended, that uses the networks of its user.

    Without a user it keeps its paths for some seconds and then has none.
    """

    def __init__(self, ends: Endpoints) -> None:
        self._dial = ends.dialling(made=self._on_connection, may_use=self._may_use)
        self.link = ServerLink(self._connect)
        self._user: FileByDeadline | None = None
        self._connection: Connection | None = None
        self._had: frozenset[str] = frozenset()
        self._kept: frozenset[str] = frozenset()
        self._lingering: asyncio.TimerHandle | None = None
        self._earlier: dict[Direction, dict[str, int]] = _no_bytes()
        self._before: dict[Direction, dict[str, int]] = _no_bytes()

    def give_to(self, user: "FileByDeadline | None") -> None:
        """Give the session to this user."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        # Without a user, keep the present paths for the next file, and then leave them.
        if user is None and self._connection is not None:
            self._had = frozenset(path.network for path in self._connection.paths())
            self._lingering = asyncio.get_running_loop().call_later(_LINGER_S, self._leave)
        self._kept = self._had if user is None else frozenset()
        # Count the bytes of this user from here on.
        self._user, self._earlier = user, _no_bytes()
        self._before = {way: self._count(way) for way in Direction}
        self.networks_changed()

    @property
    def reached(self) -> bool:
        return self._connection is not None

    def _leave(self) -> None:
        """Leave metered networks, since the next user may come much later."""
        self._lingering, self._kept = None, frozenset()
        self.networks_changed()

    async def close(self) -> None:
        """Close the session over a network in use, or a free one, or the last one."""
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        connection = self._connection
        if connection is not None and not connection.ended:
            # Goodbye needs a path: take a free network, or else the last one.
            if not connection.paths():
                free = {name for name, metered in connection.networks().items() if not metered}
                self._kept = frozenset(free) or self._had
                connection.check_networks()
            if not connection.has_network:  # it would have no way
                connection.abort("goodbye")
        await self.link.close()

    def networks_changed(self) -> None:
        """Note that the user may use other networks."""
        if self._connection is not None:
            self._connection.check_networks()

    def networks(self) -> Mapping[str, bool]:
        """Return the interfaces to the server, with whether each is metered; empty: unknown."""
        alive = self._connection is not None and not self._connection.ended
        return self._connection.networks() if alive and self._connection is not None else {}

    def carried_bytes(self, way: Direction) -> dict[str, int]:
        """Return the bytes by network since the user got the session."""
        found, before = dict(self._earlier[way]), self._before[way]
        for name, count in self._count(way).items():
            found[name] = found.get(name, 0) + max(count - before.get(name, 0), 0)
        return found

    def _count(self, way: Direction) -> dict[str, int]:
        if self._connection is None:
            return {}
        if way is Direction.UP:
            return self._connection.sent_by_network()
        return self._connection.received_by_network()

    async def _connect(self) -> Connection:
        if self._user is not None:
            await self._user.mine()
        return await self._dial()

    def _on_connection(self, connection: Connection) -> None:
        # Add the bytes of the ended connection, and count those of the new one from zero.
        self._earlier = {way: self.carried_bytes(way) for way in Direction}
        self._connection, self._before = connection, _no_bytes()

    def _may_use(self, interface: str) -> bool:
        return interface in self._kept if self._user is None else self._user.may_use(interface)


def _no_bytes() -> dict[Direction, dict[str, int]]:
    return {way: {} for way in Direction}


class SessionPool:
    """The sessions with one server; `ends`: this host and the server."""

    def __init__(self, ends: Endpoints) -> None:
        self.ends = ends
        self._all: list[PooledSession] = []
        self._idle: list[PooledSession] = []
        self._leading: Mapping[str, bool] = {}

    @property
    def reached(self) -> bool:
        """Return whether the server has ever answered."""
        return any(each.reached for each in self._all)

    @asynccontextmanager
    async def session(self, user: "FileByDeadline") -> AsyncIterator[PooledSession]:
        """Lend a session to one user during the block."""
        if self._idle:
            session = self._idle.pop()
        else:
            session = PooledSession(self.ends)
            self._all.append(session)
        session.give_to(user)
        try:
            yield session
        finally:
            session.give_to(None)
            self._idle.append(session)

    def networks(self) -> Mapping[str, bool]:
        """Return the last known interfaces to the server, with whether each is metered."""
        for each in self._all:
            if found := each.networks():
                self._leading = found
                break
        return self._leading

    async def close(self) -> None:
        """Close all sessions."""
        await asyncio.gather(*(each.close() for each in self._all))


class FileByDeadline:
    """A file with a deadline. While it waits, other files use the sessions."""

    def __init__(self, file: WaitingFile, pool: SessionPool, by_unix_s: float) -> None:
        self.file, self.pool, self._by_unix_s = file, pool, by_unix_s
        self._used: dict[str, int] = {}
        self._session: PooledSession | None = None
        self._asked = False
        self.following = FollowedTransfer(
            directories().socket, self._report, self._networks, self._on_change
        )
        move = file.move(self, pool.ends.deadline_s)
        self._moving, self.close = move.moving, move.close
        self.seconds = 0.0
        self._ended_unix_s: float | None = None

    @property
    def progress(self) -> Progress:
        return self._moving.progress

    async def ask(self) -> None:
        """Ask for the size, which planning needs. CedosError: the file cannot be had."""
        await self._ended_well(self._moving.ask())
        self._asked = True

    async def run(self) -> None:
        """Move the file. CedosError: it cannot be had."""
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
        """Wait for the turn, then do as `ServerLink.until_done`."""
        await self.mine()
        async with self.pool.session(self) as session:
            self._session = session
            try:
                await session.link.until_done(over, progress, patience_s)
            finally:
                self._used, self._session = self._carried_bytes(), None

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
        """Return the state as text."""
        turn, progress = self.following.turn, self.progress
        if progress.connection is None and progress.state:
            return progress.state
        if turn is None:
            return "asking for its size" if progress.size_bytes is None else ""
        return sentence(turn, self._by_unix_s, datetime.now())

    @property
    def lateness(self) -> str:
        """Return the expected lateness as text; empty: none is expected."""
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
            carried: dict(self._carried_bytes()),
            "by_unix_s": self._by_unix_s,
            "in_time": late_s == 0.0,
            "late_s": round(late_s, 3),
            "error": None,
        }

    def _networks(self) -> Mapping[str, bool]:
        return {
            name: metered
            for name, metered in self.pool.networks().items()
            if not (only := self.pool.ends.networks) or name in only
        }

    def _carried_bytes(self) -> dict[str, int]:
        found = dict(self._used)
        if self._session is not None:
            for name, count in self._session.carried_bytes(self.file.direction).items():
                found[name] = found.get(name, 0) + count
        return found

    def _on_change(self) -> None:
        if self._session is not None:
            self._session.networks_changed()

    def _report(self) -> TransferReport:
        progress = self.progress
        return TransferReport(
            key=self.file.key,
            name=plain(self.file.name)[:300],
            server=self.pool.ends.server.host[:300],
            direction=self.file.direction,
            size_bytes=progress.size_bytes,
            done_bytes=progress.have_bytes,
            deadline_unix_s=self._by_unix_s,
            used_bytes=self._carried_bytes(),
        )


class FilesByDeadline:
    """The files of one command; each calls `done` or `failed` at its end."""

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

    def add(self, file: WaitingFile, ends: Endpoints) -> None:
        """Add a file. TransferError: it cannot be read or written, or there are too many."""
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
        """Move all files. If cancelled, say what is kept."""
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
        """Move all files of one server: get their sizes over one session, then each in its turn."""
        known: list[FileByDeadline] = []
        unreached: CedosError | None = None
        for each in [each for each in self._waiting if each.pool is pool]:
            try:
                if unreached is not None:
                    raise unreached
                await each.ask()
                known.append(each)
            except CedosError as error:
                unreached = None if pool.reached else error  # do not wait again for the other files
                self._given_up(each, error, line)
        await asyncio.gather(*(self._carry_file(each, line) for each in known))
        await pool.close()

    async def _carry_file(self, each: FileByDeadline, line: "_Line") -> None:
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
    """The line of progress for the first pending file and the number of others."""

    def __init__(self, waiting: list[FileByDeadline], quiet: bool) -> None:
        self._waiting, self._quiet = waiting, quiet
        self._lines = {
            id(each): ProgressLine(each.file.name, each.progress, quiet=quiet) for each in waiting
        }
        self._late_looks: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            if self._waiting:
                served = [each for each in self._waiting if _is_carried(each)] or self._waiting
                line = self._lines[id(served[0])]
                others = len(self._waiting) - 1
                more = f"; {others} more file{'s' * (others != 1)}" if others else ""
                line.draw(f"{served[0].state}{more}")
                for each in self._waiting:
                    if not line.shown:
                        self._say_late(each)
            await asyncio.sleep(_DRAWN_EVERY_S)

    def _say_late(self, each: FileByDeadline) -> None:
        """Say once that a file will be late, but not in the first seconds, which mislead."""
        late, progress = each.lateness, each.progress
        if _is_carried(each) and progress.have_bytes <= progress.began_bytes:
            late = ""  # there are no measurements yet
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


def _is_carried(each: FileByDeadline) -> bool:
    turn = each.following.turn
    return turn is not None and bool(turn.networks)
