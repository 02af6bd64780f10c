"""Random walks of a requestor, helpers and a gateway with their real drivers, beside a malicious member.

Each walk is one seed. Time jumps; the link loses, doubles, delays and reorders; a member with a
certificate replays, changes and forges. No helper ever forwards without a signed contract, and no
stranger's datagram changes anything. In the end the receipts are what the gateway counted, at a price
that both signed, within the requestor's budget, and no kernel has anything left.
"""

import asyncio
import os
from collections import Counter
from hashlib import sha256
from ipaddress import IPv4Address
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from kit.clock import run_jumping
from kit.neighbours import GATEWAY, REACHES, START_S, Everyone, identity, trust, uplink

from cedos.apps.sharing import help_driver, request_driver, side_driver
from cedos.apps.sharing.gateway_sharing import GatewaySharing
from cedos.apps.sharing.help_driver import HelpDriver
from cedos.apps.sharing.protocol.commands import StartForwarding
from cedos.apps.sharing.protocol.helper import HelperTerms
from cedos.apps.sharing.protocol.messages import (
    ConfirmMessage,
    HelloAckMessage,
    HelloMessage,
    InviteMessage,
    JoinMessage,
    LeaveMessage,
    LeaveReason,
    pack,
    unpack,
)
from cedos.apps.sharing.protocol.receipts import by_volume, read_contract
from cedos.apps.sharing.protocol.requestor import RequestorWish
from cedos.apps.sharing.request_driver import RequestDriver
from cedos.apps.sharing.side_driver import KernelCalls, Side
from cedos.apps.sharing.store import SharingStore
from cedos.errors import CedosError
from cedos.host.steer.kernel.iptables import Counted
from cedos.selector.sharing import NetworkType

# SHARE_WALKS=200: more of them. The first found a path that no machine followed, the second lost pay.
SEEDS = [31, 3, *range(100, 100 + int(os.environ.get("SHARE_WALKS", "2")))]
STEPS = 150
ANN, MALLORY, EVE = ("10.0.0.9", 7, 1), ("10.0.0.77", 338, 1), ("10.0.0.66", 338, 1)
HELPERS = {"bob": ("10.0.0.1", 338, 1), "cyd": ("10.0.0.2", 338, 1), "dan": ("10.0.0.3", 338, 1)}
BUDGET = 40_000
MTU_BYTES, HEADER_BYTES = 1448, 52
EVERYONE = {"ann": ANN, **HELPERS, "mallory": MALLORY}


class Key(NamedTuple):
    local: IPv4Address
    number: int
    remote: IPv4Address = IPv4Address(REACHES.address)


class Party:
    """A host: its kernel, and the driver of the process that runs there, if one does."""

    def __init__(self, name):
        self.name, self.driver, self.task = name, None, None
        self.open = {}  # a helper's: by source address
        self.bytes = Counter()
        self.paths = {}  # a requestor's: helper's address by own one
        self.deprecated = set()
        self.signed = set()  # addresses that a contract names


class Flows:
    """The monitor of the requestor's connections."""

    world = None

    def __init__(self, _is_ours):
        pass

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def snapshot(self):
        """Return the connections, and such as a program makes from the same addresses to another host."""
        connections = Flows.world.connections
        return [
            SimpleNamespace(key=key, bytes_down=path.arrived_bytes, bytes_up=path.heard_bytes,
                            unacknowledged=path.waiting)
            for key, path in connections.items()
        ] + [
            SimpleNamespace(key=key._replace(remote=key.local), bytes_down=1 << 40, bytes_up=0,
                            unacknowledged=0)
            for key in connections
        ]  # fmt: skip


class Socket:
    def __init__(self, interface, received, *, listens):
        self.received, self.name = received, interface
        Flows.world.sockets[interface] = self

    def send(self, data, to):
        Flows.world.sent(self.name, data, to)

    def close(self):
        if Flows.world.sockets.get(self.name) is self:
            del Flows.world.sockets[self.name]


class Kernel:
    """The changes of a process in its host's kernel; a dead process makes none."""

    def __init__(self, world, party):
        self._world, self._party, self.dead = world, party, False

    # A helper's.

    def hardware_address(self, _address):
        return b"\2\0\0\0\0\1"

    def admit(self, requestor):
        assert not self.dead
        assert requestor.address in self._party.signed, "no contract is for this address"
        assert requestor.gateway.packed == REACHES.address
        self._refuse()
        self._party.open[requestor.address] = requestor
        self._party.bytes[requestor.address] = 0

    def dismiss(self, address):
        self._refuse()
        self._party.open.pop(address, None)

    def carried(self):
        count = self._party.bytes
        return {
            each: Counted(
                count[each] // MTU_BYTES, count[each] + count[each] // MTU_BYTES * HEADER_BYTES
            )
            for each in self._party.open
        }

    def _refuse(self):
        if self._world.random.random() < 0.05:
            raise OSError("another program holds the lock of iptables")

    # A requestor's.

    def new_address(self):
        number = self._world.random.randrange(1, 250)
        return IPv4Address(f"169.254.{self._world.random.randrange(1, 250)}.{number}")

    def add(self, helper, _gateway, own, _price):
        if self._world.random.random() < 0.05:
            raise OSError("the kernel refuses")
        self._party.paths[own] = helper

    def prefer(self, address, preferred):
        (self._party.deprecated.discard if preferred else self._party.deprecated.add)(address)

    def remove(self, address):
        self._party.paths.pop(address, None)
        self._party.deprecated.discard(address)


class Connection:
    def __init__(self, number, source):
        self.path_id, self.facts = number, SimpleNamespace(rate_bps=None)
        self.connection = SimpleNamespace(fileno=lambda: -1)
        peer = SimpleNamespace(source=int(source))
        self.state = SimpleNamespace(path_id=number, peer=peer)
        self.heard_bytes = self.arrived_bytes = self.waiting = 0

    def ask_arrived(self): ...


class World:
    def __init__(self, seed, directory):
        self.random, self.directory = Random(seed), directory
        self.loop = asyncio.get_running_loop()
        self.sockets, self.seen, self.connections = {}, [], {}
        self.parties = {name: Party(name) for name in ("ann", *HELPERS)}
        self.numbers = iter(range(10**9))
        self.loss, self.answers, self.prices = 0.0, True, dict.fromkeys(HELPERS, 500_000)
        self.session = sha256(identity("ann").key.public).digest()
        core = SimpleNamespace(in_flight=SimpleNamespace(paths={}))
        self.flow = SimpleNamespace(core=core, paths={}, pump_soon=lambda: None)
        self.gateway_store = SharingStore(directory / "gateway")
        for name in EVERYONE:
            self.gateway_store.add_certificate(identity(name).certificate)
        self.forged_us = int(START_S * 1e6)
        self.spent = 0
        self.truth, self.sources = Counter(), {}
        self.faults, self.restarts = [], 0
        self.begin_gateway()

    def now_s(self):
        return START_S + self.loop.time() - 1000.0

    # The gateway.

    def begin_gateway(self):
        connection = SimpleNamespace(peer_key=self.session, flow=self.flow)
        self.gateway = GatewaySharing(
            GATEWAY, self.gateway_store, lambda: (connection,), Everyone, self.now_s
        )
        self.counting = self.loop.create_task(self.gateway.run())

    def asker(self, name):
        session = sha256(identity(name).key.public).digest()

        async def ask(question):
            await asyncio.sleep(self.random.uniform(0.0, 0.3))
            answered = self.gateway.answer(SimpleNamespace(peer_key=session), question)
            if not self.answers or answered is None:
                raise CedosError("no answer")
            return answered

        return ask

    # Processes.

    def begin(self, name):
        party = self.parties[name]
        party.open.clear()
        party.paths.clear()
        store = SharingStore(self.directory / name)
        side = Side(
            identity(name),
            trust(),
            name,
            self.asker(name),
            store,
            self.directory / f"{name}.status",
        )
        kernel = Kernel(self, party)
        if name == "ann":
            wish = RequestorWish(8_000_000, budget=max(BUDGET - self.spent, 1))
            driver = RequestDriver(side, wish, kernel, lambda: "")
        else:
            number = list(HELPERS).index(name) + 1
            terms = HelperTerms(self.prices[name], 10**9)
            driver = HelpDriver(side, terms, kernel, lambda: uplink(number))
            carry_out = driver._carry_out
            driver._carry_out = lambda command: (self.check(party, command), carry_out(command))
        driver._now_s = self.now_s
        driver._calls.kernel = kernel
        party.driver, party.kernel = driver, kernel
        party.task = self.loop.create_task(driver.run())

    def check(self, party, command):
        """Check that each forwarded address has a signed contract."""
        if isinstance(command, StartForwarding):
            contract = read_contract(command.join, command.confirm, trust(), self.now_s())
            assert contract == command.contract
            confirm = unpack(command.confirm).message
            assert confirm.source == command.source
            party.signed.add(IPv4Address(confirm.source))

    async def end(self, name, *, kill=False):
        party = self.parties[name]
        if party.task is None:
            return
        driver, task = party.driver, party.task
        party.task = party.driver = None
        if name == "ann":
            self.spent += driver._machine.spent
        if kill:
            party.kernel.dead = True
            driver._socket.close()
            driver._set_timer(None)
            driver._set_timer = lambda _at_s: None
            driver._wait_left = lambda: asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        driver._side.store.close()
        if not kill:
            assert party.open == {}
            assert party.paths == {}, "a path is left"

    # The link.

    def sent(self, name, data, to):
        if name in self.parties and (self.parties[name].driver is None):
            return
        self.seen.append((name, data))
        del self.seen[:-200]
        for each, where in EVERYONE.items():
            if each != name and (to is None or to[0] == where[0]):
                if self.random.random() >= self.loss:
                    self.later(each, data, EVERYONE[name])
                if self.random.random() < 0.05:
                    self.later(each, data, EVERYONE[name])

    def later(self, name, data, source):
        delay_s = self.random.choice([0.001, 0.001, 0.01, 0.05, 0.3, 1.0])
        self.loop.call_later(delay_s, self.deliver, name, data, source)

    def deliver(self, name, data, source):
        if name == "mallory":
            self.mallory_hears(data)
        elif (socket := self.sockets.get(name)) is not None:
            socket.received(data, source)

    def stranger(self, name, data):
        """Deliver a datagram that no member has signed; it changes no party's view."""
        socket = self.sockets.get(name)
        if socket is None:
            return
        driver = self.parties[name].driver
        machine = driver._machine
        view = machine.helpers if name == "ann" else machine.requestors
        before, said = view(), len(self.seen)
        socket.received(data, self.random.choice([EVE, *EVERYONE.values()]))
        assert view() == before
        assert self.seen[said:] == []

    # The malicious member.

    def forge(self, kind, *fields):
        self.forged_us = max(self.forged_us + 1, int(self.now_s() * 1e6))
        return pack(identity("mallory"), kind(self.forged_us, self.random.randbytes(16), *fields))

    def mallory_hears(self, data):
        message = unpack(data).message
        sender = unpack(data).verify_sender(trust(), self.now_s()).host
        chance = self.random.random()
        if isinstance(message, InviteMessage):
            for _ in range(self.random.choice([0, 1, 1, 2])):
                self.later("ann", self.join(sender, message), MALLORY)
        elif isinstance(message, ConfirmMessage | HelloMessage) and chance < 0.7:
            ack = self.forge(HelloAckMessage, sender, message.nonce, 10**9)
            self.later("ann", ack, MALLORY)
        elif isinstance(message, JoinMessage):
            source = self.random.choice(
                [*self.parties["ann"].paths, self.parties["ann"].kernel.new_address()]
            )
            digest = unpack(data).digest
            confirm = self.forge(ConfirmMessage, sender, message.nonce, digest, source.packed)
            for name in HELPERS:
                self.later(name, confirm, MALLORY)

    def join(self, to, invite):
        price = self.random.choice([0, 100_000, 500_000, 10**9])
        return self.forge(
            JoinMessage, to, invite.nonce, price, "EUR", 10**9, 8_000_000,
            NetworkType.LTE, None, IPv4Address(MALLORY[0]).packed, REACHES,
        )  # fmt: skip

    def attack(self):
        if not self.seen:
            return
        random, target = self.random, self.random.choice(["ann", *HELPERS])
        data = random.choice(self.seen)[1]
        to = identity(target).key.public
        source = random.choice([EVE, *EVERYONE.values()])
        match random.randrange(8):
            case 0:  # it replays to the same one, or to another
                self.deliver(target, data, source)
            case 1:
                at = random.randrange(len(data))
                self.stranger(
                    target,
                    data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :],
                )
            case 2:
                self.stranger(target, data[: random.randrange(len(data))])
            case 3:
                other = random.choice(self.seen)[1]
                at = random.randrange(min(len(data), len(other)))
                if (spliced := data[:at] + other[at:]) not in (data, other):
                    self.stranger(target, spliced)
            case 4:
                self.deliver(
                    target, self.forge(LeaveMessage, to, random.choice(list(LeaveReason))), MALLORY
                )
            case 5:
                self.deliver(target, self.forge(HelloMessage, to), MALLORY)
            case 6:
                invite = self.forge(InviteMessage, 8_000_000)
                for each in HELPERS:
                    self.deliver(each, invite, MALLORY)
            case 7:  # it comes, goes and comes at once
                invites = [it for it in (unpack(each).message for who, each in self.seen if who == "ann")
                           if isinstance(it, InviteMessage)]  # fmt: skip
                ann = identity("ann").key.public
                if invites:
                    self.deliver("ann", self.join(ann, invites[-1]), MALLORY)
                    self.deliver("ann", self.forge(LeaveMessage, ann, LeaveReason.DONE), MALLORY)
                    self.deliver("ann", self.join(ann, invites[-1]), MALLORY)

    # What is carried.

    def carry(self):
        ann, ways = self.parties["ann"], {where[0]: name for name, where in HELPERS.items()}
        for key in [key for key in self.connections if key.local not in ann.paths]:
            self.close(key)
        for own, via in ann.paths.items():
            name = ways.get(str(via), "mallory")
            helper = self.parties.get(name)
            if helper is not None and own not in helper.open:
                continue
            mine = [key for key in self.connections if key.local == own]
            if not mine or (len(mine) < 3 and self.random.random() < 0.05):
                self.dial(own)
            if own in ann.deprecated and self.random.random() < 0.8:
                continue
            for key in [key for key in self.connections if key.local == own]:
                if self.random.random() < 0.01:
                    self.close(key)
                    continue
                path, count = self.connections[key], self.random.randrange(60_000)
                if self.random.random() < 0.3:
                    path.heard_bytes += count
                else:
                    path.arrived_bytes += count
                self.truth[own] += count
                if helper is not None:
                    helper.bytes[own] += count

    def dial(self, own):
        path = Connection(next(self.numbers), own)
        self.connections[Key(own, path.path_id)] = path
        self.flow.core.in_flight.paths[path.path_id] = self.flow.paths[path.path_id] = path

    def close(self, key):
        path = self.connections.pop(key)
        del self.flow.paths[path.path_id]
        del self.flow.core.in_flight.paths[path.path_id]

    async def step(self):
        random = self.random
        chance = random.random()
        name = random.choice(["ann", *HELPERS])
        if chance < 0.5:
            self.attack()
        elif chance < 0.55:
            self.loss = random.choice([0.0, 0.0, 0.1, 0.5])
        elif chance < 0.6:
            self.answers = random.random() < 0.8
        elif chance < 0.64:
            await self.end(name, kill=random.random() < 0.5)
            self.prices[name] = random.choice([0, 100_000, 500_000, 900_000])
            await asyncio.sleep(random.uniform(0, 3))
            self.begin(name)
        elif chance < 0.65:
            for key in list(self.connections):
                self.close(key)
            self.counting.cancel()
            await asyncio.wait({self.counting})
            self.restarts += 1
            self.begin_gateway()
        for _ in range(random.randrange(1, 8)):
            self.carry()
            await asyncio.sleep(0.1)
        await self.check_still()

    async def check_still(self):
        """Wait for the drivers' calls, and compare kernels with machines."""
        for party in self.parties.values():
            driver = party.driver
            for _ in range(100):
                if driver is None or not driver._calls.busy:
                    break
                await asyncio.sleep(0.01)
            if driver is None or driver._calls.busy:
                continue
            if party.name == "ann":
                assert not party.task.done(), "the requestor's process has ended by itself"
                ways = {IPv4Address(it.command.source): it for it in driver._ways.values()}
                for source, way in ways.items():
                    assert way.carried_bytes <= self.truth[source], "it did not go by the helper"
                known = set(ways)
                assert set(party.paths) <= known, "a path that no machine follows"
            else:
                served = {IPv4Address(it.source) for it in driver._machine._served.values()}
                assert set(party.open) == served

    async def run(self):
        for name in ("ann", *HELPERS):
            self.begin(name)
        for _ in range(STEPS):
            await self.step()
        for name in ("ann", *HELPERS):
            await self.end(name)
        for key in list(self.connections):
            self.close(key)
        self.counting.cancel()
        await asyncio.wait({self.counting})
        self.check_money()

    def check_money(self):
        store = self.gateway_store
        ann = identity("ann").key.public
        receipts = store.receipts(10**6)
        signed = {}
        kept = SharingStore(self.directory / "ann")
        for each in {it.contract for it in receipts}:
            found = kept.contract(each)
            assert found is not None, "the requestor has not kept a contract that it pays"
            signed[each] = read_contract(*found, trust(), self.now_s())
            self.sources[each] = IPv4Address(unpack(found[1]).message.source)
        kept.close()
        totals, amounts = Counter(), Counter()
        for each in receipts:
            assert each.requestor == ann
            totals[each.contract] += each.carried_bytes
            amounts[each.contract] += each.amount
        paid = 0
        for number, contract in signed.items():
            assert amounts[number] == by_volume(contract, 0, totals[number])
            paid += amounts[number]
        assert totals.total() <= self.truth.total()
        lost = self.truth - Counter({self.sources[number]: totals[number] for number in signed})
        # Those of a period where the gateway was killed, and of 0.5 s of each connection that ended.
        assert lost.total() <= 3_000_000 + 5_000_000 * self.restarts
        # Nothing is carried beside the requestor's own count, of which one look may be missing.
        assert paid <= min(self.spent, BUDGET) + 2_000
        store.close()


class Calls(KernelCalls):
    """Calls that take a moment, one after the other; one that is cancelled is made all the same."""

    def __init__(self):
        super().__init__()
        self._lock, self._made, self.kernel = asyncio.Lock(), set(), None

    @property
    def busy(self):
        return bool(self._tasks or self._made)

    async def call(self, work):
        task = asyncio.get_running_loop().create_task(self._work(work))
        self._made.add(task)
        task.add_done_callback(self._made_one)
        return await asyncio.shield(task)

    def _made_one(self, task):
        self._made.discard(task)
        task.exception()  # its caller may be gone

    async def _work(self, work):
        async with self._lock:
            await asyncio.sleep(Flows.world.random.choice([0.001, 0.01, 0.3]))
            if self.kernel.dead:
                raise OSError("the process is dead")
            return work()

    def _on_done(self, task):
        if not self.kernel.dead and not task.cancelled() and task.exception() is not None:
            Flows.world.faults.append(task.exception())
        super()._on_done(task)

    async def close(self):
        await super().close()
        while self._made:
            await asyncio.wait(self._made)


@pytest.mark.parametrize("seed", SEEDS)
def test_sharing_goes_on_and_ends_as_signed(seed, monkeypatch):
    monkeypatch.setattr(side_driver, "LinkSocket", Socket)
    monkeypatch.setattr(side_driver, "KernelCalls", Calls)
    monkeypatch.setattr(request_driver, "FlowMonitor", Flows)

    class Clock:
        def now_s(self):
            return Flows.world.now_s()

    for module in (side_driver, help_driver, request_driver):
        monkeypatch.setattr(module, "SharingClock", Clock)

    async def walk():
        # In memory: each start of a process would wait for the disk.
        with TemporaryDirectory(dir="/dev/shm") as folder:
            Flows.world = world = World(seed, Path(folder))
            world.loop.set_exception_handler(lambda _, context: world.faults.append(context))
            await world.run()
        assert world.faults == []

    run_jumping(walk())
