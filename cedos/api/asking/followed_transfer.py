"""A program's own transfer with a deadline: tells the daemon's table of it, and hears what it may do.

Without a daemon the transfers of this process share a table of their own, with the same scheduler.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cedos.api.client import ControlClient
from cedos.api.transfers import TransferReport, TurnMessage
from cedos.api.turns import seen_turn, told_transfer
from cedos.errors import CedosError
from cedos.selector.deadlines.plan import EPOCH_S
from cedos.session.sockets.own_table import OWN_TABLE

_WAIT_S: Final = 10.0
_TIMEOUT_S: Final = 15.0
_ABSENT_S: Final = 2.0
_SILENT_S: Final = 10.0
"""Where no daemon is, or one did not answer in time, it is asked again only so often."""

_RESTARTS_S: Final = 5.0
"""A daemon that is begun anew is waited for so long, to hear that a transfer has ended."""

_FORGET_TIMEOUT_S: Final = 2.0

_followed: Final[dict[str, "FollowedTransfer"]] = {}


def forget(socket: Path, key: str) -> bool:
    """Tells the daemon that a transfer is over that it may still have; whether it has heard."""
    ended = TransferReport(key=key, name="", server="", deadline_unix_s=0.0, ended=True)
    return tell(socket, ended)


def tell(socket: Path, report: TransferReport) -> bool:
    """Tells the daemon once of a transfer that nobody follows; whether there is one that has heard."""
    said = msgspec.structs.replace(report, said_s=time.monotonic(), wait_s=0.0)
    try:
        ControlClient(socket, _FORGET_TIMEOUT_S).transfer(said)
    except CedosError:
        return False
    return True


class FollowedTransfer:
    """One transfer, whatever becomes of its sessions.

    In a pause (`again_unix_s` of its report) it stays in the table, and has no turn.

    Args:
        report: what is to be told of it now; the bytes by interface in all.
        networks: interface -> whether it is metered: those that lead to its server now.
        changed: other networks may be used than before.

    Attributes:
        turn: what was said last; None: nothing yet, or not since its pause, and anything may be used.
    """

    def __init__(
        self,
        socket: Path,
        report: Callable[[], TransferReport],
        networks: Callable[[], Mapping[str, bool]],
        changed: Callable[[], None],
    ) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._report, self._networks, self._changed = report, networks, changed
        self.turn: TurnMessage | None = None
        self._mine = asyncio.Event()
        self._soon = asyncio.Event()
        self._used: dict[str, int] = {}
        self._told_s = time.monotonic()
        self._absent_until_s = 0.0
        self._in_daemons_table = self._ended = False

    def may_use(self, interface: str) -> bool:
        """Whether its sessions may use an interface now."""
        return self.turn is None or interface in self.turn.networks

    async def mine(self) -> None:
        """Returns when there is a network that it may use."""
        await self._mine.wait()

    def tell_soon(self) -> None:
        """Its pause begins or is over: that is told at once."""
        self._soon.set()

    async def run(self) -> None:
        """Until it is cancelled: tells how far it is, and takes what it may do."""
        key = self._report().key
        _followed[key] = self
        try:
            await self._follow()
        finally:
            _followed.pop(key, None)

    async def _follow(self) -> None:
        while not self._ended:
            report = self._next_report()
            in_pause, by_daemon = report.again_unix_s is not None, True
            try:
                turn = await self._ask(report)
                self._in_daemons_table = True
            except CedosError:
                by_daemon, turn = False, self._by_own_table(report)
            if in_pause:
                self.turn = None
                self._mine.clear()
                if not by_daemon:
                    self._next_begins()
            else:
                self._take(turn)
            # What waits is told by the daemon at once when it may begin.
            if in_pause or turn.networks or not by_daemon:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WAIT_S if in_pause else EPOCH_S):
                        await self._soon.wait()
                self._soon.clear()

    def leave(self) -> None:
        """It is wanted still, but not by this run: what waits in this process has its turn.

        Of the daemon's table it is as a program that was killed.
        """
        self._ended = True
        key = self._report().key
        _followed.pop(key, None)
        OWN_TABLE.ended(key, self._networks())
        self._next_begins()

    async def end(self, *, patient: bool = True) -> bool:
        """It is here, or is given up for good: nobody waits for it any more.

        Whether a daemon that knew of it has heard that; `patient`: waits for one that begins anew.
        """
        self.leave()
        report = msgspec.structs.replace(self._next_report(), ended=True, wait_s=0.0)
        until_s = time.monotonic() + (_RESTARTS_S if patient and self._in_daemons_table else 0.0)
        while True:
            try:
                await self._ask(report)
            except CedosError:
                if time.monotonic() >= until_s:
                    return False
                await asyncio.sleep(0.2)
            else:
                return True

    def _next_report(self) -> TransferReport:
        now = time.monotonic()
        report = self._report()
        used = {
            name: count - self._used.get(name, 0)
            for name, count in report.used_bytes.items()
            if count > self._used.get(name, 0)
        }
        self._used, lasted_s, self._told_s = dict(report.used_bytes), now - self._told_s, now
        waits = self.turn is not None and not self.turn.networks and report.again_unix_s is None
        return msgspec.structs.replace(
            report,
            used_bytes=used,
            lasted_s=lasted_s,
            said_s=now,
            seen=self.turn.serial if self.turn is not None else "?",
            wait_s=_WAIT_S if waits else 0.0,
        )

    async def _ask(self, report: TransferReport) -> TurnMessage:
        if time.monotonic() < self._absent_until_s:
            raise CedosError("no daemon")
        asked_s = time.monotonic()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[TurnMessage] = loop.create_future()

        def settle(turn: TurnMessage | None, error: CedosError | None) -> None:
            if answered.done():
                return
            if turn is not None:
                answered.set_result(turn)
            elif error is not None:
                answered.set_exception(error)

        def ask() -> None:
            turn: TurnMessage | None = None
            failed: CedosError | None = None
            try:
                turn = self._client.transfer(report)
            except CedosError as error:
                failed = error
            try:
                loop.call_soon_threadsafe(settle, turn, failed)
            except RuntimeError:
                return  # the program has ended meanwhile

        # Of its own and a daemon's: a program that ends does not wait for an answer that takes long.
        threading.Thread(target=ask, name="deadline turn", daemon=True).start()
        try:
            return await answered
        except CedosError:
            now = time.monotonic()
            self._absent_until_s = now + (_ABSENT_S if now - asked_s < 1.0 else _SILENT_S)
            raise

    def _by_own_table(self, report: TransferReport) -> TurnMessage:
        try:
            OWN_TABLE.told(
                told_transfer(report, 0), report.used_bytes, report.lasted_s, self._networks()
            )
        except ValueError:  # too many: it goes as if it could not wait
            return TurnMessage(networks=tuple(self._networks()))
        return seen_turn(OWN_TABLE.table, report.key, time.monotonic(), time.time())

    @staticmethod
    def _next_begins() -> None:
        """Whose turn it is now in the own table hears of it at once, else a small file took an epoch."""
        for key, other in _followed.items():
            if other.turn is not None and other.turn.serial != OWN_TABLE.table.serial(key):
                other._soon.set()

    def _take(self, turn: TurnMessage) -> None:
        before = self.turn
        self.turn = turn
        if turn.networks:
            self._mine.set()
        else:
            self._mine.clear()
        if before is None or before.networks != turn.networks:
            if before is None or not before.networks:
                self._told_s = time.monotonic()  # while it waited nothing could come
            self._changed()
