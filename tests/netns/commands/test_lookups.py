"""A program's look-up where Wi-Fi's resolver says nothing: answered over the phone."""

import contextlib
import json
import socket
import struct
import threading
import time
from contextlib import suppress
from ipaddress import ip_address

import pytest
from kit.waiting import wait_until

from cedos.host.lookups.watch import AnswerDelivery
from cedos.host.monitor import dns_message as dns
from cedos.model import FlowKey

GATEWAYS = ("192.168.43.1", "192.168.44.1")
STUB = "127.0.0.53"
SO_BINDTODEVICE, IP_UNICAST_IF = 25, 50


class Resolver:
    """A resolver at each gateway; an answer tells which one gave it; `silent` ones do not answer."""

    def __init__(self, phones):
        self.silent = set()
        self.asked = []
        self._sockets = []
        self._phones = phones
        for gateway in GATEWAYS:
            self.listen(gateway, socket.AF_INET, (gateway, 53))

    def listen(self, gateway, family, address):
        with self._phones.entered():
            one = socket.socket(family, socket.SOCK_DGRAM)
            one.bind(address)
        self._sockets.append(one)
        threading.Thread(target=self._serve, args=(gateway, one), daemon=True).start()

    def _serve(self, gateway, one):
        with suppress(OSError):
            while True:
                question, asker = one.recvfrom(2048)
                if not question:
                    return
                self.asked.append(gateway)
                if gateway in self.silent:
                    continue
                record = b"\xc0\x0c" + bytes((0, 1, 0, 1, 0, 0, 0, 60, 0, 4))
                record += socket.inet_aton(gateway)
                head = question[:2] + b"\x81\x80" + bytes((0, 1, 0, 1, 0, 0, 0, 0))
                one.sendto(head + question[12:] + record, asker)

    def close(self):
        for one in self._sockets:
            with suppress(OSError):  # it is not connected, and ends all the same
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def resolver(tethered):
    made = Resolver(tethered.phones)
    yield made
    made.close()


class Stub:
    """A resolver on loopback that asks one network's and pins what it sends to that network.

    So does systemd-resolved for each of its links, by the one option or the other.
    """

    def __init__(self, laptop, pin):
        laptop.ip("link", "set", "lo", "up")
        with laptop.entered():
            self._near = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            self._near.bind((STUB, 53))
            self._far = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._far.setsockopt(*pin)
        self._far.connect((GATEWAYS[0], 53))
        self._asked = {}
        threading.Thread(target=self._ask, daemon=True).start()
        threading.Thread(target=self._answer, daemon=True).start()

    def _ask(self):
        with suppress(OSError):
            while True:
                question, asker = self._near.recvfrom(2048)
                if not question:
                    return
                self._asked[question[:2]] = asker
                self._far.send(question)

    def _answer(self):
        with suppress(OSError):
            while answer := self._far.recv(2048):
                self._near.sendto(answer, self._asked[answer[:2]])

    def close(self):
        for one in (self._near, self._far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def look_up(laptop, name, number, *, wait_s=5.0, resolver=GATEWAYS[0], link=()):
    """As a program with one resolver in resolv.conf does; the address, and how long it took."""
    with laptop.entered():
        asker = socket.socket(socket.AF_INET6 if link else socket.AF_INET, socket.SOCK_DGRAM)
    with asker:
        asker.connect((resolver, 53, *link))
        asker.settimeout(wait_s)
        began_s = time.monotonic()
        asker.send(dns.question(number, name))
        reply = dns.parse(asker.recv(2048))
        assert (reply.number, reply.name) == (number, name)
        return str(reply.addresses[0]), time.monotonic() - began_s


def test_a_dead_uplink_costs_a_look_up_a_third_of_a_second(tethered, install, resolver):
    cedos = install(tethered.laptop)
    with cedos.up():
        assert look_up(tethered.laptop, "a.example", 1)[0] == GATEWAYS[0]
        resolver.silent = {GATEWAYS[0]}
        took_s = []
        for number in range(20):
            address, one_s = look_up(tethered.laptop, f"{number}.example", 100 + number)
            assert address == GATEWAYS[1]
            took_s.append(one_s)
        print([round(each, 3) for each in took_s])
        assert 0.25 < took_s[0] < 0.8
        assert sorted(took_s)[18] < 0.5
        (problem,) = (p for p in cedos.client.status().problems if "resolver" in p)
        assert problem == (
            "the DNS resolver of wlan0 does not answer. Look-ups are answered over lte0"
        )
        # Names of the local network stay there, and it is believed again once it speaks.
        asked = len(resolver.asked)
        with pytest.raises(TimeoutError):
            look_up(tethered.laptop, "nas.local", 7, wait_s=1.0)
        assert resolver.asked[asked:] == [GATEWAYS[0]]
        resolver.silent = set()
        assert look_up(tethered.laptop, "b.example", 8)[0] in GATEWAYS
        asked = len(resolver.asked)
        assert look_up(tethered.laptop, "c.example", 9)[0] == GATEWAYS[0]
        time.sleep(0.5)
        assert resolver.asked[asked:] == [GATEWAYS[0]]
        wait_until(lambda: not any("resolver" in each for each in cedos.client.status().problems))


@pytest.mark.parametrize("option", ["SO_BINDTODEVICE", "IP_UNICAST_IF"])
def test_a_stub_that_keeps_to_the_dead_network_is_answered_too(tethered, install, resolver, option):
    """systemd-resolved between the programs and the networks' resolvers."""
    index = json.loads(tethered.laptop.ip("-j", "link", "show", "wlan0"))[0]["ifindex"]
    pins = {
        "SO_BINDTODEVICE": (socket.SOL_SOCKET, SO_BINDTODEVICE, b"wlan0"),
        "IP_UNICAST_IF": (socket.IPPROTO_IP, IP_UNICAST_IF, struct.pack("!I", index)),
    }
    with contextlib.closing(Stub(tethered.laptop, pins[option])), install(tethered.laptop).up():
        assert look_up(tethered.laptop, "a.example", 1, resolver=STUB)[0] == GATEWAYS[0]
        resolver.silent = {GATEWAYS[0]}
        took_s = []
        for number in range(20):
            name = f"{number}.example"
            address, one_s = look_up(tethered.laptop, name, 100 + number, resolver=STUB)
            assert address == GATEWAYS[1]
            took_s.append(one_s)
        print([round(each, 3) for each in took_s])
        assert took_s[0] < 0.8
        assert sorted(took_s)[18] < 0.5


def test_a_router_that_announces_its_link_local_address_is_not_waited_for(
    tethered, install, resolver
):
    """By IPv6's router advertisements (RFC 8106); also where two interfaces have one address."""
    laptop, phones = tethered.laptop, tethered.phones
    index = {}
    for where, last, names in ((laptop, 2, ("wlan0", "lte0")), (phones, 1, ("wlan0",))):
        for name in names:
            where.ip("address", "add", f"fe80::{last}/64", "dev", name, "nodad")
            index[where] = json.loads(where.ip("-j", "link", "show", "wlan0"))[0]["ifindex"]
    resolver.listen("192.0.2.9", socket.AF_INET6, ("fe80::1", 53, 0, index[phones]))

    def asked(number):
        link = (0, index[laptop])
        return look_up(laptop, f"{number}.example", number, resolver="fe80::1", link=link)

    with install(laptop).up():
        assert asked(1)[0] == "192.0.2.9"
        resolver.silent = {"192.0.2.9"}
        assert asked(2) == (GATEWAYS[1], pytest.approx(0.4, abs=0.3))
        assert asked(3)[1] < 0.2


def test_without_it_the_program_waits(tethered, install, resolver):
    resolver.silent = {GATEWAYS[0]}
    with (
        install(tethered.laptop, "[steering]\nlookups = false\n").up(),
        pytest.raises(TimeoutError),
    ):
        look_up(tethered.laptop, "a.example", 1, wait_s=2.0)


@pytest.mark.parametrize(
    ("local", "remote"), [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")]
)
def test_a_program_takes_the_answer_for_its_resolvers(make_namespace, local, remote):
    laptop, router = make_namespace("laptop"), make_namespace("router")
    laptop.ip("link", "add", "wlan0", "type", "veth", "peer", "wlan0", "netns", router.name)
    prefix = 64 if ":" in local else 24
    for where, address in ((laptop, local), (router, remote)):
        options = ("nodad",) if ":" in local else ()
        where.ip("address", "add", f"{address}/{prefix}", "dev", "wlan0", *options)
        where.ip("link", "set", "wlan0", "up")
    laptop.sysctl("net.ipv4.conf.all.rp_filter", 1)  # strict, as many distributions have it
    with laptop.entered():
        program = socket.socket(
            socket.AF_INET6 if ":" in local else socket.AF_INET, socket.SOCK_DGRAM
        )
        delivery = AnswerDelivery()
    with program, contextlib.closing(delivery):
        program.settimeout(5)
        program.connect((remote, 53))
        port = program.getsockname()[1]
        with laptop.entered():
            delivery(
                FlowKey(ip_address(local), port, ip_address(remote), 53, "udp"), b"answer" * 100
            )
        assert program.recv(2048) == b"answer" * 100
