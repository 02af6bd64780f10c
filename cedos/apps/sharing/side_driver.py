"""The part that both sides' drivers have in common: the link, the timer, the gateway, the receipts."""

import asyncio
import math
import socket
import struct
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from cedos.apps.sharing.own_identity import AnswerKind, SharingClock, expect_answer
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
from cedos.apps.sharing.protocol.messages import GROUP, PORT, unpack
from cedos.apps.sharing.protocol.receipts import (
    Contract,
    Receipt,
    read_contract,
    read_receipt,
)
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
from cedos.errors import CedosError, HostError
from cedos.kernel.interface_socket import bind_to_interface
from cedos.logs import BoundLogger, get_logger

_MOST_BYTES: Final = 2_048
_AT_ONCE: Final = 32
_MEMBERSHIP: Final = struct.Struct("=4s4si")
T = TypeVar("T")
Command = HelperCommand | RequestorCommand
_LONGEST_S: Final = 1.0
_RECEIPTS_S: Final = 5.0
_AGAIN_S: Final = 1.0
_log: Final[BoundLogger] = get_logger()
Machine = TypeVar("Machine", RequestorMachine, HelperMachine)


class LinkSocket:
    """A socket bound to an interface, within the event loop.

    Args:
        interface: of the shared link.
        received: takes each datagram and its sender.
        listens: take Invites: a helper's. A requestor's socket has a port of its own.

    Raises:
        HostError: no socket can be opened there.
    """

    def __init__(
        self, interface: str, received: Callable[[bytes, LinkAddress], None], *, listens: bool
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._received = received
        self._index = _index(interface)
        self._socket = socket.socket(
            socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        try:
            self._prepare(interface, listens)
        except OSError as error:
            self._socket.close()
            why = error.strerror or str(error)
            raise HostError(f"nothing can be sent to neighbours over {interface}: {why}") from error
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def send(self, data: bytes, to: LinkAddress | None) -> None:
        """Send a datagram; None: to the group. What the kernel refuses is lost, as on any link."""
        with suppress(OSError):
            self._socket.sendto(data, (GROUP, PORT) if to is None else to[:2])

    def close(self) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    def _prepare(self, interface: str, listens: bool) -> None:
        opened = self._socket
        bind_to_interface(opened, interface)
        member = _MEMBERSHIP.pack(bytes(4), bytes(4), self._index)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
        opened.bind(("", PORT if listens else 0))
        if listens:
            member = _MEMBERSHIP.pack(socket.inet_aton(GROUP), bytes(4), self._index)
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):  # the rest has its turn after the loop's other work
            try:
                data, (address, port) = self._socket.recvfrom(_MOST_BYTES)
            except OSError:
                return
            self._received(data, (address, port, self._index))


def _index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        raise HostError(f"there is no interface {interface}") from None


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
        self._refused = 0  # the last serial of a receipt that was not accepted
        self._calls = KernelCalls()
        self._socket = LinkSocket(side.interface, self._receive, listens=listens)
        self._timer: asyncio.TimerHandle | None = None

    async def run(self) -> None:
        """Share until it is cancelled; then leave all neighbours."""
        work = [self._follow_gateway(), *self._side_tasks()]
        beside = [asyncio.get_running_loop().create_task(each) for each in work]
        try:
            await self._share()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            self._machine.stop(self._now_s())
            self._obey()
            await self._wait_left()
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

    def _side_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return what goes on beside `_share`."""
        return ()

    async def _wait_left(self) -> None:
        """Return when the last neighbour is left for good."""

    def _obey(self) -> None:
        """Carry out what the machine commands; call it after each event."""
        for command in self._machine.commands():
            if isinstance(command, SendDatagram):
                self._socket.send(command.data, command.to)
            else:
                self._carry_out(command)
        self._set_timer(self._machine.next_timer())

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

    def _on_answer(self) -> None:
        """Take it that the gateway answers."""

    def _on_no_answer(self) -> None:
        """Take it that the gateway has not answered a question in time."""

    async def _follow_gateway(self) -> None:
        """Fetch withdrawn certificates and this host's receipts, again and again."""
        while True:
            try:
                await self._ask_gateway()
                await asyncio.sleep(_RECEIPTS_S)
            except CedosError:
                await asyncio.sleep(_AGAIN_S)

    async def _hear(self, question: bytes) -> bytes:
        """Return what the gateway says, be it a refusal. CedosError: it does not answer."""
        try:
            answer = await self._side.ask(question)
        except CedosError:
            self._on_no_answer()
            raise
        self._on_answer()
        return answer

    async def _ask_gateway(self) -> None:
        side = self._side
        facts = await ask_gateway(self._hear, AskFacts(), GatewayFacts)
        try:
            self._machine.on_revocations(facts.revocations, self._now_s())
        except UntrustedError as error:
            _log.warning("revocations are not accepted", why=str(error))
        after = max(side.store.highest_serial(side.identity.gateway), self._refused)
        given = await ask_gateway(self._hear, AskReceipts(after), GivenReceipts)
        for each in given.receipts:
            try:
                self._on_receipt(each)
            except UntrustedError as error:
                # The next ones are asked for all the same.
                with suppress(UntrustedError):
                    self._refused = read_receipt(each, side.identity.gateway).serial
                _log.warning("a receipt is not accepted", why=str(error))

    def _on_receipt(self, data: bytes) -> Receipt:
        """Store a receipt that is by its contract. UntrustedError: it is not."""
        receipt = self._counts.on_receipt(data, self._kept_contract)
        self._side.store.add([(receipt, data)])
        return receipt

    def _kept_contract(self, number: bytes) -> Contract | None:
        """Return a contract that a process before this one has stored."""
        kept = self._side.store.contract(number)
        if kept is None:
            return None
        return read_contract(*kept, self._side.trust, unpack(kept[0]).message.sent_us / 1e6)


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
        task.add_done_callback(self._on_done)

    async def close(self) -> None:
        """Return when all calls have ended."""
        for _ in range(len(self._tasks) + 1):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._thread.shutdown()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("sharing fails", exc_info=error)


async def ask_gateway(
    ask: Callable[[bytes], Awaitable[bytes]], question: Asked, kind: type[AnswerKind]
) -> AnswerKind:
    """Ask the gateway. CedosError: it does not answer, or refuses."""
    return expect_answer(await ask(pack_question(question)), kind)
