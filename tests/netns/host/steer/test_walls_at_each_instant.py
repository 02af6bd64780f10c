"""A random walk over hard budgets: nothing passes a wall, after any command; what is not spent is open.

The kernel, the controller and its executor are the real ones. Packets of all kinds are sent after each
single command of ours, and each event. A packet socket at the networks' other ends sees what arrives.
`CEDOS_WALKS=500` walks longer.
"""

import asyncio
import contextlib
import os
import random
import socket
import struct
import threading
import time
from dataclasses import replace
from unittest.mock import MagicMock

import pytest
from kit.controller import Rates

from cedos.budget_kinds import Resource
from cedos.config import Config
from cedos.controller.config import Choices
from cedos.controller.controller import Controller
from cedos.controller.events import NetworksChanged
from cedos.daemon import state_file
from cedos.daemon.budgets.host_budgets import LEARNED, LEARNED_FILE, HostBudgets
from cedos.daemon.budgets.metering import Metering, radios_of
from cedos.daemon.driver import ControllerDriver
from cedos.daemon.executor import HostExecutor
from cedos.daemon.startup import controller_config, objective
from cedos.host.monitor.links import InterfaceCounters, Tables, assemble
from cedos.host.monitor.resolvers import Resolvers
from cedos.host.steer.kernel import egress_wall, iptables
from cedos.host.steer.steering import Steering, restore
from cedos.kernel import policy_routing, rtnetlink
from cedos.kernel.interface_kind import MeteredWord, Sysfs
from cedos.kernel.netlink import NETLINK_ROUTE, Requester
from cedos.model import Budget, Every
from cedos.storage.usage import Usage

NETWORKS = {"wlan0": 43, "lte0": 44, "usb0": 45}
PORT, ECHO, MPTCP = 8000, 9, 262
RAW, GUEST = b"\x1e\x61", b"\x1e\x62"
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
SHOWN = """
for version in -4 -6; do ip $version rule; done
iptables-save; ip6tables-save; sysctl -a -r "^net.(mptcp|ipv4.tcp|netfilter.nf_conntrack_acct)"
tc qdisc show | grep -v noqueue; ip -o link | grep -o 'qlen [0-9]*' | sort -u
"""
DATA = Budget("data", Resource.DATA, 9e14, "2099-12-01T00:00:00", every=Every.MONTH, hard=True)
CHANGES = {
    *(egress_wall.RTM_NEWQDISC, egress_wall.RTM_DELQDISC, egress_wall.RTM_NEWTFILTER),
    *(egress_wall.RTM_DELTFILTER, rtnetlink.RTM_NEWLINK),
}
FLUSHES = {
    "first": [
        *("iptables -F CEDOS_BAR_OUT", "ip6tables -F CEDOS_BAR_OUT", "iptables -F", "iptables -X"),
        *("nft flush ruleset", "iptables -D OUTPUT -j CEDOS_BAR_OUT", "nft delete table ip6 filter"),
    ],
    "second": ["tc qdisc del dev {} clsact", "tc filter del dev {} egress"],
    "sysctl": ["sysctl -qew net.mptcp.pm_type=0 net.mptcp.path_manager=kernel"],
}  # fmt: skip


def kind_of(frame):
    """The kind of what arrived; "": it keeps a network, or ends a connection (other tests bound that)."""
    version = {0x0800: 4, 0x86DD: 6}.get(struct.unpack("!H", frame[12:14])[0])
    if version is None:
        return "" if frame[12:14] in (b"\x08\x06",) else "other"
    packet = frame[14:]
    if version == 4:
        protocol, body = packet[9], packet[(packet[0] & 15) * 4 :]
        if struct.unpack("!H", packet[6:8])[0] & 0x3FFF:
            return "fragment4"
    else:
        protocol, body = packet[6], packet[40:]
        if protocol == 0:
            protocol, body = body[0], body[8:]
        if protocol == 44:
            return "fragment6"
    match protocol:
        case 6 if body[13] & 4:
            return ""
        case 6 if PORT in struct.unpack("!HH", body[:4]):
            return "living"
        case 6:
            return f"tcp{version}"
        case 17 if body[2:4] in (RAW, GUEST):
            return "raw" if body[2:4] == RAW else "guest"
        case 17 if packet[16 if version == 4 else 24] in (224, 255):
            return f"multicast{version}"
        case 17:
            return f"udp{version}"
        case 1 if body[0] == 3:
            return ""
        case 58 if body[0] in (1, *range(130, 138), 143):
            return ""
    return f"icmp{version}" if protocol in (1, 58) else "other"


ALL = {
    f"{kind}{version}"
    for kind in ("tcp", "udp", "multicast", "icmp", "fragment")
    for version in (4, 6)
}


@contextlib.contextmanager
def socket_of(name, *kind):
    with socket.socket(*kind) as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name.encode())
        made.setblocking(False)
        yield made


class Walk:
    def __init__(self, seed, laptop, far, pod, folder, exits):
        self.random = random.Random(seed)
        self.laptop, self.far, self.pod, self.folder = laptop, far, pod, folder
        self.exits = exits
        self.done, self.words = [], {}
        self.set_s = 0.0
        self.told, self.goes_on = [], False
        # Where nothing may pass, by name and index; what passed since that was so; what also may.
        self.held, self.passed, self.excused = frozenset(), [], ()
        self.lock, self.busy, self.living, self.guest = threading.RLock(), True, {}, ""
        with far.entered():
            self.tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            self.listening = [
                socket.create_server(("", PORT), family=family, backlog=99)
                for family in FAMILY.values()
            ]
        self.tap.setblocking(False)
        self.tap.setsockopt(socket.SOL_SOCKET, 33, 1 << 24)  # SO_RCVBUFFORCE
        for each in (self.tap, *self.listening):
            exits.enter_context(each)
        self.asking = Requester(NETLINK_ROUTE)
        exits.callback(self.asking.close)
        for name in NETWORKS:
            self.comes(name)
        time.sleep(0.1)
        self.before = self.shown()
        self.busy = False

    # -- what others do ---------------------------------------------------------------------------

    def sh(self, command, where=None):
        self.done.append(command)
        (where or self.laptop).run("sh", "-c", command, check=False)

    def index(self, name):
        with contextlib.suppress(OSError):
            return socket.if_nametoindex(name)

    def comes(self, name):
        number = NETWORKS[name]
        near, far = (f"02:00:00:00:{number}:0{last}" for last in (2, 1))
        self.sh(
            f"ip link add {name} address {near} type veth peer {name} address {far}"
            f" netns {self.far.name}"
        )
        self.addressed(name, self.far, 1)
        self.addressed(name, self.laptop, 2)

    def addressed(self, name, where, last):
        number, other = NETWORKS[name], 3 - last
        given = [f"ip link set {name} addrgenmode none", f"ip link set {name} up"]
        for one in (f"192.168.{number}.{{}}", f"2001:db8:{number}::{{}}"):
            length = "64 nodad" if "::" in one else "24"
            peer = f"lladdr 02:00:00:00:{number}:0{other} nud permanent dev {name}"
            given.append(f"ip address replace {one.format(last)}/{length} dev {name}")
            given.append(f"ip neigh replace {one.format(other)} {peer}")
        if last == 2:
            way = f"default via 192.168.{number}.1 dev {name} metric {number}"
            given.append(f"ip route replace {way}")
        self.sh("; ".join(given), where)

    def happens(self):
        choose, name = self.random.choice, self.random.choice([*NETWORKS])
        number, there = NETWORKS[name], self.index(name) is not None
        kinds = "goes comes word address hardware guest down bridge rename"
        kind = choose(kinds.split())
        self.done.append(f"-- {kind} {name}")
        match kind:
            case "goes" if there:
                self.sh(f"ip link del {name}")
            case "comes" if not there:
                self.comes(name)
            case "word":
                self.words[name] = choose([None, *MeteredWord])
            case "address" if there:
                change = choose(("add", "del"))
                self.sh(f"ip address {change} 192.168.{number}.{choose((3, 4))}/24 dev {name}")
            case "hardware" if there:
                self.sh(f"ip link set {name} address 02:00:00:00:{number}:{choose('23456'):0>2}")
                self.look("hardware")
                self.addressed(name, self.laptop, 2)
            case "guest" if there:
                self.sh("ip link del guest", self.pod)
                self.guest = name
                self.sh(
                    f"ip link add link {name} name guest netns {self.pod.name} type macvlan mode bridge"
                )
                self.sh(
                    f"ip link set guest addrgenmode none; ip link set guest up;"
                    f" ip address add 192.168.{number}.9/24 dev guest;"
                    f" ip neigh replace 192.168.{number}.1 lladdr 02:00:00:00:{number}:01 nud permanent"
                    " dev guest",
                    self.pod,
                )
            case "down" if there:
                self.sh(f"ip link set {name} down")
                self.addressed(name, self.laptop, 2)
            case "bridge" if there:
                self.sh(
                    f"ip link add br0 type bridge; ip link set br0 addrgenmode none;"
                    f" ip link set {name} master br0; ip link set br0 up;"
                    f" ip address add 10.{number}.6.2/24 dev br0;"
                    f" ip route add default via 10.{number}.6.1 dev br0 metric 5"
                    if self.index("br0") is None
                    else "ip link del br0"
                )
            case "rename" if there:
                self.sh(
                    f"ip link set {name} down; ip link set {name} name odd0; ip link set odd0 up"
                )
                self.look("renamed")
                self.sh(f"ip link set odd0 name {name}")
                self.addressed(name, self.laptop, 2)
        self.look(kind)

    # -- the daemon -------------------------------------------------------------------------------

    async def begin(self):
        self.done.append("-- the daemon begins")
        config = Config()
        self.usage = Usage(self.folder / "usage.sqlite", "boot")
        self.steering = await Steering(self.folder, goes_on=lambda: self.goes_on).__aenter__()
        self.goes_on = False
        kernel = self.steering._kernel
        for name in ("ask", "ask_together"):
            self.watch(kernel._wall._requester, name)
        networks = self.networks()
        self.metering = Metering(self.usage, "boot", networks, radios_of(config), {})
        choices = Choices(*(objective(config), Rates(), 3000))
        settings = controller_config(config, choices, 1, dry_run=False)
        self.controller = Controller(
            settings, budgets=state_file.read(self.folder / LEARNED_FILE, LEARNED)
        )
        self.driver = ControllerDriver(self.controller)
        self.budgets = HostBudgets(
            config, self.folder, self.usage, self.metering, self.controller.budgets,
            self.driver.post, clock=lambda: time.time() + self.set_s,
        )  # fmt: skip
        self.counters = InterfaceCounters()
        observer = MagicMock()
        observer.count_all = self.count
        self.executor = HostExecutor(
            self.folder, self.driver, self.steering, observer, *(MagicMock(),) * 2, None, None,
            self.budgets, MagicMock(), MagicMock(),
        )  # fmt: skip
        self.driver.begin(self.executor.carry_out)
        await self.follow(networks)
        await self.count()
        self.budgets.tick()
        await self.executor.settle()
        await self.steering.barring.take_down_unneeded()
        self.settled()

    def watch(self, requester, name):
        ask = getattr(requester, name)

        def asked(*arguments):
            try:
                return ask(*arguments)
            finally:
                kinds = {arguments[0]} if name == "ask" else {each[0] for each in arguments}
                if kinds & CHANGES:
                    self.look(f"commands {kinds}")

        setattr(requester, name, asked)

    def end(self):
        self.executor.close()
        self.driver.close()
        self.usage.close()
        self.counters.close()

    async def killed(self):
        self.done.append("-- the daemon is killed")
        await self.steering._end_repairs()
        self.steering._filter.close()
        self.steering._kernel.close()
        self.steering._journal.close()
        self.end()

    async def ended(self, *, goes_on):
        self.done.append(f"-- the daemon ends, {goes_on=}")
        self.goes_on = goes_on
        self.held = self.held if goes_on else frozenset()
        await self.steering.close()
        self.end()
        self.look("ended")
        if not goes_on:
            self.as_before()

    def as_before(self):
        assert self.shown() == self.before, self.story((self.shown(), self.before))
        self.opened()

    def networks(self):
        answers = self.asking.dump(rtnetlink.RTM_GETLINK, rtnetlink.links_request())
        answers += self.asking.dump(rtnetlink.RTM_GETADDR, rtnetlink.addresses_request())
        for version in (4, 6):
            request = policy_routing.routes_request(version, table=policy_routing.MAIN_TABLE)
            answers += self.asking.dump(
                rtnetlink.RTM_GETROUTE, request, policy_routing.DefaultRoutesFilter()
            )
        tables = Tables(answers)
        return [each for each, _ in assemble(tables, Resolvers(), Sysfs(), {}, self.words)]

    async def count(self):
        for each in self.told:
            if (counted := await self.counters.read(each.index)) is not None:
                self.metering.on_counters(each, counted, time.monotonic())

    async def follow(self, networks=None):
        self.told = self.networks() if networks is None else networks
        self.done.append(f"networks_changed {[(n.name, n.metered, n.index) for n in self.told]}")
        self.driver.post(NetworksChanged(tuple(self.told)))
        await self.steering.barring.networks_changed()

    def settled(self):
        """Check that all commands are done, and take their result for the truth from now on."""
        hard = self.controller.hard
        assert not hard._failed, self.story(hard._failed)
        barred = {each.name for each in self.told if each.name in hard._bars.networks}
        spent = [
            budget
            for budget in self.budgets.in_force.values()
            if self.metering.measure_use(budget, self.budgets._periods[budget.name].begins_s)
            >= budget.supply
        ]
        should = {
            each.name
            for each in self.told
            for budget in spent
            if (each.name in budget.networks if budget.networks else each.metered)
        }
        assert barred == should, self.story((barred, should))
        held = frozenset((each.interface, each.index) for each in self.told if each.name in barred)
        for where, place, kinds in self.passed:
            assert place not in self.held & held, self.story(f"{where}: {kinds} over {place}")
        self.held, self.passed, self.excused = held, [], ()
        self.look("settled")
        for where, place, kinds in self.passed:
            assert place not in held, self.story(f"{where}: {kinds} over {place}")
        self.passed = []
        self.opened()

    def opened(self):
        """Check that each network without a wall is open."""
        for name in NETWORKS:
            if (name, self.index(name)) not in self.held and self.sends(name):
                if name not in self.living:
                    self.connect(name)
                came = self.tried(name)
                assert came >= ALL, self.story(f"{name} is closed: {ALL - came}")

    async def settle(self):
        await self.count()
        self.budgets.tick()
        await self.executor.settle()
        self.settled()

    async def change_budget(self):
        names = self.random.choice(((), (), ("lte0",), ("wlan0", "usb0")))
        name = f"data-{'-'.join(names)}"
        if name in self.budgets.in_force and self.random.random() < 0.3:
            self.done.append(f"-- remove {name}")
            await self.budgets.remove(name)
        else:
            supply = self.random.choice((1.0, 1.0, 9e14))
            self.done.append(f"-- {name} {supply}")
            self.budgets._settings = MagicMock()
            await self.budgets.set(replace(DATA, name=name, supply=supply, networks=names))
        await self.settle()

    async def flush(self):
        kind = self.random.choice([*FLUSHES])
        for _ in range(self.random.choice((1, 2))):
            command = self.random.choice(FLUSHES[kind]).format(self.random.choice([*NETWORKS]))
            self.excused = ("raw", "guest") if kind == "second" else ()
            self.sh(command)
            self.look(command)
            # What is told of comes with the loop's next turn.
            await asyncio.sleep(0.02 if kind == "second" else 0)
        await asyncio.sleep(1.3)
        self.settled()
        assert not self.steering.problems, self.story(self.steering.problems)

    async def step(self):
        acts = "event event event budget budget flush kill reload end clock"
        act = self.random.choice(acts.split())
        match act:
            case "event":
                for _ in range(self.random.choice((1, 1, 2, 3))):
                    self.happens()
                await self.follow()
                await self.settle()
            case "budget":
                await self.change_budget()
            case "flush":
                await self.flush()
            case "kill":
                await self.killed()
                self.look("killed")
                if self.random.random() < 0.3:
                    self.held = frozenset()
                    assert not restore(self.folder).left
                    self.as_before()
                await self.begin()
            case "reload":
                await self.ended(goes_on=True)
                await self.begin()
            case "end" if self.random.random() < 0.3:
                await self.ended(goes_on=False)
                await self.begin()
            case "clock":
                self.set_s += self.random.choice((-86_400, 3600, 0.5, 86_400 * 40))
                self.done.append(f"-- the clock is at {self.set_s}")
                await self.settle()

    # -- the oracle -------------------------------------------------------------------------------

    def story(self, what):
        return "\n".join((*self.done[-90:], str(what)))

    def shown(self):
        lines = self.laptop.run("sh", "-c", SHOWN, check=False).stdout.splitlines()
        return sorted(line for line in lines if not line.startswith(("#", ":", "*", "COMMIT")))

    def sends(self, name):
        """Return whether an interface is there, up, and no port of another one."""
        shown = self.laptop.run("ip", "-o", "link", "show", name, check=False).stdout
        return "state UP" in shown and "master" not in shown

    def connect(self, name):
        with contextlib.suppress(OSError), contextlib.ExitStack() as failing:
            one = failing.enter_context(socket_of(name, socket.AF_INET, socket.SOCK_STREAM))
            one.settimeout(0.5)
            one.connect((f"192.168.{NETWORKS[name]}.1", PORT))
            one.setblocking(False)
            self.living[name] = one
            self.exits.push(failing.pop_all())

    def look(self, where):
        if self.busy:
            return
        with self.lock:
            for name, connection in [*self.living.items()]:
                try:
                    connection.send(bytes(500))
                except OSError:
                    self.living.pop(name).close()
            self.tried("")
            places = [*NETWORKS, "br0", "guest"]
            for name in places:
                sends = self.guest if name == "guest" else name
                index = self.index(sends)
                kinds = self.tried(name) - {*self.excused} if index is not None else ()
                if kinds:
                    self.passed.append((where, (sends, index), kinds))

    def tried(self, name):
        """Send packets of each kind over an interface; return the kinds that arrive at its other end."""
        if name:
            self.send(name)
        came = set()
        with contextlib.suppress(BlockingIOError):
            while True:
                frame, (at, _, way, *_) = self.tap.recvfrom(2000)
                kind = kind_of(frame) if way != 4 else ""
                if kind == "living":
                    self.passed.append(("living", (at, self.index(at)), {kind}))
                elif kind:
                    came.add(kind)
        return came

    def send(self, name):
        if name == "guest":
            near = (f"192.168.{NETWORKS[self.guest]}.1", int.from_bytes(GUEST))
            with (
                contextlib.suppress(OSError),
                self.pod.entered(),
                socket_of(name, socket.AF_INET, socket.SOCK_DGRAM) as one,
            ):
                one.sendto(b"walk", near)
            return
        number = NETWORKS.get(name, 0)
        for version, family in FAMILY.items():
            near = f"192.168.{number}.1" if version == 4 else f"2001:db8:{number}::1"
            group = ("224.0.0.251", 5353) if version == 4 else ("ff02::fb", 5353)
            echo = (8, socket.IPPROTO_ICMP) if version == 4 else (128, socket.IPPROTO_ICMPV6)
            head = struct.pack("!BBHHH", echo[0], 0, 0xFFFF - (echo[0] << 8) - 1, 0, 1)
            for kind, protocol, data, to in (
                (socket.SOCK_DGRAM, 0, b"walk", (near, ECHO)),
                (socket.SOCK_DGRAM, 0, bytes(3000), (near, ECHO)),
                (socket.SOCK_DGRAM, 0, b"walk", group),
                (socket.SOCK_RAW, echo[1], head, (near, 0)),
                (socket.SOCK_STREAM, 0, None, (near, ECHO)),
                (socket.SOCK_STREAM, MPTCP, None, (near, ECHO)),
            ):
                with contextlib.suppress(OSError), socket_of(name, family, kind, protocol) as one:
                    if data is None:
                        one.connect(to)
                    else:
                        one.sendto(data, to)
        with contextlib.suppress(OSError), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as one:
            one.bind((name, 0))
            mac = one.getsockname()[4]
            body = b"\0\1" + RAW + struct.pack("!HH", 12, 0) + b"walk"
            packet = struct.pack("!BBHHHBBH", 0x45, 0, 32, 1, 0, 64, 17, 0) + bytes(8)
            one.send(bytes((2, 0, 0, 0, number, 1)) + mac + b"\x08\0" + packet + body)


@contextlib.contextmanager
def walking(make_namespace, folder, seed, number=0):
    laptop, far, pod = (make_namespace(f"{role}{number}") for role in ("laptop", "far", "pod"))
    with contextlib.ExitStack() as exits:
        for namespace in (laptop, far, pod):
            namespace.sysctl("net.ipv6.conf.default.accept_dad", 0)
            namespace.sysctl("net.ipv6.conf.default.router_solicitations", 0)
        exits.enter_context(laptop.entered())
        yield Walk(seed, laptop, far, pod, folder, exits)


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_passes_a_wall_and_all_passes_where_there_is_none(
    make_namespace, tmp_path, monkeypatch, seed
):
    walks = int(os.environ.get("CEDOS_WALKS", "1"))
    run = iptables._run

    def looked(command, text=""):
        try:
            return run(command, text)
        finally:
            if "-save" not in command[0]:
                walk.look(f"{command} {text}")

    monkeypatch.setattr(iptables, "_run", looked)
    for number in range(walks):
        folder = tmp_path / str(number)
        folder.mkdir()
        with walking(make_namespace, folder, seed * 1000 + number, number) as walk:

            async def steps(walk=walk):
                await walk.begin()
                for _ in range(int(os.environ.get("CEDOS_STEPS", "15"))):
                    await walk.step()
                await walk.ended(goes_on=False)

            asyncio.run(steps())
