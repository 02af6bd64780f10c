"""The part that both sides' drivers have in common: the link, the timer, the gateway, the receipts."""

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import structlog

from cedos.apps.sharing.link_socket import LinkSocket
from cedos.apps.sharing.own_identity import AnswerKind, SharingClock, expected
from cedos.apps.sharing.protocol.accounting import OwnCounts
from cedos.apps.sharing.protocol.certificates import HostIdentity, Trust, UntrustedError
from cedos.apps.sharing.protocol.commands import (
    AddPath,
    HelperCommand,
    LinkAddress,
    RequestorCommand,
    SendDatagram,
    StartForwarding,
)
from cedos.apps.sharing.protocol.helper import HelperMachine
from cedos.apps.sharing.protocol.messages import unpack
from cedos.apps.sharing.protocol.receipts import read_receipt
from cedos.apps.sharing.protocol.requestor import RequestorMachine
from cedos.apps.sharing.questions import (
    Asked,
    AskFacts,
    AskReceipts,
    GatewayFacts,
    GivenReceipts,
    pack_question,
)
from cedos.apps.sharing.store import SharingStore
from cedos.errors import CedosError
from cedos.storage.sharing_status import write_status

T = TypeVar("T")
Command = HelperCommand | RequestorCommand

_LONGEST_S: Final = 1.0
_RECEIPTS_S: Final = 5.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Side:
    """The host of a driver.

    Attributes:
        identity, trust: who it is, and whose certificates it accepts.
        interface: of the shared link.
        ask: asks the gateway; CedosError: it does not answer.
        store: gets contracts and receipts.
        status: the file that `cedos share` reads.
    """

    identity: HostIdentity
    trust: Trust
    interface: str
    ask: Callable[[bytes], Awaitable[bytes]]
    store: SharingStore
    status: Path


Machine = TypeVar("Machine", RequestorMachine, HelperMachine)


class SideDriver(ABC, Generic[Machine]):
    """A side that shares while `run` does.

    Args:
        machine: decides what is done; this class sends its datagrams and wakes it in time.
        overhead: of the host's own counts, as for `OwnCounts`.
        listens: this side hears Invites.
    """

    def __init__(self, side: Side, machine: Machine, *, overhead: float, listens: bool) -> None:
        self._side = side
        self._machine: Machine = machine
        self._now_s = SharingClock().now_s
        self._counts = OwnCounts(side.identity.gateway, overhead=overhead)
        self._calls = KernelCalls()
        self._socket = LinkSocket(side.interface, self._receive, listens=listens)
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Share until it is cancelled; then leave all neighbours."""
        work = [self._follow_gateway(), *self._beside()]
        beside = [asyncio.get_running_loop().create_task(each) for each in work]
        try:
            await self._share()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self._machine.stop(self._now_s())
            self._obey()
            await self._left()
            self._set_timer(None)
            await self._calls.close()
            self._socket.close()
            self._side.status.unlink(missing_ok=True)

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what the person sees."""

    @abstractmethod
    async def _share(self) -> None:
        """Do this side's work, and write its status each second, until it is cancelled."""

    @abstractmethod
    def _carry_out(self, command: Command) -> None:
        """Begin to do what the machine commands."""

    def _beside(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what goes on beside `_share`."""
        return ()

    async def _left(self) -> None:
        """Return when the last neighbour is left for good."""

    def _obey(self) -> None:
        """Carry out what the machine commands; call it after each event."""
        for command in self._machine.commands():
            if isinstance(command, SendDatagram):
                self._socket.send(command.data, command.to)
            else:
                self._carry_out(command)
        self._set_timer(self._machine.next_timer())

    def _write_status(self) -> None:
        differences = [
            {"contract": each.contract.number.hex(), "bytes_more": each.bytes_more}
            for each in self._counts.differences()
        ]
        write_status(self._side.status, {**self.facts(), "differences": differences})

    def _keep(self, command: AddPath | StartForwarding) -> None:
        """Store the datagrams of a contract, and the certificates in them for the names."""
        store = self._side.store
        store.add_contract(command.contract.number, command.join, command.confirm)
        for each in (command.join, command.confirm):
            store.add_certificate(unpack(each).certificate)

    def _receive(self, data: bytes, source: LinkAddress) -> None:
        self._machine.receive_datagram(data, source, self._now_s())
        self._obey()

    def _set_timer(self, at_s: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_s is not None and at_s < math.inf:
            # Host clocks may be set, and the host may sleep: nothing is slept through for long.
            rest_s = min(max(at_s - self._now_s(), 0.0), _LONGEST_S)
            self._timer = asyncio.get_running_loop().call_later(rest_s, self._on_timer)

    def _on_timer(self) -> None:
        self._machine.handle_timer(self._now_s())
        self._obey()

    async def _follow_gateway(self) -> None:
        """Fetch withdrawn certificates and this host's receipts, again and again."""
        side = self._side
        while True:
            with suppress(CedosError):
                facts = await asked(side.ask, AskFacts(), GatewayFacts)
                try:
                    self._machine.on_revocations(facts.revocations, self._now_s())
                except UntrustedError as error:
                    _log.warning("revocations are not accepted", why=str(error))
                after = side.store.highest_serial(side.identity.gateway)
                given = await asked(side.ask, AskReceipts(after), GivenReceipts)
                for each in given.receipts:
                    try:
                        self._on_receipt(each)
                    except UntrustedError as error:
                        _log.warning("a receipt is not accepted", why=str(error))
            await asyncio.sleep(_RECEIPTS_S)

    def _on_receipt(self, data: bytes) -> None:
        receipt = read_receipt(data, self._side.identity.gateway)
        self._side.store.add([(receipt, data)])
        self._counts.on_receipt(data)


class KernelCalls:
    """Calls that block for up to half a second, one after the other, outside the event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "sharing")
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let work go on beside; what fails there is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    async def close(self) -> None:
        """Return when all calls have ended."""
        for _ in range(len(self._tasks) + 1):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("sharing fails", exc_info=error)


async def asked(
    ask: Callable[[bytes], Awaitable[bytes]], question: Asked, kind: type[AnswerKind]
) -> AnswerKind:
    """Ask the gateway. CedosError: it does not answer, or refuses."""
    return expected(await ask(pack_question(question)), kind)
