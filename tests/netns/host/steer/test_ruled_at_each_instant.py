"""A random walk over routing: nothing ruled leaves by a forbidden network, after any command or event.

The kernel is the real one. Real sockets send datagrams after each single command of ours and each change
by others, which also come between our commands. A packet socket sees by which network each one leaves.
`CEDOS_WALKS=500` walks longer.
"""

import contextlib
import os
import random
import socket
import struct
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from kit.namespaces import tun
from kit.waiting import wait_until
from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from cedos.host.monitor.links import Tables, assemble
from cedos.host.monitor.resolvers import Resolvers
from cedos.host.steer.kernel import iptables
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.routing_plan import Destination
from cedos.host.steer.routing_rules import Routing
from cedos.kernel import policy_routing, rtnetlink
from cedos.kernel.interface_kind import Sysfs

NETWORKS = {"wlan0": "43", "lte0": "44", "eth0": "45"}
KINDS = {
    "wlan0": {"kind": "wifi", "metered": False},
    "lte0": {"kind": "cellular", "metered": True},
    "eth0": {"kind": "ethernet", "metered": False},
}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
OWN = {4: "192.168.{}.2/24", 6: "2001:db8:{}::2/64"}
ROUTER = {4: "192.168.{}.1", 6: "fe80::{}"}
GIVEN = {
    4: [
        *("192.168.43.2/24", "192.168.43.3/24", "192.168.44.2/24", "9.8.8.77/24", "10.1.2.77/24"),
        *("10.1.2.78/24", "10.1.2.79/25"),
    ],
    6: [
        *("2001:db8:43::2/64", "2001:db8:43::3/64", "2001:db8:44::2/64", "2a00:1450:4001::77/64"),
        *("fd00:1::77/64", "fd00:1::78/64"),
    ],
}
ANNOUNCED = {
    4: [
        "198.51.100.1/32",
        "198.51.100.0/24",
        "0.0.0.0/1",
        "128.0.0.0/1",
        "10.0.0.0/8",
        "10.1.3.0/24",
    ],
    6: ["2001:db8:100::1/128", "2001:db8:100::/64", "2000::/4", "3000::/4", "fd00::/8"],
}
TUNNELLED = {
    4: ["10.1.0.0/16", "198.51.100.0/24", "10.1.3.3/32"],
    6: ["fd00:1::/48", "2001:db8:100::/64"],
}
REMOTE = {
    4: ["198.51.100.1", "198.51.100.9", "9.8.8.9", "10.1.2.3", "10.1.3.3", "192.168.43.9"],
    6: ["2001:db8:100::1", "2001:db8:100::9", "2a00:1450:4001::9", "fd00:1::3", "2001:db8:43::9"],
}
PLACES = [
    *((f"198.51.100.0/{length}", None) for length in (24, 28, 29, 30, 31)),
    *((f"2001:db8:100::/{length}", None) for length in (64, 124, 125, 126, 127)),
    *((host, port) for host in ("198.51.100.1", "2001:db8:100::1") for port in (None, 4433)),
    *((whole, port) for whole in ("0.0.0.0/0", "::/0") for port in (None, 4433)),
    *(
        (prefix, None)
        for prefix in ("9.8.0.0/16", "10.0.0.0/8", "10.1.2.3", "2a00:1450::/32", "fd00::/8")
    ),
    # Equal to a private subnet, or within one.
    *((prefix, port) for prefix in ("10.1.2.0/24", "fd00:1::/64") for port in (None, 4433)),
    *((prefix, None) for prefix in ("192.168.43.0/24", "10.1.2.0/25", "2001:db8:43::/64")),
]
CHANGES = {
    rtnetlink.RTM_NEWROUTE,
    rtnetlink.RTM_DELROUTE,
    rtnetlink.RTM_NEWRULE,
    rtnetlink.RTM_DELRULE,
}
MAGIC = b"walk"


class Walk:
    def __init__(self, seed, client, far, exits):
        self.random = random.Random(seed)
        self.client, self.far = client, far
        self.done = []
        self.networks, self.told = [], []
        self.rules, self.in_force, self.led = {}, [{}], {}
        self.living = []
        self.serial, self.between = 0, 0.0
        self.busy = True
        self.tunnel = contextlib.ExitStack()
        exits.callback(self.tunnel.close)
        self.ip = exits.enter_context(IPRoute())
        self.seen = exits.enter_context(
            socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
        )
        self.seen.setblocking(False)
        self.seen.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.kernel = LinuxKernel()
        exits.callback(self.kernel.close)
        self.ask = self.kernel._routing.ask
        self.kernel._routing.ask = self.asked
        self.routing = Routing(self.kernel)
        for name in NETWORKS:
            self.comes(name)
        self.busy = False
        self.follow()

    def asked(self, kind, payload, *more):
        try:
            return self.ask(kind, payload, *more)
        finally:
            if kind in CHANGES:
                self.look(f"command {kind}: {payload.hex()}")
            if self.random.random() < self.between:
                self.happens()

    # -- what others do ---------------------------------------------------------------------------

    def change(self, what, *arguments, **named):
        self.done.append(f"{what} {arguments} {named}")
        with contextlib.suppress(NetlinkError):
            getattr(self.ip, what)(*arguments, **named)

    def index(self, name):
        with contextlib.suppress(OSError):
            return socket.if_nametoindex(name)

    def address(self, action, name, text, **more):
        given = ip_interface(text)
        if given.version == 6 and action != "del":
            more["flags"] = 2  # IFA_F_NODAD
        where = {"index": self.index(name), "address": str(given.ip)}
        self.change("addr", action, **where, prefixlen=given.network.prefixlen, **more)

    def addresses(self, name, version):
        if (index := self.index(name)) is None:
            return []
        found = self.ip.get_addr(family=FAMILY[version], index=index)
        each = (f"{one.get_attr('IFA_ADDRESS')}/{one['prefixlen']}" for one in found)
        return sorted(text for text in each if not text.startswith("fe80"))

    def route(self, action, prefix, name, version, metric):
        way = {"gateway": ROUTER[version].format(NETWORKS[name]), "oif": self.index(name)}
        where = {"family": FAMILY[version], "dst": prefix, "priority": metric}
        self.change("route", action, **where, **way, flags=4, proto=16)

    def comes(self, name):
        if self.index(name) is None:
            self.client.ip(
                "link", "add", name, "type", "veth", "peer", name, "netns", self.far.name
            )
            self.far.ip("link", "set", name, "up")
            self.client.ip("link", "set", name, "up", "arp", "off")
        for version in (4, 6):
            self.address("add", name, OWN[version].format(NETWORKS[name]))
            self.route("add", "default", name, version, 100 + [*NETWORKS].index(name))

    def goes(self, name):
        if (index := self.index(name)) is not None:
            self.change("link", "del", index=index)

    def vpn(self):
        if self.index("vpn0") is not None:
            self.done.append("the VPN goes")
            self.tunnel.close()
            return
        self.tunnel.callback(os.close, tun(self.client, "vpn0"))
        index = self.index("vpn0")
        self.change("link", "set", index=index, state="up")
        for own in ("10.99.0.2/24", "fd99::2/64"):
            self.address("add", "vpn0", own)
        for version, prefixes in TUNNELLED.items():
            where = {"family": FAMILY[version], "dst": self.random.choice(prefixes)}
            self.change("route", "add", **where, oif=index, priority=1)

    def happens(self):
        if self.busy:
            return
        self.busy = True
        choose, name = self.random.choice, self.random.choice([*NETWORKS])
        version = choose((4, 6))
        match choose("aaaaadddddlprrrrvng"):
            case "a":
                self.address("add", name, choose(GIVEN[version]))
            case "d":
                for own in self.addresses(name, version)[: choose((1, 1, 9))]:
                    self.address("del", name, own)
            case "l" if self.index(name) is not None:
                self.change("link", "set", index=self.index(name), state=choose(("up", "down")))
            case "p":  # a neighbour announces that all addresses are deprecated, or no more
                self.announce(name, preferred_s=choose((0, 0xFFFFFFFF)))
            case "r":
                metric = 50 + [*NETWORKS].index(name)
                self.route(
                    choose(("add", "add", "del")), choose(ANNOUNCED[version]), name, version, metric
                )
            case "v":
                self.vpn()
            case "n":
                self.comes(name)
            case "g":
                self.goes(name)
        self.busy = False
        self.look("an event")

    def announce(self, name, *, preferred_s):
        times = {"preferred_lft": preferred_s, "valid_lft": 0xFFFFFFFF}
        for own in self.addresses(name, 6):
            self.address("replace", name, own, **times)

    def wait_until_links_run(self):
        def states():
            found = {link.get_attr("IFLA_IFNAME"): link for link in self.ip.get_links()}
            return {found[name].get_attr("IFLA_OPERSTATE") for name in NETWORKS if name in found}

        wait_until(lambda: states() == {"UP"})

    # -- what the daemon does ---------------------------------------------------------------------

    def follow(self):
        dump = self.kernel._routing.dump
        answers = dump(rtnetlink.RTM_GETLINK, rtnetlink.links_request())
        answers += dump(rtnetlink.RTM_GETADDR, rtnetlink.addresses_request())
        for version in (4, 6):
            request = policy_routing.routes_request(version, table=policy_routing.MAIN_TABLE)
            answers += dump(rtnetlink.RTM_GETROUTE, request, policy_routing.DefaultRoutesFilter())
        tables = Tables(answers)
        found = [each for each, _ in assemble(tables, Resolvers(), Sysfs(), KINDS)]
        self.networks = [each for each in found if each.name in NETWORKS]
        self.told.append(self.networks)
        self.done.append(
            f"networks_changed {[(n.name, *map(str, n.addresses)) for n in self.networks]}"
        )
        with contextlib.suppress(OSError):
            self.routing.networks_changed(self.networks)
            self.told = [self.networks]
        self.lead()

    def change_rules(self):
        self.rules = dict(self.rules)
        place = self.random.choice(PLACES)
        if self.rules.pop(place, None) is None:
            names = self.random.sample([*NETWORKS], self.random.choice((1, 1, 2)))
            self.rules[place] = frozenset(names)
        while len(self.rules) > 6:
            del self.rules[self.random.choice([*self.rules])]
        self.in_force.append(self.rules)
        self.lead()

    def lead(self):
        wanted = {}
        for (prefix, port), allowed in self.rules.items():
            version = ip_network(prefix).version
            there = [
                n.name for n in self.networks if n.name in allowed and n.up and n.carries(version)
            ]
            wanted[prefix, port] = there[0] if there else ""
        news = dict.fromkeys(self.led.keys() - wanted.keys())
        news |= {place: name for place, name in wanted.items() if self.led.get(place) != name}
        self.done.append(f"set_ruled {news}")
        try:
            self.routing.set_destinations(
                {Destination(ip_network(p), port, ruled=True): n for (p, port), n in news.items()}
            )
        except OSError:  # given again with the next change
            self.led |= dict.fromkeys(news, "?")
        else:
            self.led, self.in_force = wanted, [self.rules]

    def make_default(self):
        names = [each.name for each in self.networks if each.up]
        with contextlib.suppress(OSError):
            self.routing.set_default(self.random.choice(names) if names else None)

    def reconcile(self):
        self.done.append("reconcile")
        with contextlib.suppress(OSError):
            self.routing.reconcile()

    def step(self):
        self.between = self.random.choice((0, 0, 0.1, 0.3))
        acts = [self.happens] * 3 + [self.follow] * 2 + [self.change_rules] * 3
        self.random.choice([*acts, self.make_default, self.reconcile])()
        self.between = 0
        self.look("a step")

    # -- the oracle -------------------------------------------------------------------------------

    def forbidden(self, remote, port):
        """The networks that are forbidden by the rules before a change and by those after it."""
        found = set(NETWORKS)
        for rules in self.in_force:
            held = [
                (known is not None, ip_network(prefix).prefixlen, ip_network(prefix), allowed)
                for (prefix, known), allowed in rules.items()
                if remote in ip_network(prefix) and known in (None, port)
            ]
            if not held:
                return frozenset()
            *_, prefix, allowed = max(held, key=lambda each: each[:2])
            found -= allowed | self.own_subnets(remote, prefix)
        return frozenset(found)

    def own_subnets(self, remote, within):
        """The networks whose own private subnet goes first, as the rule is about more than that.

        A subnet that overlaps with another network's is no network's own.
        """
        return {
            network.name
            for networks in self.told
            for network, own in self.subnets(networks)
            if own.version == remote.version
            and remote in own
            and own.prefixlen > within.prefixlen
            and not own.is_global
            and not any(
                other is not network and own.version == each.version and own.overlaps(each)
                for other, each in self.subnets(networks)
            )
        }

    @staticmethod
    def subnets(networks):
        return [(network, each.network) for network in networks for each in network.addresses]

    def send(self, sender, forbidden, what, to=None):
        self.serial += 1
        data = MAGIC + struct.pack("!I", self.serial)
        with contextlib.suppress(OSError):
            sender.sendto(data, to) if to else sender.send(data)
            self.sent[data] = what, forbidden

    def look(self, where):
        if self.busy:
            return
        self.sent = {}
        for each in self.living:
            each[1] &= self.forbidden(*each[2])
            self.send(each[0], each[1], f"living {each[2:]}")
        for version, family in FAMILY.items():
            for remote, port in ((r, p) for r in REMOTE[version] for p in (80, 4433)):
                if not (forbidden := self.forbidden(ip_address(remote), port)):
                    continue
                with socket.socket(family, socket.SOCK_DGRAM) as sender:
                    self.send(sender, forbidden, f"{remote} {port}", (remote, port))
                sender = socket.socket(family, socket.SOCK_DGRAM)
                try:
                    sender.connect((remote, port))
                except OSError:
                    sender.close()
                    continue
                what = (ip_address(remote), port), sender.getsockname()[0]
                self.send(sender, forbidden, f"connected {what}")
                if self.random.random() < 0.04 and len(self.living) < 12:
                    self.living.append([sender, forbidden, *what])
                else:
                    sender.close()
        with contextlib.suppress(BlockingIOError):
            while True:
                packet, (name, _, kind, *_) = self.seen.recvfrom(2000)
                at = packet.find(MAGIC)
                what, forbidden = self.sent.get(packet[at : at + 8], ("", ()))
                # (Forwarded by none: what leaves is PACKET_OUTGOING.)
                story = "\n".join((*self.done[-30:], f"{where}: {what} over {name}"))
                assert kind != 4 or name not in forbidden, story
        for each in [each for each in self.living if not each[1]]:
            each[0].close()
            self.living.remove(each)


@contextlib.contextmanager
def walking(make_namespace, seed, number=0):
    with contextlib.ExitStack() as exits:
        client, far = make_namespace(f"laptop{number}"), make_namespace(f"far{number}")
        for namespace in (client, far):
            namespace.sysctl("net.ipv6.conf.default.accept_dad", 0)
            namespace.sysctl("net.ipv6.conf.default.router_solicitations", 0)
        exits.enter_context(client.entered())
        iptables.track()
        walk = Walk(seed, client, far, exits)
        walk.wait_until_links_run()
        walk.follow()
        yield walk
        for each in walk.living:
            each[0].close()


@pytest.mark.parametrize("seed", [3, 8])
def test_nothing_ruled_leaves_by_a_forbidden_network_at_any_instant(make_namespace, seed):
    walks = int(os.environ.get("CEDOS_WALKS", "1"))
    for number in range(walks):
        with walking(make_namespace, seed * 1000 + number, number) as walk:
            for _ in range(50):
                walk.step()


@pytest.mark.parametrize("version", [4, 6])
def test_a_network_never_seen_draws_nothing_by_a_route(make_namespace, version):
    """Its route counted as a VPN's, or one to containers, until the monitor told of it."""
    with walking(make_namespace, 1) as walk:
        walk.goes("wlan0")
        walk.follow()
        walk.routing._interfaces.discard("wlan0")
        remote = REMOTE[version][0]
        held_to(walk, remote, "lte0")
        walk.comes("wlan0")
        walk.wait_until_links_run()
        walk.route("add", remote, "wlan0", version, 50)
        walk.look("it comes")
        walk.reconcile()
        walk.look("before the daemon is told")
        walk.follow()


def held_to(walk, place, name):
    walk.rules = {(place, None): frozenset([name])}
    walk.in_force = [{}, walk.rules]
    walk.lead()


def test_a_network_in_one_prefix_with_another_loses_its_address(make_namespace):
    """The kernel gave a socket the other one's, which fitted, and led it over that one later."""
    with walking(make_namespace, 1) as walk:
        for name in ("wlan0", "lte0"):
            walk.address("del", name, OWN[6].format(NETWORKS[name]))
        walk.address("add", "wlan0", "2001:db8:45::9/64")
        walk.follow()
        held_to(walk, "2001:db8:100::1", "eth0")
        walk.address("del", "eth0", "2001:db8:45::2/64")
        walk.random.random = lambda: 0.01  # each connected socket lives on
        walk.look("an address is lost")
        walk.follow()
        walk.look("the daemon has followed")


def test_a_network_loses_an_address_after_all_were_deprecated(make_namespace):
    """The kernel gave a socket another network's, as its route named the lost one no more."""
    with walking(make_namespace, 1) as walk:
        walk.address("add", "eth0", "2001:db8:46::2/64")
        walk.announce("eth0", preferred_s=0)
        walk.follow()
        held_to(walk, "2001:db8:100::1", "eth0")
        walk.random.random = lambda: 0.01  # each connected socket lives on
        walk.look("all are deprecated")
        assert walk.living
        walk.address("del", "eth0", "2001:db8:45::2/64")
        walk.look("an address is lost")
        walk.address("del", "eth0", "2001:db8:46::2/64")
        walk.look("all are lost")
        walk.follow()
        walk.look("the daemon has followed")


@pytest.mark.parametrize("version", [4, 6])
def test_a_network_never_seen_takes_the_hosts_default(make_namespace, version):
    """An unknown default had all rules withdrawn until the monitor told of its network."""
    with walking(make_namespace, 1) as walk:
        walk.goes("wlan0")
        walk.follow()
        walk.routing._interfaces.discard("wlan0")
        held_to(walk, REMOTE[version][0], "lte0")
        walk.comes("wlan0")
        walk.wait_until_links_run()
        walk.look("it comes")
        walk.reconcile()
        walk.look("before the daemon is told")
        walk.follow()
