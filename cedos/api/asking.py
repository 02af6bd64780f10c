"""Programs that ask the daemon beside their data: choices, routes, transfers with deadlines.

No question delays the data. If no daemon answers, the program decides alone and asks again after
some seconds. Without a daemon, the transfers of one process share a table and a scheduler of their
own.
"""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from cedos.api.client import ControlClient
from cedos.api.programs import ChoiceRequest, DetourRequest
from cedos.api.transfers import TransferReport, TurnMessage, table_entry, turn_message
from cedos.errors import CedosError
from cedos.model import Bulk, Label, Strategy, Urgency, is_helper_name
from cedos.selector.deadlines.plan import EPOCH_S
from cedos.session.io.advice import ASK_S, VALID_S, KnownNetwork, Question
from cedos.session.sockets.metered_gate import OWN_TABLE

_CHOICE_TIMEOUT_S: Final = 1.0
_NO_DAEMON_S: Final = 10.0
_NAMES_S: Final = 10.0
_MOST_ANSWERS: Final = 256
_READ_BYTES: Final = 4096


async def changes(socket: Path) -> AsyncIterator[None]:
    """Yield at once, and whenever rules, networks or walls may be others, while a daemon tells that.

    OSError: none listens there, or it may not be asked.
    """
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        writer.write(b"GET /v1/changes/follow HTTP/1.0\r\n\r\n")
        told = b" 200 " in (await reader.read(_READ_BYTES))[:16]
        while told:
            yield
            told = bool(await reader.read(_READ_BYTES))
    finally:
        writer.close()


class DaemonChooser:
    """A client of the daemon for all sessions of this process (`advice.Chooser`).

    Equal questions of several sessions are asked once. A decision without evaluations means that
    the daemon knows no network that is up; it is no choice.
    """

    def __init__(self, socket: Path, client: Callable[[Path, float], Any] = ControlClient) -> None:
        self._client: ControlClient = client(socket, _CHOICE_TIMEOUT_S)
        self._interfaces: dict[str, str] = {}
        self._networks: dict[str, KnownNetwork] = {}
        self._named_s = self._absent_s = self._changed_s = float("-inf")
        self._asking = threading.Lock()
        self._answers: dict[Question, tuple[float, Strategy | None]] = {}
        self._decided: dict[Label, tuple[float, int]] = {}

    async def learn(self) -> None:
        """Ask for the networks with their kinds and whether they are metered, unless just asked."""
        now = asyncio.get_running_loop().time()
        named = self._named_s >= max(now - ASK_S, self._changed_s)
        if not named and now - self._absent_s > _NO_DAEMON_S:
            await asyncio.to_thread(self._learn, now)

    def network(self, interface: str) -> KnownNetwork | None:
        """Return the network in the daemon's last answer, which stays valid after the daemon ends."""
        return self._networks.get(interface)

    def forget(self) -> None:
        """Ask anew from now on: networks, or what is known of them, have changed."""
        self._changed_s = asyncio.get_running_loop().time()

    async def choose(self, question: Question) -> Strategy | None:
        """Return the strategy with interfaces as networks; None without a daemon or a choice."""
        now = asyncio.get_running_loop().time()
        known, strategy = self._cached_answer(question, now)
        return strategy if known else await asyncio.to_thread(self._ask, question, now)

    def last_decision(self, label: Label) -> int | None:
        """Return the number of the last valid decision about a label, of any session of this process."""
        decided_s, number = self._decided.get(label, (float("-inf"), None))
        return number if asyncio.get_running_loop().time() - decided_s < VALID_S else None

    def _cached_answer(self, question: Question, now: float) -> tuple[bool, Strategy | None]:
        """Return whether the cached answer is recent enough, and that answer."""
        asked_s, strategy = self._answers.get(question, (float("-inf"), None))
        if now - self._absent_s < _NO_DAEMON_S:
            return True, None
        return asked_s > max(now - ASK_S / 2, self._changed_s), strategy

    def _ask(self, question: Question, now: float) -> Strategy | None:
        with self._asking:
            # Another thread may have asked the same question meanwhile.
            known, strategy = self._cached_answer(question, now)
            if known:
                return strategy
            try:
                strategy = self._chosen(question, now)
            except CedosError:  # none, another version, or no permission: decide alone
                self._absent_s = now
                return None
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            self._answers[question] = (now, strategy)
            return strategy

    def _learn(self, now: float) -> None:
        with self._asking:
            try:
                self._name(now)
            except CedosError:  # as below
                self._absent_s = now

    def _name(self, now: float) -> None:
        networks = self._client.networks()
        self._interfaces = {each.name: each.egress for each in networks}
        self._networks = {each.egress: KnownNetwork(each.kind, each.metered) for each in networks}
        self._named_s = now

    def _chosen(self, question: Question, now: float) -> Strategy | None:
        urgency, bulk = question.label.urgency, question.label.bulk
        decision = self._client.choose(
            ChoiceRequest(
                size_bytes=question.size_bytes,
                direction=question.direction,
                urgency=urgency,
                deadline_s=question.deadline_s,
                multipath=True,
                redundant=urgency is Urgency.FOREGROUND and bulk is Bulk.SMALL,
                sent_over=question.sent_over,
                waited_s=question.waited_s,
                programs=question.programs,
            )
        )
        self._decided[question.label] = now, decision.number
        if not decision.evaluations:
            return None
        choice = decision.choice
        # The next neighbour has the name of one that has left, and another address.
        old_s = ASK_S / 2 if any(map(is_helper_name, choice.networks)) else _NAMES_S
        named = self._named_s >= max(now - old_s, self._changed_s)
        if not named or not self._interfaces.keys() >= set(choice.networks):
            self._name(now)
        return Strategy(
            choice.kind, tuple(self._interfaces.get(name, name) for name in choice.networks)
        )


ROUTE_ASK_S: Final = 2.0
# The lifetime of an answer. The daemon may have ended, and networks may have gone.
ROUTE_VALID_S: Final = 10.0

_MOST_PORTS: Final = 256
# The assumed size, that of an object of a web page, because the real one is unknown.
_USUAL_BYTES: Final = 30_000


class DaemonRoutes:
    """The daemon's answers about connections around the gateway, by port.

    Connections without a valid answer take the gateway.
    """

    def __init__(self, socket: Path) -> None:
        self._client = ControlClient(socket, _CHOICE_TIMEOUT_S)
        self._answers: dict[int, tuple[float, bool]] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._absent_s = float("-inf")

    def direct(self, port: int, gateway_rtt_s: float | None) -> bool:
        """Return whether a connection to that port goes direct now. Call it in the event loop."""
        now = asyncio.get_running_loop().time()
        told_s, direct = self._answers.get(port, (float("-inf"), False))
        if now - told_s > ROUTE_ASK_S and gateway_rtt_s is not None and self._may_ask(port, now):
            asking = asyncio.get_running_loop().create_task(self._ask(port, gateway_rtt_s))
            self._asking[port] = asking
            asking.add_done_callback(lambda _done: self._asking.pop(port, None))
        return direct and now - told_s <= ROUTE_VALID_S

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    def _may_ask(self, port: int, now: float) -> bool:
        return (
            port not in self._asking
            and len(self._asking) < _MOST_PORTS
            and now - self._absent_s > _NO_DAEMON_S
        )

    async def _ask(self, port: int, gateway_rtt_s: float) -> None:
        request = ChoiceRequest(
            size_bytes=_USUAL_BYTES,
            urgency=Urgency.FOREGROUND,
            redundant=True,
            multipath=True,
            detour=DetourRequest(rtt_s=gateway_rtt_s, port=port),
        )
        now = asyncio.get_running_loop().time()
        try:
            decision = await asyncio.to_thread(self._client.choose, request)
        except CedosError:  # none, another version, or no permission
            self._absent_s = now
            return
        if len(self._answers) >= _MOST_PORTS:
            self._answers.clear()
        self._answers[port] = (now, bool(decision.direct))


_WAIT_S: Final = 10.0
_TIMEOUT_S: Final = 15.0
_ABSENT_S: Final = 2.0
# The pause after an error, and after a daemon that did not answer in time.
_SILENT_S: Final = 10.0

# The time to wait for a daemon that restarts, to report the end of a transfer.
_RESTARTS_S: Final = 5.0

_FORGET_TIMEOUT_S: Final = 2.0

_followed: Final[dict[str, "FollowedTransfer"]] = {}


def forget(socket: Path, key: str) -> bool:
    """Report the end of a transfer to the daemon. Return whether the daemon heard it."""
    ended = TransferReport(key=key, name="", server="", deadline_unix_s=0.0, ended=True)
    return tell(socket, ended)


def tell(socket: Path, report: TransferReport) -> bool:
    """Report a transfer without a follower once. Return whether a daemon heard it."""
    said = msgspec.structs.replace(report, said_s=time.monotonic(), wait_s=0.0)
    try:
        ControlClient(socket, _FORGET_TIMEOUT_S).transfer(said)
    except CedosError:
        return False
    return True


class FollowedTransfer:
    """A transfer with a deadline, over all its sessions.

    In a pause (`again_unix_s` of its report) the transfer stays in the table without a turn.
    """

    def __init__(
        self,
        socket: Path,
        # Returns the report to send now, with the bytes by interface in all.
        report: Callable[[], TransferReport],
        # Returns the interfaces that lead to the server now, each with whether it is metered.
        networks: Callable[[], Mapping[str, bool]],
        changed: Callable[[], None],  # called when the networks that may be used have changed
    ) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._report, self._networks, self._changed = report, networks, changed
        # The last answer; None: there is none since the start or the pause, and all may be used.
        self.turn: TurnMessage | None = None
        self._mine = asyncio.Event()
        self._soon = asyncio.Event()
        self._used: dict[str, int] = {}
        self._told_s = time.monotonic()
        self._absent_until_s = 0.0
        self._in_daemons_table = self._ended = False

    def may_use(self, interface: str) -> bool:
        """Return whether sessions of the transfer may use an interface now."""
        return self.turn is None or interface in self.turn.networks

    async def mine(self) -> None:
        """Wait until the transfer may use a network."""
        await self._mine.wait()

    def tell_soon(self) -> None:
        """Report at once, since a pause has begun or ended."""
        self._soon.set()

    async def run(self) -> None:
        """Report the progress and take the answers until the task is cancelled."""
        key = self._report().key
        _followed[key] = self
        try:
            await self._follow()
        finally:
            _followed.pop(key, None)

    async def _follow(self) -> None:
        while not self._ended:
            # Ask the daemon; without one, ask the scheduler of this process.
            report = self._next_report()
            in_pause, by_daemon = report.again_unix_s is not None, True
            try:
                turn = await self._ask(report)
                self._in_daemons_table = True
            except CedosError:
                by_daemon, turn = False, self._by_own_table(report)
            # In a pause the answer does not count, and the networks are free for others.
            if in_pause:
                self.turn = None
                self._mine.clear()
                if not by_daemon:
                    self._next_begins()
            else:
                self._take(turn)
            # The daemon answers a waiting transfer at once when it may begin.
            if in_pause or turn.networks or not by_daemon:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_WAIT_S if in_pause else EPOCH_S):
                        await self._soon.wait()
                self._soon.clear()

    def leave(self) -> None:
        """Stop following a transfer that is still wanted, and let others of this process begin.

        The daemon keeps the transfer as that of a program that was killed.
        """
        self._ended = True
        key = self._report().key
        _followed.pop(key, None)
        OWN_TABLE.remove(key, self._networks())
        self._next_begins()

    async def end(self) -> bool:
        """Report that the transfer is complete or given up.

        Return whether the daemon heard it; one that restarts is waited for.
        """
        self.leave()
        # Without this report, the daemon would list the transfer as waiting for good.
        report = msgspec.structs.replace(self._next_report(), ended=True, wait_s=0.0)
        until_s = time.monotonic() + (_RESTARTS_S if self._in_daemons_table else 0.0)
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
        # The daemon holds its answer to a waiting transfer until the turn changes.
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

        # A daemon thread, so that a program that exits does not wait for a slow answer.
        threading.Thread(target=ask, name="deadline turn", daemon=True).start()
        try:
            return await answered
        except CedosError:
            # Ask again soon if the daemon is gone, later if it is silent.
            now = time.monotonic()
            self._absent_until_s = now + (_ABSENT_S if now - asked_s < 1.0 else _SILENT_S)
            raise

    def _by_own_table(self, report: TransferReport) -> TurnMessage:
        try:
            OWN_TABLE.report(
                table_entry(report, 0), report.used_bytes, report.lasted_s, self._networks()
            )
        except ValueError:  # the table is full: use all networks at once
            return TurnMessage(networks=tuple(self._networks()))
        return turn_message(OWN_TABLE.table, report.key, time.monotonic(), time.time())

    @staticmethod
    def _next_begins() -> None:
        """Wake the transfers whose turn in the own table has changed.

        Otherwise each waits an epoch.
        """
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
                self._told_s = time.monotonic()  # no bytes could come while it waited
            self._changed()
