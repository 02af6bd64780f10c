"""The helper's driver: the kernel forwards for those whom the machine serves, and for nobody else."""

import asyncio
import os
import signal
import threading
import time
from ipaddress import IPv4Address, IPv4Interface
from types import SimpleNamespace
from unittest.mock import MagicMock

import msgspec
import pytest
from kit.neighbours import GATEWAY, identity, key_of, trust, uplink
from kit.waiting import until

from cedos.apps.sharing import help_driver, side_driver
from cedos.apps.sharing.help_driver import HelpDriver
from cedos.apps.sharing.protocol.certificates import UntrustedError
from cedos.apps.sharing.protocol.helper import HelperTerms
from cedos.apps.sharing.protocol.messages import (
    ConfirmMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    pack,
    unpack,
)
from cedos.apps.sharing.protocol.receipts import Receipt, sign_receipt
from cedos.apps.sharing.side_driver import Side
from cedos.apps.sharing.store import SharingStore
from cedos.commands.sharing import sides
from cedos.commands.sharing.sides import _UplinkFacts
from cedos.errors import DaemonUnreachableError, SharingError, SteeringError
from cedos.host.steer.kernel.iptables import Counted
from cedos.host.steer.sharing.kernel import SharingRole
from cedos.kernel.rtnetlink import Link

SOURCE = IPv4Address("169.254.7.7")
WHERE = ("169.254.0.9", 7, 1)


class _Link:
    """A socket that keeps what is sent."""

    def __init__(self, _interface, received, *, listens):
        self.received, self.sent = received, list[bytes]()

    def send(self, data, _to):
        self.sent.append(data)

    def close(self): ...


class _Kernel:
    """The forwarding of a kernel that takes a moment for each call."""

    def __init__(self):
        self.open = {}
        self.bytes = 1000
        self.refusals = 0
        self.changed = False

    def check(self):
        if self.changed:
            raise SteeringError("another program has changed the packet filter")

    def hardware_address(self, _requestor):
        time.sleep(0.01)
        return b"\2\0\0\0\0\1"

    def admit(self, requestor):
        time.sleep(0.01)
        self.open[requestor.address] = requestor

    def dismiss(self, address):
        if self.refusals:
            self.refusals -= 1
            raise OSError("another program holds the lock of iptables")
        self.open.pop(address, None)

    def read_carried(self):
        return {each: Counted(1, self.bytes) for each in self.open}


@pytest.fixture
def helping(tmp_path, monkeypatch):
    monkeypatch.setattr(side_driver, "LinkSocket", _Link)

    async def ask(_question):
        raise AssertionError("the gateway is not asked")

    store = SharingStore(tmp_path / "sharing")
    side = Side(
        identity("bob", now_s=time.time()), trust(), "wlan0", ask, store, tmp_path / "status"
    )
    made = HelpDriver(side, HelperTerms(1, 10**9), _Kernel(), lambda: None)
    made._machine.on_uplink(uplink(1), time.time())
    return made


def confirmed(helping):
    """Return a contract's number, and what sends the requestor's further messages."""
    ann, bob = identity("ann", now_s=time.time()), helping._side.identity.key.public
    link, now_us = helping._socket, int(time.time() * 1e6)

    def say(kind, *fields):
        nonlocal now_us
        now_us += 1
        link.received(pack(ann, kind(now_us, os.urandom(16), *fields)), WHERE)

    say(InviteMessage, 1)
    join = unpack(link.sent[-1])
    assert isinstance(join.message, JoinMessage)
    say(ConfirmMessage, bob, join.message.nonce, join.digest, SOURCE.packed)
    return join.digest, lambda reason: say(LeaveMessage, bob, reason)


async def test_a_requestor_that_leaves_before_the_kernel_forwards_is_not_forwarded_for(helping):
    _, leave = confirmed(helping)
    leave(LeaveReason.DONE)
    await until(lambda: not helping._calls._tasks)
    assert helping._machine.requestors() == []
    assert helping._forwarding.open == {}, "it is not counted, and no receipt is missed"


async def test_contracts_that_carry_nothing_take_no_disk(helping):
    number, leave = confirmed(helping)
    await until(lambda: SOURCE in helping._forwarding.open)
    await helping._count()
    assert helping._side.store.contract(number) is None
    helping._forwarding.bytes = 40_000
    await helping._count()
    assert helping._side.store.contract(number) is not None
    leave(LeaveReason.DONE)
    await until(lambda: not helping._calls._tasks)


async def test_a_contract_is_stored_once_the_disk_takes_it(helping, monkeypatch):
    """Try again: where the disk was full at the first try, the helper's receipts were refused."""
    number, leave = confirmed(helping)
    await until(lambda: SOURCE in helping._forwarding.open)
    helping._forwarding.bytes = 40_000
    with monkeypatch.context() as full:
        full.setattr(helping, "_keep", MagicMock(side_effect=SharingError("No space left")))
        await helping._count()
    await helping._count()
    assert helping._side.store.contract(number) is not None
    leave(LeaveReason.DONE)
    await until(lambda: not helping._calls._tasks)


async def test_a_requestor_that_left_is_not_forwarded_for_once_the_kernel_takes_it(
    helping, monkeypatch
):
    """Refused once, the kernel forwarded on until the helper stopped, and no count knew it."""
    monkeypatch.setattr(help_driver, "_AGAIN_S", 0.0)
    _, leave = confirmed(helping)
    await until(lambda: SOURCE in helping._forwarding.open)
    helping._forwarding.refusals = 2
    leave(LeaveReason.DONE)
    await until(lambda: not helping._calls._tasks)
    assert helping._forwarding.open == {}


async def test_helping_ends_once_others_change_what_bounds_it(helping):
    """End it: helping went on, and strangers' packets were forwarded."""
    confirmed(helping)
    await until(lambda: SOURCE in helping._forwarding.open)
    helping._forwarding.changed = True
    with pytest.raises(SteeringError, match="the packet filter"):
        await asyncio.wait_for(helping.run(), 10)
    assert helping._forwarding.open == {}
    assert isinstance(unpack(helping._socket.sent[-1]).message, LeaveMessage)


async def test_a_look_up_that_hangs_keeps_no_requestor(helping, monkeypatch):
    """Check beside it: the driver neither checked nor ended forwarding while it looked up the gateway."""
    monkeypatch.setattr(help_driver, "_COUNT_S", 0.01)
    confirmed(helping)
    await until(lambda: SOURCE in helping._forwarding.open)
    answered = threading.Event()
    helping._uplink = answered.wait
    running = asyncio.ensure_future(helping.run())
    await asyncio.sleep(0.05)
    helping._forwarding.changed = True
    try:
        with pytest.raises(SteeringError):
            await asyncio.wait_for(asyncio.shield(running), 5)
    finally:
        answered.set()
    assert helping._forwarding.open == {}


async def test_a_second_signal_waits_for_the_kernel_s_part(tmp_path, monkeypatch):
    """Else the thread that changes the kernel went on after all was undone."""
    ends = []

    async def run(_link, _store, _status):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.1)
            ends.append("closed")

    monkeypatch.setattr(sides, "_join_gateway", lambda: None)
    monkeypatch.setattr(sides, "GatewayLink", lambda *_, **__: None)
    places = SimpleNamespace(state=tmp_path, runtime=tmp_path)
    monkeypatch.setattr(sides, "directories", lambda: places)
    await sides._until_signal(SharingRole.HELP, run)
    assert ends == ["closed"]


@pytest.mark.parametrize("barred", ["", "A hard budget is spent", None])
def test_a_barred_uplink_is_no_uplink(barred):
    """Offer no uplink to requestors, who saw an active helper through which nothing passed."""
    links = {
        name: Link(number, name, "", 1, 0x1_0043)
        for number, name in enumerate(("wlan0", "lte0"), 1)
    }
    own = SimpleNamespace(index=1, interface=IPv4Interface("169.254.1.1/16"), protocol=0)
    kernel = SimpleNamespace(links=lambda: list(links.values()), addresses=lambda: [own])

    def networks():
        if barred is None:
            raise DaemonUnreachableError("no daemon answers")
        return [
            SimpleNamespace(interface="wlan0", barred="A"),
            SimpleNamespace(interface="lte0", barred=barred),
        ]

    gateway = SimpleNamespace(host="127.0.0.1", port=7009)
    facts = _UplinkFacts(kernel, gateway, "wlan0", "lte0", None, networks)
    assert (facts.read() is None) is bool(barred)


async def test_a_helper_keeps_what_it_is_owed_by_contracts_that_it_has_not_kept(
    tmp_path, monkeypatch
):
    """End its process before the contract is stored: it refused 2.8 MB of receipts."""
    monkeypatch.setattr(side_driver, "LinkSocket", lambda *_args, **_more: None)
    store, ann, bob = SharingStore(tmp_path / "s"), key_of("ann").public, key_of("bob").public
    side = Side(identity("bob"), trust(), "wlan0", None, store, tmp_path / "status")
    made = HelpDriver(side, HelperTerms(500_000, 10**9), None, lambda: None)
    told = Receipt(GATEWAY.public, 1, ann, bob, b"n" * 32, 1, 2, 0, 10**6, 10**6, 500, "EUR")
    made._on_receipt(sign_receipt(told, GATEWAY))
    with pytest.raises(UntrustedError):
        made._on_receipt(sign_receipt(msgspec.structs.replace(told, serial=2, helper=ann), GATEWAY))
    assert store.receipts() == [told]
    await made._calls.close()
