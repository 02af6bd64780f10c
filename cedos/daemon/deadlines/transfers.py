"""The host's transfers with deadlines: programs tell of theirs, and are told what they may do."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import structlog

from cedos.api.transfers import (
    TransferInTable,
    TransferReport,
    TurnMessage,
    table_entry,
    turn_message,
)
from cedos.daemon import state_file
from cedos.daemon.aligned_sleep import aligned_sleep
from cedos.daemon.deadlines.d_lock import DLock
from cedos.daemon.deadlines.kept_transfers import FILE, rows
from cedos.errors import ConfigError
from cedos.model import Context, Direction, Network
from cedos.selector.deadlines.network_state import NetworkState, SeenNetwork
from cedos.selector.deadlines.plan import EPOCH_S, DeadlineFlow
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable
from cedos.selector.decision.liveness import why_dead
from cedos.selector.objective import Objective, WeightedCost

_log = structlog.get_logger(__name__)

_WHAT: Final = "the table of transfers with deadlines"
_KEEP_S, _KEEP_CARRYING_S = 30.0, 0.9
"""Seconds between two writes of the table, at rest and while bytes arrive: a kill loses no more."""

_ENDED: Final = 1000
_METERED_S: Final = 0.2 / 1e6
"""The price of a metered byte if the objective has none: that of the shipped configuration."""


class Decided(Protocol):
    """Takes a decision about a transfer whose networks have changed."""

    def __call__(
        self,
        transfer: TableTransfer,
        turn: TurnMessage,
        flow: DeadlineFlow,
        flows: Sequence[DeadlineFlow],
        states: Sequence[NetworkState],
        now: float,
    ) -> None: ...


class Transfers:
    """The table, with the daemon's networks and prices.

    Args:
        networks: all there are; `barred`: those that programs are kept off.
    """

    def __init__(
        self,
        state: Path,
        *,
        networks: Callable[[], Sequence[Network]],
        barred: Callable[[], Mapping[str, str]],
        context: Callable[[], Context],
        objective: Callable[[], Objective],
        decided: Decided,
        d_lock: DLock,
    ) -> None:
        self._file = state / FILE
        self._networks, self._barred = networks, barred
        self._context, self._objective = context, objective
        self._decided, self._d_lock = decided, d_lock
        self._table = TransferTable()
        self._changed = asyncio.Event()
        self._kept_s = 0.0
        self._told: dict[str, str] = {}
        self._ended_s: dict[tuple[int, str], float] = {}
        self._restore()

    async def report(self, report: TransferReport, uid: int) -> TurnMessage:
        """Take a program's word; answers at once, or when its turn has changed.

        Raises:
            ConfigError: it cannot be taken.
        """
        now = time.monotonic()
        if report.ended:
            self._end(report.key, uid, report.said_s)
            return TurnMessage()
        if self._is_late(report, uid):
            return TurnMessage()
        interfaces = {each.interface: each.name for each in self._networks()}
        transfer = table_entry(report, uid)
        try:
            self._table.report(transfer, now)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        used = {interfaces.get(name, name): count for name, count in report.used_bytes.items()}
        in_all = {interfaces.get(name, name): count for name, count in report.all_bytes.items()}
        self._table.add_bytes(report.key, used, report.lasted_s, now)
        self._table.remembered(report.key, in_all)
        in_pause = report.again_unix_s is not None
        new = report.key not in self._told and not in_pause
        if in_pause:  # what it may do afterwards is decided anew
            self._told.pop(report.key, None)
        self._plan()
        if new:  # also a daemon that is killed must know of it
            self.keep()
        deadline_s = now + report.wait_s
        while self._table.serial(report.key) == report.seen:
            if (left_s := deadline_s - time.monotonic()) <= 0.0:
                break
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                break
            if self._is_late(report, uid):
                return TurnMessage()
            self._table.report(transfer, time.monotonic())  # it waits for us: it runs
        return self._turn(report.key)

    def listed(self) -> list[TransferInTable]:
        """Return all transfers, the earliest deadline first."""
        now = time.monotonic()
        self._plan()
        flows = {way: self._table.flows(way, now) for way in Direction}
        wake = self._d_lock.set_for
        return [
            TransferInTable.of(
                each,
                by,
                running=runs,
                turn=self._turn(each.key, flows[each.direction]),
                wakes_unix_s=wake.at_unix_s if wake is not None and wake.key == each.key else None,
            )
            for each, by, runs in self._table.rows(now)
        ]

    def networks_changed(self) -> None:
        """Plan anew: a plan is for the networks of its time."""
        self._plan()

    async def run(self) -> None:
        """Plan each second, until cancelled, while there is a transfer to plan."""
        carrying = False
        try:
            while True:
                await aligned_sleep(EPOCH_S)
                self._plan()
                now = time.monotonic()
                moving = self._table.moving(now)
                await self._d_lock.update(
                    moving, self._table.wake(now) if self._d_lock.wakes else None
                )
                carried, carrying = carrying, moving > 0
                every_s = _KEEP_CARRYING_S if carrying else _KEEP_S
                if carried != carrying or time.monotonic() - self._kept_s >= every_s:
                    self.keep()
        finally:
            self._d_lock.release()

    def keep(self) -> None:
        """Write the table, and what was learned of networks, for the next start."""
        self._kept_s = time.monotonic()
        kept = [
            [msgspec.to_builtins(each), by] for each, by, _ in self._table.rows(time.monotonic())
        ]
        state = {"rows": kept, "networks": self._table.networks.to_state()}
        state_file.write(self._file, state, _WHAT)

    def _restore(self) -> None:
        kept: Any = state_file.read(self._file, _WHAT)
        if not isinstance(kept, dict):
            return
        now = time.monotonic()
        self._table.networks.restore(kept.get("networks"), now)
        for row, by in rows(kept):
            self._table.restore(row, by, now)

    def _is_late(self, report: TransferReport, uid: int) -> bool:
        """Return whether a report was sent before its transfer's end but arrived after that."""
        return report.said_s <= self._ended_s.get((uid, report.key), -1.0)

    def _end(self, key: str, uid: int, said_s: float) -> None:
        self._ended_s.pop((uid, key), None)
        self._ended_s[uid, key] = said_s
        if len(self._ended_s) > _ENDED:
            del self._ended_s[next(iter(self._ended_s))]
        self._wake()  # its own last question, too
        for each, _, _ in self._table.rows(time.monotonic()):
            if each.key == key and each.uid == uid:
                self._table.end(key)
                self._told.pop(key, None)
                self._plan()
                self.keep()
                return

    def _seen(self) -> list[SeenNetwork]:
        context = self._context()
        barred, objective = self._barred(), self._objective()
        found = []
        for network in self._networks():
            known = context.networks.get(network.name, {})
            down = known.get("past10_bps") or known.get("delivery_down_bps")
            up_rate = known.get("past10_up_bps") or known.get("delivery_up_bps")
            price_s = objective.prices.data_rate(network.name)
            if network.metered:
                price_s += (
                    objective.s_per_metered_byte
                    if isinstance(objective, WeightedCost)
                    else _METERED_S
                )
            up = network.up and network.name not in barred
            up = up and why_dead(context, network.name) is None
            price_s = float("inf") if network.name in barred else price_s
            found.append(
                SeenNetwork(
                    network.name,
                    up,
                    price_s,
                    down.value if down is not None else None,
                    up_rate.value if up_rate is not None else None,
                )
            )
        return found

    def _plan(self) -> None:
        seen = self._seen()
        now = time.monotonic()
        changed = self._table.plan(seen, time.time(), now)
        taking_part = [
            each for each, _, runs in self._table.rows(now) if runs and each.again_unix_s is None
        ]
        if not changed and all(each.key in self._told for each in taking_part):
            return
        if changed:
            self._wake()
        for each in taking_part:
            serial = self._table.serial(each.key)
            if self._told.get(each.key, "new") == serial:
                continue
            self._told[each.key] = serial
            flows = self._table.flows(each.direction, now)
            flow = next(one for one in flows if one.key == each.key)
            turn = self._turn(each.key, flows)
            self._decided(each, turn, flow, flows, self._table.states(each.direction), now)

    def _wake(self) -> None:
        """Wake the requests that wait for another turn."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _turn(self, key: str, flows: Sequence[DeadlineFlow] | None = None) -> TurnMessage:
        interfaces = {each.name: each.interface for each in self._networks()}
        turn = turn_message(self._table, key, time.monotonic(), time.time(), flows)

        def named(names: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(interfaces.get(name, name) for name in names)

        return msgspec.structs.replace(
            turn,
            networks=named(turn.networks),
            metered=named(turn.metered),
            spare=named(turn.spare),
        )
