"""The helper's driver: it runs the machine on the link, and has the kernel forward as it says."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any, Final

import structlog

from cedos.apps.sharing.drivers import (
    Ask,
    KernelCalls,
    MachineTimer,
    follow_gateway,
    keep_contract,
    write_status,
)
from cedos.apps.sharing.link_socket import LinkSocket
from cedos.apps.sharing.own_identity import SharingClock
from cedos.apps.sharing.protocol.accounting import OwnCounts
from cedos.apps.sharing.protocol.certificates import HostIdentity, Trust
from cedos.apps.sharing.protocol.commands import (
    LinkAddress,
    SendDatagram,
    StartForwarding,
    StopForwarding,
)
from cedos.apps.sharing.protocol.helper import HelperMachine, HelperTerms, Uplink
from cedos.apps.sharing.protocol.receipts import read_receipt
from cedos.apps.sharing.store import SharingStore
from cedos.errors import CedosError
from cedos.host.steer.kernel.forwarding_filter import ForwardedRequestor
from cedos.host.steer.sharing.forwarding import NOTHING, Forwarding

_COUNT_S: Final = 1.0
_UPLINK_S: Final = 10.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class HelpDriver:
    """A helper that helps while `run` does.

    Args:
        identity, trust: of this host.
        forwarding: the kernel's part; the caller undoes it.
        interface: of the shared link.
        uplink: what a Join tells of this host's own network, now; None: there is none.
        ask: asks the gateway.
        store: gets receipts.
        status: the file that `cedos share` reads.
    """

    def __init__(
        self,
        identity: HostIdentity,
        trust: Trust,
        terms: HelperTerms,
        forwarding: Forwarding,
        interface: str,
        uplink: Callable[[], Uplink | None],
        ask: Ask,
        store: SharingStore,
        status: Path,
    ) -> None:
        self._now_s = SharingClock().now_s
        self._machine = HelperMachine(
            identity, trust, terms, random=os.urandom, now_s=self._now_s()
        )
        self._gateway = identity.gateway
        self._terms, self._forwarding, self._uplink = terms, forwarding, uplink
        self._ask, self._store, self._status = ask, store, status
        self._counts = OwnCounts(identity.gateway)
        self._calls = KernelCalls()
        self._started: dict[bytes, StartForwarding] = {}
        self._socket = LinkSocket(interface, self._receive, listens=True)
        self._timer = MachineTimer(self._machine, self._now_s, self._obey)
        self._interface = interface
        self._heard: LinkAddress | None = None
        self._left = asyncio.Event()

    async def run(self) -> None:
        """Help until it is cancelled; then leave all requestors."""
        gateway = asyncio.get_running_loop().create_task(
            follow_gateway(
                self._ask,
                lambda: self._store.highest_serial(self._gateway),
                lambda data: self._machine.on_revocations(data, self._now_s()),
                self._on_receipt,
            )
        )
        _log.info("waits for neighbours", link=self._interface)
        tick = 0
        try:
            while True:
                if tick % int(_UPLINK_S / _COUNT_S) == 0:
                    self._machine.on_uplink(await self._calls.call(self._uplink), self._now_s())
                tick += 1
                await self._count()
                self._obey()
                write_status(self._status, self.facts())
                await asyncio.sleep(_COUNT_S)
        finally:
            gateway.cancel()
            await asyncio.gather(gateway, return_exceptions=True)
            self._machine.stop(self._now_s())
            self._obey()
            # What is on its way arrives yet; the machine's timer ends it.
            await self._left.wait()
            self._timer.close()
            await self._calls.close()
            self._socket.close()
            self._status.unlink(missing_ok=True)

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
            "differences": [
                {"contract": each.contract.number.hex(), "bytes_more": each.bytes_more}
                for each in self._counts.differences()
            ],
        }

    def _receive(self, data: bytes, source: LinkAddress) -> None:
        self._heard = source
        self._machine.receive_datagram(data, source, self._now_s())
        self._obey()
        self._heard = None

    def _obey(self) -> None:
        for command in self._machine.commands():
            match command:
                case SendDatagram():
                    self._socket.send(command.data, command.to)
                case StartForwarding():
                    # (The machine starts only on a Confirm, whose sender this is.)
                    self._calls.begin(self._start(command, self._heard))
                case StopForwarding():
                    self._calls.begin(self._stop(command))
        self._timer.arm()
        if not self._machine.requestors():
            self._left.set()
        else:
            self._left.clear()

    async def _start(self, command: StartForwarding, link: LinkAddress | None) -> None:
        try:
            admitted = await self._calls.call(lambda: self._admitted(command, link))
            await self._calls.call(lambda: self._forwarding.admit(admitted))
        except (CedosError, OSError, ValueError) as error:
            _log.warning("a requestor cannot be helped", name=command.name, why=str(error))
            self._machine.on_not_forwarding(command.requestor, self._now_s())
        else:
            self._started[command.requestor] = command
            self._counts.on_contract(command.contract)
            keep_contract(self._store, command.contract, command.join, command.confirm)
            _log.info("helps", name=command.name, source=str(admitted.address))
            self._machine.on_forwarding(command.requestor, self._now_s())
        self._obey()

    def _admitted(self, command: StartForwarding, link: LinkAddress | None) -> ForwardedRequestor:
        hardware = None if link is None else self._forwarding.hardware_address(ip_address(link[0]))
        if hardware is None:
            raise ValueError("the requestor's hardware address is not known")
        if len(command.source) != 4:
            raise ValueError("only IPv4 is forwarded")
        gateway = next((each for each in command.reaches if len(each.address) == 4), None)
        if gateway is None:
            raise ValueError("the gateway has no IPv4 address")
        source, there = IPv4Address(command.source), IPv4Address(gateway.address)
        if not source.is_link_local:
            raise ValueError(f"{source} is no address of 169.254.0.0/16")
        return ForwardedRequestor(source, hardware, there, gateway.port)

    async def _stop(self, command: StopForwarding) -> None:
        started = self._started.pop(command.requestor, None)
        if started is None:
            return
        source = IPv4Address(started.source)
        with suppress(OSError):
            counted = (await self._calls.call(self._forwarding.carried)).get(source, NOTHING)
            self._machine.on_stopped(counted.bytes - command.carried_bytes)
            self._counts.on_carried(
                started.contract.number, counted.bytes, self._now_s(), packets=counted.packets
            )
        await self._calls.call(lambda: self._forwarding.dismiss(source))
        _log.info("helps no more", name=started.name, reason=command.reason.name.lower())

    async def _count(self) -> None:
        if not self._started:
            return
        try:
            counted = await self._calls.call(self._forwarding.carried)
        except OSError as error:
            _log.warning("the kernel's counters cannot be read", why=str(error))
            return
        now_s = self._now_s()
        for requestor, each in list(self._started.items()):
            carried = counted.get(IPv4Address(each.source), NOTHING)
            self._machine.on_counted(requestor, carried.bytes, now_s)
            self._counts.on_carried(
                each.contract.number, carried.bytes, now_s, packets=carried.packets
            )
            if self._counts.unpaid(each.contract.number, now_s):
                _log.warning("receipts do not come", name=each.name)
                self._machine.on_unpaid(requestor, now_s)

    def _on_receipt(self, data: bytes) -> None:
        receipt = read_receipt(data, self._gateway)
        self._store.add([(receipt, data)])
        self._counts.on_receipt(data)
