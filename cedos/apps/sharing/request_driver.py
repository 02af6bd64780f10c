"""The requestor's driver: it runs the machine on the link, and makes a path by each helper."""

import asyncio
import math
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Final

from cedos.api.budgets import BudgetMessage
from cedos.apps.sharing.own_identity import SharingClock
from cedos.apps.sharing.protocol.accounting import PERIOD_S
from cedos.apps.sharing.protocol.commands import (
    AddPath,
    OfferRefused,
    RemovePath,
    ResumePath,
    SuspendPath,
    TakeAddress,
)
from cedos.apps.sharing.protocol.receipts import Receipt
from cedos.apps.sharing.protocol.requestor import RequestorMachine, RequestorWish
from cedos.apps.sharing.questions import (
    AskRates,
    AskWaiting,
    DeclarePath,
    GivenRates,
    GivenWaiting,
    PathDeclared,
)
from cedos.apps.sharing.side_driver import Command, Side, SideDriver, ask_gateway
from cedos.errors import CedosError
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.host.steer.sharing.helper_paths import HelperPaths
from cedos.logs import BoundLogger, get_logger
from cedos.model import FlowKey
from cedos.storage.sharing_status import write_status

_LOOK_S: Final = 0.2
_STATUS_S: Final = 1.0
_SEGMENT_BYTES: Final = 1448
_BUSY_BYTES: Final = 10_000  # in the time between two looks
_IDLE_SHARE: Final = 0.05
_RATES_S: Final = 60.0
_log: Final[BoundLogger] = get_logger()
_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class _Way:
    """A path in use.

    `ended_bytes`: of its connections that are gone. `waiting_bytes` wait here, `waiting_there_bytes` at
    the gateway, as it said last.
    """

    command: AddPath
    living: dict[FlowKey, int]
    ended_bytes: int = 0
    waiting_bytes: int = 0
    waiting_there_bytes: int = 0
    told_bytes: int = 0
    declared_s: float = -math.inf

    @property
    def carried_bytes(self) -> int:
        return self.ended_bytes + sum(self.living.values())


def idle_beside(carried_bytes: Mapping[bytes, int]) -> list[bytes]:
    """Return the helpers that carried next to nothing while another one was busy.

    The far end's data may wait for them, which this host cannot see, or there may be none.
    """
    most_bytes = max(carried_bytes.values(), default=0)
    if most_bytes < _BUSY_BYTES:
        return []
    return [helper for helper, count in carried_bytes.items() if count < _IDLE_SHARE * most_bytes]


class RequestDriver(SideDriver[RequestorMachine]):
    """A requestor that uses helpers while `run` does.

    Args:
        paths: the kernel's part; the caller undoes it.
        spent: names a hard budget that is used up, so that no helper may be used; "": none is.
    """

    def __init__(
        self, side: Side, wish: RequestorWish, paths: HelperPaths, spent: Callable[[], str]
    ) -> None:
        machine = RequestorMachine(
            side.identity, side.trust, wish, random=os.urandom, now_s=SharingClock().now_s()
        )
        # Its counts are of payload, as the gateway's.
        super().__init__(side, machine, overhead=0.0, listens=False)
        self._wish, self._paths, self._spent = wish, paths, spent
        self._barred = ""
        self._ways: dict[bytes, _Way] = {}
        self._asks_waiting = False

    def facts(self) -> dict[str, Any]:
        """Return what the person sees."""
        return {
            "role": "request",
            "wanted_bps": self._wish.rate_bps,
            "budget": self._wish.budget,
            "currency": self._wish.currency,
            "spent": self._machine.spent,
            "barred_by": self._barred,
            "helpers": [
                {
                    "name": each.name,
                    "state": each.state.value,
                    "address": self._source(each.helper),
                    "price": each.price,
                    "rate_bps": each.rate_bps,
                    "carried_bytes": each.carried_bytes,
                    "amount": each.amount,
                    "left_bytes": each.left_bytes,
                }
                for each in self._machine.helpers()
            ],
        }

    def _source(self, helper: bytes) -> str:
        way = self._ways.get(helper)
        return "" if way is None else str(IPv4Address(way.command.source))

    def _is_ours(self, address: object) -> bool:
        return any(address == IPv4Address(it.command.source) for it in self._ways.values())

    def _side_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._follow_rates(), self._declare()]

    async def _share(self) -> None:
        _log.info("looks for helpers", link=self._side.interface)
        self._machine.start(self._now_s())
        self._obey()
        async with FlowMonitor(self._is_ours) as flows:
            await self._watch(flows)

    def _carry_out(self, command: Command) -> None:
        match command:
            case OfferRefused():
                price = f"{command.price / 1e6:.2f}{command.currency}/GB"
                _log.info("does not accept an offer", name=command.name, price=price)
            case TakeAddress():
                self._calls.begin(self._take(command))
            case AddPath():
                self._calls.begin(self._add(command))
            case RemovePath():
                self._calls.begin(self._remove(command))
            case SuspendPath():
                self._calls.begin(self._prefer(command.helper, False))
            case ResumePath():
                self._calls.begin(self._prefer(command.helper, True))

    async def _take(self, command: TakeAddress) -> None:
        try:
            found = await self._calls.call(self._paths.new_address)
        except (CedosError, OSError, ValueError) as error:
            _log.warning("no address for a helper", why=str(error))
            self._machine.on_no_address(command.helper, self._now_s())
        else:
            self._machine.on_address(command.helper, found.packed, self._now_s())
        self._obey()

    async def _add(self, command: AddPath) -> None:
        via, there = IPv4Address(command.via), IPv4Address(command.reaches.address)
        source, price = IPv4Address(command.source), command.contract.price
        self._counts.on_contract(command.contract)
        self._ways[command.helper] = _Way(command, {})
        try:
            self._keep(command)
            await self._calls.call(lambda: self._paths.add(via, there, source, price))
        except (CedosError, OSError, ValueError) as error:
            _log.warning("no path by a helper", name=command.name, why=str(error))
            self._machine.on_no_path(command.helper, self._now_s())
            self._obey()
            return
        _log.info("has a helper", name=command.name, source=str(source))

    async def _declare(self) -> None:
        """Tell the gateway which contract each path is about; without it the helper is not paid.

        A gateway that began again does not know it: it is told again in each period.
        """
        while True:
            for way in list(self._ways.values()):
                command, now_s = way.command, self._now_s()
                if now_s - way.declared_s >= PERIOD_S:
                    question = DeclarePath(command.source, command.join, command.confirm)
                    with suppress(CedosError):
                        await ask_gateway(self._side.ask, question, PathDeclared)
                        way.declared_s = now_s
            await asyncio.sleep(_LOOK_S)

    async def _follow_rates(self) -> None:
        """Ask the gateway what its map says of the helpers that offer, once there is a way to it."""
        told_s: dict[bytes, float] = {}
        while True:
            now_s = self._now_s()
            told_s = {helper: at_s for helper, at_s in told_s.items() if now_s - at_s < _RATES_S}
            new = tuple(it.helper for it in self._machine.helpers() if it.helper not in told_s)
            if new:
                with suppress(CedosError):
                    given = await ask_gateway(self._side.ask, AskRates(new), GivenRates)
                    for helper, rate_bps in zip(new, given.rates_bps, strict=False):
                        told_s[helper] = now_s
                        if rate_bps is not None:
                            self._machine.on_history(helper, rate_bps, self._now_s())
                    self._obey()
            await asyncio.sleep(_LOOK_S)

    def _on_receipt(self, data: bytes) -> Receipt:
        receipt = super()._on_receipt(data)
        self._machine.on_receipt(receipt.contract, receipt.total_bytes, self._now_s())
        self._obey()
        return receipt

    def _on_answer(self) -> None:
        self._machine.on_answer(self._now_s())

    def _on_no_answer(self) -> None:
        self._machine.on_no_answer(self._now_s())
        self._obey()

    async def _prefer(self, helper: bytes, preferred: bool) -> None:
        """Let sessions send new data by a helper, or what they have begun alone."""
        if (way := self._ways.get(helper)) is not None:
            address = IPv4Address(way.command.source)
            await self._calls.call(lambda: self._paths.prefer(address, preferred))

    async def _remove(self, command: RemovePath) -> None:
        if (way := self._ways.pop(command.helper, None)) is None:
            return
        address = IPv4Address(way.command.source)
        await self._calls.call(lambda: self._paths.remove(address))
        said = "a helper leaves" if command.by_helper else "leaves a helper"
        _log.info(said, name=way.command.name, reason=command.reason.name.lower())

    async def _watch(self, flows: FlowMonitor) -> None:
        written_s, spent_up = 0.0, False
        while True:
            with suppress(OSError, TimeoutError):
                await self._look(flows)
            self._keep_budget()
            self._obey()
            if self._machine.spent_up and not spent_up:
                _log.warning("the budget is spent; no helper is used any more")
            spent_up = self._machine.spent_up
            now_s = self._now_s()
            if now_s - written_s >= _STATUS_S:
                written_s = now_s
                write_status(self._side.status, self.facts())
            await asyncio.sleep(_LOOK_S)

    def _keep_budget(self) -> None:
        """Leave all helpers while a hard budget of the daemon is used up."""
        before, self._barred = self._barred, self._spent()
        if self._barred == before:
            return
        if not before:
            _log.warning("a hard budget is used up; no helper is used", budget=self._barred)
            self._machine.stop(self._now_s())
        elif not self._barred and not self._machine.spent_up:
            self._machine.start(self._now_s())
        # The status names the reason before the helpers go.
        write_status(self._side.status, self.facts())

    async def _look(self, flows: FlowMonitor) -> None:
        """Read what the kernel's connections over each path have carried."""
        samples = await flows.snapshot()
        now_s = self._now_s()
        more: dict[bytes, int] = {}
        for helper, way in list(self._ways.items()):
            source = IPv4Address(way.command.source)
            mine = [
                each
                for each in samples
                if each.key.local == source
                and each.key.remote.packed == way.command.reaches.address
            ]
            living = {each.key: each.bytes_down + each.bytes_up for each in mine}
            way.ended_bytes += sum(count for key, count in way.living.items() if key not in living)
            before_bytes, way.living = way.told_bytes, living
            way.told_bytes = way.carried_bytes
            more[helper] = way.carried_bytes - before_bytes
            way.waiting_bytes = _SEGMENT_BYTES * sum(each.unacknowledged for each in mine)
            self._counts.on_carried(way.command.contract.number, way.carried_bytes, now_s)
            self._tell_traffic(way)
        idle = idle_beside(more)
        for helper, way in self._ways.items():
            if helper not in idle:
                way.waiting_there_bytes = 0
        if idle and not self._asks_waiting:
            self._asks_waiting = True
            self._calls.begin(self._ask_waiting(idle))

    async def _ask_waiting(self, idle: list[bytes]) -> None:
        """Ask the gateway whether data for this host waits there that these helpers do not bring."""
        ways = [way for helper in idle if (way := self._ways.get(helper)) is not None]
        try:
            question = AskWaiting(tuple(way.command.source for way in ways))
            given = await ask_gateway(self._side.ask, question, GivenWaiting)
        except CedosError:
            return
        finally:
            self._asks_waiting = False
        for way, waiting_bytes in zip(ways, given.waiting_bytes, strict=False):
            way.waiting_there_bytes = waiting_bytes
            # The time in which something must come begins now, and not with the next look.
            self._tell_traffic(way)
        self._obey()

    def _tell_traffic(self, way: _Way) -> None:
        waiting_bytes = max(way.waiting_bytes, way.waiting_there_bytes)
        helper = way.command.helper
        self._machine.on_traffic(helper, way.carried_bytes, waiting_bytes, self._now_s())


class MoneyBudgets:
    """The daemon's hard budgets of money, as of lately.

    Args:
        budgets: asks the daemon; CedosError: none answers. It may block.

    Attributes:
        spent: the name of one that is used up, so that no helper may be used; or "".
    """

    def __init__(self, budgets: Callable[[], list[BudgetMessage]]) -> None:
        self._budgets = budgets
        self.spent = ""

    def ask(self) -> None:
        """Ask the daemon; without one there is no such budget."""
        try:
            budgets = [each for each in self._budgets() if each.resource == "money"]
        except CedosError:
            budgets = []
        # Without a helper the daemon has no price for money, so the use counts, and not `spent_up`.
        spent = (it.name for it in budgets if it.hard and not it.over and it.spent >= it.supply)
        self.spent = next(spent, "")

    async def follow(self) -> None:
        """Ask every second, until it is cancelled."""
        while True:
            await asyncio.to_thread(self.ask)
            await asyncio.sleep(_AGAIN_S)
