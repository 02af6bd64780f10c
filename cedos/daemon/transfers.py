"""The host's transfers with deadlines: programs tell of theirs, and are told what they may do.

The controller has the table (`cedos.controller.deadlines`). Requests wait here for their turn.

The table of transfers as a daemon has left it: for the next one, and for people while none answers.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, Self

import msgspec

from cedos.api.transfers import (
    TransferInTable,
    TransferReport,
    TurnMessage,
    sentence,
    table_entry,
    turn_message,
)
from cedos.controller.deadlines import rows
from cedos.controller.events import DecisionMade, TransferEnded, TransferReported
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.state_file import StateFile
from cedos.errors import ConfigError, NotFoundError
from cedos.kernel import own_file
from cedos.model import (
    Bulk,
    Direction,
    Label,
    SizeEstimate,
    Strategy,
    StrategyKind,
    Transfer,
    Urgency,
)
from cedos.selector.deadlines.plan import DeadlineFlow, expected_bytes
from cedos.selector.deadlines.prospect import Watts, alternatives
from cedos.selector.deadlines.transfer_table import TableTransfer

WHAT: Final = "the table of transfers with deadlines"
# A turn is worked out in up to 1.4 ms with 1,000 transfers. So many are before the daemon's other work.
AT_ONCE: Final = 16
FILE: Final = "transfers.json"


@dataclass(frozen=True, slots=True)
class KeptTransfers:
    """The transfers as a daemon knew them `at_unix_s`, by deadline; they may have changed since."""

    transfers: list[TransferInTable]
    at_unix_s: float

    @classmethod
    def read(cls, state: Path) -> Self:
        """Read the file without a daemon. Errors: OSError, ValueError, RecursionError."""
        path = state / FILE
        kept = msgspec.json.decode(own_file.read(path))
        transfers = [
            TransferInTable.of(each, by, running=False, turn=TurnMessage())
            for each, by in rows(kept)
        ]
        transfers.sort(key=lambda each: each.deadline_unix_s)
        return cls(transfers, path.stat().st_mtime)


class Transfers:
    """The requests of programs with transfers, and the file of the table."""

    def __init__(self, state: Path, driver: ControllerDriver) -> None:
        self.file = StateFile(state / FILE, WHAT)
        self._driver = driver
        self._known = driver.controller.transfers
        self._changed = asyncio.Event()
        self._waking = asyncio.Semaphore(AT_ONCE)

    async def report(self, report: TransferReport, uid: int) -> TurnMessage:
        """Take a program's word; answer at once, or when its turn has changed.

        Raises:
            ConfigError: it cannot be taken.
        """
        if report.ended:
            self._driver.post(TransferEnded(report.key, uid, report.said_s))
            return TurnMessage()
        transfer, table = table_entry(report, uid), self._known.table
        if self._known.is_late(uid, report.key, report.said_s):
            return TurnMessage()
        if why := table.refusal(transfer):
            raise ConfigError(why)
        names = {each.interface: each.name for each in self._driver.controller.decider.networks}
        used = {names.get(name, name): count for name, count in report.used_bytes.items()}
        self._driver.post(TransferReported(transfer, report.said_s, used, report.lasted_s))
        deadline_s = time.monotonic() + report.wait_s
        while table.serial(report.key) == report.seen:
            if (left_s := deadline_s - time.monotonic()) <= 0.0:
                break
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                break
            async with self._waking:
                await asyncio.sleep(0)
            if self._known.is_late(uid, report.key, report.said_s):
                return TurnMessage()
            self._driver.post(TransferReported(transfer, report.said_s))  # it waits for us: it runs
        return self._turn(report.key)

    async def list_all(self) -> list[TransferInTable]:
        """Return all transfers, the earliest deadline first."""
        now_s, table = time.monotonic(), self._known.table
        flows = {way: table.flows(way, now_s) for way in Direction}
        found: list[TransferInTable] = []
        for number, (each, by, runs) in enumerate(table.rows(now_s)):
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0)
            with suppress(NotFoundError):  # it has ended meanwhile
                turn = self._turn(each.key, flows[each.direction])
                found.append(TransferInTable.of(each, by, running=runs, turn=turn))
        return found

    def keep(self) -> None:
        """Have the table written for the next start."""
        self.file.take(self._known.state(time.monotonic()))

    def on_turns(self, keys: Sequence[str]) -> None:
        """Wake the requests that wait for another turn, and word the first decisions of `keys`."""
        self._changed.set()
        self._changed = asyncio.Event()
        now_s, wanted = time.monotonic(), set(keys)
        rows = (each for each, _, _ in self._known.table.rows(now_s) if each.key in wanted)
        flows = {way: self._known.table.flows(way, now_s) for way in Direction}
        for each in islice(rows, AT_ONCE):
            self._driver.post(self._decision(each, flows[each.direction], now_s))

    def _decision(
        self, transfer: TableTransfer, flows: Sequence[DeadlineFlow], now_s: float
    ) -> DecisionMade:
        """Return the decision about a transfer in words: deferring it is one of its strategies."""
        decider, table = self._driver.controller.decider, self._known.table
        radios = decider.choices.power.radios
        watts = {
            each.name: Watts(
                radios[each.kind].active_w(transfer.direction), radios[each.kind].tail_j
            )
            for each in decider.networks
        }
        objective = decider.objective
        s_per_j = getattr(objective, "s_per_j", 0.0) + objective.prices.energy_rate()
        flow = next(each for each in flows if each.key == transfer.key)
        wall = time.time()
        turn = turn_message(table, transfer.key, now_s, wall, flows)
        known = transfer.size_bytes is not None
        size = round(flow.left_bytes) if known else round(expected_bytes(0))
        kinds = (StrategyKind.DEFER, StrategyKind.SINGLE, StrategyKind.MPTCP)
        return DecisionMade(
            Transfer(
                SizeEstimate(size, size, size, "hint" if flow.exact else "default"),
                transfer.direction,
                Label(Urgency.BACKGROUND, Bulk.LARGE),
                max(transfer.deadline_unix_s - wall, 0.0),
                server_name=transfer.server,
            ),
            Strategy(kinds[min(len(turn.networks), 2)], turn.networks),
            f"{transfer.name}: "
            + sentence(turn, transfer.deadline_unix_s, datetime.fromtimestamp(wall)),
            alternatives(flow, flows, table.states(transfer.direction), watts, s_per_j, now_s),
        )

    def _turn(self, key: str, flows: Sequence[DeadlineFlow] | None = None) -> TurnMessage:
        networks = self._driver.controller.decider.networks
        interfaces = {each.name: each.interface for each in networks}
        turn = turn_message(self._known.table, key, time.monotonic(), time.time(), flows)

        def names_of(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(interfaces.get(name, name) for name in names)

        return msgspec.structs.replace(
            turn,
            networks=names_of(turn.networks),
            metered=names_of(turn.metered),
            spare=names_of(turn.spare),
        )
