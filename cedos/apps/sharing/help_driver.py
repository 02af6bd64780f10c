"""The helper's driver: it runs the machine on the link, and has the kernel forward as it says."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any, Final

from cedos.apps.sharing.own_identity import SharingClock
from cedos.apps.sharing.protocol.accounting import LARGE_BYTES
from cedos.apps.sharing.protocol.commands import StartForwarding, StopForwarding
from cedos.apps.sharing.protocol.helper import HelperMachine, HelperTerms, Uplink
from cedos.apps.sharing.protocol.receipts import Receipt, read_receipt
from cedos.apps.sharing.side_driver import Command, Side, SideDriver
from cedos.errors import CedosError, SharingError
from cedos.host.steer.kernel.forwarding_filter import ForwardedRequestor
from cedos.host.steer.sharing.forwarding import NOTHING, Forwarding
from cedos.logs import BoundLogger, get_logger
from cedos.storage.sharing_status import write_status

_COUNT_S: Final = 2.0  # reading the counters starts a process
_UPLINK_S: Final = 10.0
_AGAIN_S, _TRIES = 1.0, 5
_OVERHEAD: Final = 0.1
_log: Final[BoundLogger] = get_logger()
_SUPPLIES: Final = Path("/sys/class/power_supply")


class HelpDriver(SideDriver[HelperMachine]):
    """A helper that helps while `run` does.

    Args:
        forwarding: the kernel's part; the caller undoes it.
        uplink: what a Join tells of this host's own network, now; None: there is none. It may block, so
            it is asked in a thread of its own.
    """

    def __init__(
        self,
        side: Side,
        terms: HelperTerms,
        forwarding: Forwarding,
        uplink: Callable[[], Uplink | None],
    ) -> None:
        machine = HelperMachine(
            side.identity, side.trust, terms, random=os.urandom, now_s=SharingClock().now_s()
        )
        super().__init__(side, machine, overhead=_OVERHEAD, listens=True)
        self._terms, self._forwarding, self._uplink = terms, forwarding, uplink
        self._started: dict[bytes, StartForwarding] = {}
        self._kept: set[bytes] = set()  # numbers of the contracts that are stored
        # The kernel follows the machine's order: a requestor may leave while its forwarding starts.
        self._turn = asyncio.Lock()
        self._alone = asyncio.Event()

    def facts(self) -> dict[str, Any]:
        """Return what the person sees."""
        return {
            "role": "help",
            "price": self._terms.price,
            "currency": self._terms.currency,
            "limit_bytes": self._terms.limit_bytes,
            "left_bytes": self._machine.left_bytes,
            "requestors": [
                {
                    "name": each.name,
                    "state": each.state.value,
                    "carried_bytes": each.carried_bytes,
                    "earned": each.earned,
                }
                for each in self._machine.requestors()
            ],
        }

    async def _share(self) -> None:
        _log.info("waits for neighbours", link=self._side.interface)
        while True:
            await self._calls.call(self._forwarding.check)
            await self._count()
            self._obey()
            write_status(self._side.status, self.facts())
            await asyncio.sleep(_COUNT_S)

    def _side_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        return [self._follow_uplink()]

    async def _follow_uplink(self) -> None:
        while True:
            try:
                uplink = await asyncio.to_thread(self._uplink)
            except (CedosError, OSError) as error:
                _log.warning("this host's network is not known", why=str(error))
                uplink = None
            self._machine.on_uplink(uplink, self._now_s())
            self._obey()
            await asyncio.sleep(_UPLINK_S)

    async def _wait_left(self) -> None:
        # What is on its way arrives yet; the machine's timer ends it.
        await self._alone.wait()

    def _on_receipt(self, data: bytes) -> Receipt:
        """Store a receipt; of a contract that this host has not kept, if others owe it to this host."""
        receipt, side = read_receipt(data, self._side.identity.gateway), self._side
        unknown = not (
            self._counts.has_contract(receipt.contract) or side.store.contract(receipt.contract)
        )
        if unknown and receipt.helper == side.identity.key.public:
            side.store.add([(receipt, data)])
            return receipt
        return super()._on_receipt(data)

    def _obey(self) -> None:
        super()._obey()
        if self._machine.requestors():
            self._alone.clear()
        else:
            self._alone.set()

    def _carry_out(self, command: Command) -> None:
        match command:
            case StartForwarding():
                self._calls.begin(self._start(command))
            case StopForwarding():
                self._calls.begin(self._stop(command))

    async def _start(self, command: StartForwarding) -> None:
        async with self._turn:
            try:
                admitted = await self._calls.call(lambda: self._admit(command))
                await self._calls.call(lambda: self._forwarding.admit(admitted))
            except (CedosError, OSError, ValueError) as error:
                _log.warning("a requestor cannot be helped", name=command.name, why=str(error))
                self._machine.on_not_forwarding(command.requestor, self._now_s())
            else:
                self._started[command.requestor] = command
                self._counts.on_contract(command.contract)
                _log.info("helps", name=command.name, source=str(admitted.address))
                self._machine.on_forwarding(command.requestor, self._now_s())
            self._obey()

    def _admit(self, command: StartForwarding) -> ForwardedRequestor:
        hardware = self._forwarding.hardware_address(ip_address(command.link[0]))
        if hardware is None:
            raise ValueError("the requestor's hardware address is not known")
        source, there = IPv4Address(command.source), IPv4Address(command.reaches.address)
        if not source.is_link_local:
            raise ValueError(f"{source} is no address of 169.254.0.0/16")
        return ForwardedRequestor(source, hardware, there, command.reaches.port)

    async def _stop(self, command: StopForwarding) -> None:
        async with self._turn:
            started = self._started.pop(command.requestor, None)
            if started is None:
                return
            source = IPv4Address(started.source)
            with suppress(OSError):
                counted = (await self._calls.call(self._forwarding.read_carried)).get(
                    source, NOTHING
                )
                self._keep_if_worth(started, counted.bytes)
                self._machine.on_stopped(counted.bytes - command.carried_bytes)
                self._counts.on_carried(
                    started.contract.number, counted.bytes, self._now_s(), packets=counted.packets
                )
            self._kept.discard(started.contract.number)
            for _ in range(_TRIES):  # another program may hold the lock of iptables
                try:
                    await self._calls.call(lambda: self._forwarding.dismiss(source))
                    break
                except OSError as error:
                    _log.error("the kernel forwards on", name=started.name, why=str(error))
                    await asyncio.sleep(_AGAIN_S)
        _log.info("helps no more", name=started.name, reason=command.reason.name.lower())

    def _keep_if_worth(self, command: StartForwarding, carried_bytes: int) -> None:
        """Store a contract, for good, once it has carried what is worth a receipt."""
        number = command.contract.number
        if carried_bytes < LARGE_BYTES or number in self._kept:
            return
        try:
            self._keep(command)
        except SharingError as error:
            _log.warning("a contract is not stored", name=command.name, why=str(error))
        else:
            self._kept.add(number)

    async def _count(self) -> None:
        if not self._started:
            return
        try:
            counted = await self._calls.call(self._forwarding.read_carried)
        except OSError as error:
            _log.warning("the kernel's counters cannot be read", why=str(error))
            return
        now_s = self._now_s()
        for requestor, each in list(self._started.items()):
            carried = counted.get(IPv4Address(each.source), NOTHING)
            self._keep_if_worth(each, carried.bytes)
            self._machine.on_counted(requestor, carried.bytes, now_s)
            self._counts.on_carried(
                each.contract.number, carried.bytes, now_s, packets=carried.packets
            )
            if self._counts.unpaid(each.contract.number, now_s):
                _log.warning("receipts do not come", name=each.name)
                self._machine.on_unpaid(requestor, now_s)


@dataclass(frozen=True, slots=True)
class Charge:
    """The charge of a host on battery power: a share of a full one, and seconds until it is empty."""

    level: float
    lasts_s: int | None = None


def read_charge(supplies: Path = _SUPPLIES) -> Charge | None:
    """Return the charge of the host's own battery; None: it has none, or mains power."""
    if not supplies.is_dir():
        return None
    for supply in sorted(supplies.iterdir()):
        # Batteries of mice and the like have the scope Device.
        if _word(supply / "type") != "Battery" or _word(supply / "scope") == "Device":
            continue
        level = _number(supply / "capacity")
        if level is None or _word(supply / "status") != "Discharging":
            continue
        return Charge(min(level, 100) / 100, _lasts_s(supply))
    return None


def _lasts_s(supply: Path) -> int | None:
    # In microwatt-hours and microwatts, else in microampere-hours and microamperes.
    for stored, drawn in (("energy_now", "power_now"), ("charge_now", "current_now")):
        left, rate = _number(supply / stored), _number(supply / drawn)
        if left is not None and rate:
            return 3600 * left // rate
    return None


def _word(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""


def _number(file: Path) -> int | None:
    word = _word(file).removeprefix("-")  # some drivers count what is drawn below zero
    return int(word) if word.isascii() and word.isdecimal() else None
