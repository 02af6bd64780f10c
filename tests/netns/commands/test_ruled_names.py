"""Rules for names on a real kernel: the first packet to a ruled name is refused, however it was found.

Wi-Fi is unplugged, so that all but the ruled names goes over the phone.
"""

import os
import socket
import struct
import threading
import time
from contextlib import suppress
from ipaddress import ip_address

import pytest
from kit.waiting import wait_until

from cedos.controller.rule import RuleRequest
from cedos.host.monitor import dns_message as dns

PHONE = {4: "192.168.44.1", 6: "2001:db8:44::1"}
STRANGER = "198.51.100.53"
HOST = "updates.example"
WEB = 8080
ADDRESSES = [f"203.0.113.{number}" for number in range(1, 60)]
RULED6, OTHER6 = "2001:db8:113::7", "2001:db8:113::8"
OTHER = "198.51.100.80"
LAPTOP = "192.168.44.2"
FORGED = [f"198.18.{high}.{low}" for high in range(8) for low in range(1, 36)]


def encoded(name):
    return b"".join(bytes((len(part),)) + part.encode() for part in name.split(".")) + b"\0"


def record(name, *addresses, alias=""):
    """Records of a name: its addresses, or its alias."""
    if alias:
        target = encoded(alias)
        return encoded(name) + struct.pack("!HHIH", 5, 1, 60, len(target)) + target
    found = b""
    for each in map(ip_address, addresses):
        kind = dns.A if each.version == 4 else dns.AAAA
        found += encoded(name) + struct.pack("!HHIH", kind, 1, 60, len(each.packed)) + each.packed
    return found


def answer(question, *records):
    count = sum(map(count_of, records))
    return (
        question[:2]
        + struct.pack("!HHHHH", 0x8180, 1, count, 0, 0)
        + question[12:]
        + b"".join(records)
    )


def count_of(records):
    count = offset = 0
    while offset < len(records):
        while records[offset]:
            offset += records[offset] + 1
        offset += 11 + struct.unpack_from("!H", records, offset + 9)[0]
        count += 1
    return count


def taken(web):
    """Accept what comes; read a request, and close."""
    with suppress(OSError):
        while True:
            client, _ = web.accept()
            with client:
                client.settimeout(0.2)
                with suppress(TimeoutError):
                    client.recv(1000)


class World:
    """A laptop with a rule and no Wi-Fi; resolvers whose answers a test sets, and servers."""

    def __init__(self, tethered, cedos):
        self.laptop, self.phones, self.cedos = tethered.laptop, tethered.phones, cedos
        self.zone = {}
        self.lies = {}
        self.urgent = b""
        self._sockets = []
        self.phones.ip("link", "set", "lo", "up")
        for each in (*ADDRESSES, STRANGER, OTHER):
            self.phones.ip("address", "add", f"{each}/32", "dev", "lo")
        for side, last in ((self.laptop, 2), (self.phones, 1)):
            side.ip("address", "add", f"2001:db8:44::{last}/64", "dev", "lte0", "nodad")
        self.laptop.ip("-6", "route", "add", "default", "via", PHONE[6])
        for each in (RULED6, OTHER6):
            self.phones.ip("address", "add", f"{each}/128", "dev", "lo", "nodad")
        self.phones.sysctl("net.ipv6.conf.all.forwarding", 1)
        self.laptop.ip("link", "set", "wlan0", "down")
        for where, zone in ((PHONE[4], self.zone), (STRANGER, self.lies)):
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                self._serve(where, kind, zone)
        for family, here in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
            with self.phones.entered():
                web = socket.socket(family, socket.SOCK_STREAM)
                if family == socket.AF_INET6:
                    web.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                web.bind((here, WEB))
                web.listen(64)
            self._sockets.append(web)
            threading.Thread(target=taken, args=(web,), daemon=True).start()

    def _serve(self, where, kind, zone):
        with self.phones.entered():
            one = socket.socket(socket.AF_INET, kind)
            one.bind((where, 53))
        self._sockets.append(one)
        if kind == socket.SOCK_STREAM:
            one.listen(16)

        def said(question):
            return answer(question, *zone.get(dns.read_question(question) or ("", 0), ()))

        def datagrams():
            with suppress(OSError):
                while True:
                    question, asker = one.recvfrom(2048)
                    if not question:
                        return
                    one.sendto(said(question), asker)

        def streams():
            with suppress(OSError):
                while True:
                    client, _ = one.accept()
                    with client:
                        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                        content = said(client.recv(2048)[2:])
                        if self.urgent:
                            client.send(self.urgent, socket.MSG_OOB)
                        # The length alone, then the answer in two parts.
                        client.sendall(struct.pack("!H", len(content)))
                        client.sendall(content[: len(content) // 2])
                        client.sendall(content[len(content) // 2 :])
                        client.recv(1)

        threading.Thread(
            target=datagrams if kind == socket.SOCK_DGRAM else streams, daemon=True
        ).start()

    def rule(self):
        """Without the addresses that the command would have looked up."""
        self.cedos.client.add_rule(RuleRequest(host=HOST, never=("metered",)))

    def look_up(self, name, kind=dns.A, *, resolver=PHONE[4], tcp=False):
        question = dns.question(7, name, kind)
        with self.laptop.entered():
            asker = socket.socket(socket.AF_INET, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
        with asker:
            asker.settimeout(5)
            asker.connect((resolver, 53))
            asker.sendall((struct.pack("!H", len(question)) if tcp else b"") + question)
            data = b""
            if tcp:
                while len(data) < 2 or len(data) < 2 + struct.unpack_from("!H", data)[0]:
                    data += asker.recv(4096)
                data = data[2:]
            else:
                data = asker.recv(4096)
        reply = dns.parse(data)
        return [str(each) for each in reply.addresses]

    def reaches(self, address, say=b"", *, bound=False, limit_s=5):
        """Connect at once, as a program does that has just had the answer."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.laptop.entered():
            program = socket.socket(family, socket.SOCK_STREAM)
        with program:
            if bound:
                program.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lte0")
            program.settimeout(limit_s)
            try:
                program.connect((address, WEB))
                program.sendall(say)
            except TimeoutError:
                raise
            except OSError:
                return False
            return True

    def close(self):
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def world(tethered, install):
    cedos = install(tethered.laptop)
    config = cedos.folder / "cedos.toml"
    # Names in requests are seen, as on a laptop.
    config.write_text(config.read_text().replace("[profiler]\nenabled = false\n", ""))
    made = World(tethered, cedos)
    with cedos.up():
        wait_until(lambda: made.reaches(OTHER), 10.0)
        yield made
    made.close()


def test_the_first_packet_to_a_ruled_name_is_refused(world):
    world.rule()
    assert world.reaches(ADDRESSES[0])  # no name leads there yet
    world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[1]),)
    assert world.look_up(HOST) == [ADDRESSES[1]]
    assert not world.reaches(ADDRESSES[1])
    # One below it, by a wildcard, with an address of its own.
    world.zone["eu.dl." + HOST, dns.A] = (record("eu.dl." + HOST, ADDRESSES[2]),)
    world.look_up("eu.dl." + HOST)
    assert not world.reaches(ADDRESSES[2])
    # A second answer later; then one with many.
    world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[3]),)
    world.look_up(HOST)
    assert not world.reaches(ADDRESSES[3])
    world.zone[HOST, dns.A] = (record(HOST, *ADDRESSES[10:50]),)
    assert len(world.look_up(HOST)) == 40
    assert not world.reaches(ADDRESSES[49])
    assert not world.reaches(ADDRESSES[10])
    assert not world.reaches(ADDRESSES[1])  # and what was told first
    # Aliases: in one answer, and one after the other as a stub asks.
    alias = "cdn.example.net"
    world.zone["www." + HOST, dns.A] = (
        record("www." + HOST, alias=alias),
        record(alias, ADDRESSES[4]),
    )
    world.look_up("www." + HOST)
    assert not world.reaches(ADDRESSES[4])
    world.zone["img." + HOST, dns.A] = (record("img." + HOST, alias="far.example.net"),)
    world.zone["far.example.net", dns.A] = (record("far.example.net", ADDRESSES[5]),)
    assert world.look_up("img." + HOST) == []
    world.look_up("far.example.net")
    assert not world.reaches(ADDRESSES[5])
    # IPv6, and over TCP.
    world.zone[HOST, dns.AAAA] = (record(HOST, RULED6),)
    assert world.look_up(HOST, dns.AAAA) == [RULED6]
    assert not world.reaches(RULED6)
    assert world.reaches(OTHER6)
    world.zone["tcp." + HOST, dns.A] = (record("tcp." + HOST, *ADDRESSES[50:58]),)
    assert world.look_up("tcp." + HOST, tcp=True) == ADDRESSES[50:58]
    assert not world.reaches(ADDRESSES[57])
    # Others go on.
    world.zone["other.example", dns.A] = (record("other.example", OTHER),)
    world.look_up("other.example")
    assert world.reaches(OTHER)
    assert world.reaches(ADDRESSES[0])


def test_a_socket_that_is_bound_to_a_forbidden_network_reaches_no_ruled_name(world):
    """The kernel's routing does not ask rules for it."""
    world.rule()
    world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[1]),)
    world.zone[HOST, dns.AAAA] = (record(HOST, RULED6),)
    world.look_up(HOST)
    world.look_up(HOST, dns.AAAA)
    for ruled, other in ((ADDRESSES[1], OTHER), (RULED6, OTHER6)):
        assert world.reaches(other, bound=True)
        with pytest.raises(TimeoutError):
            world.reaches(ruled, bound=True, limit_s=1)
    before = world.laptop.run("tc", "filter", "show", "dev", "lte0", "egress").stdout
    assert "cedos_rules" in before
    world.cedos.client.remove_rule(1)
    assert world.reaches(ADDRESSES[1], bound=True)
    assert not world.laptop.run("tc", "qdisc", "show", "dev", "lte0", "clsact").stdout


def test_an_urgent_byte_hides_no_answer(world):
    """Skip it, as programs do: the daemon took it for the first byte of a length."""
    world.zone[HOST, dns.A] = [record(HOST, ADDRESSES[0])]
    world.rule()
    assert world.look_up(HOST, tcp=True) == [ADDRESSES[0]]
    world.urgent = b"\xff"
    with pytest.raises(TimeoutError):
        world.look_up(HOST, tcp=True)


def test_what_was_looked_up_before_the_rule_is_under_it(world):
    world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[1]),)
    world.zone["dl." + HOST, dns.A] = (record("dl." + HOST, ADDRESSES[2]),)
    world.look_up(HOST)
    world.look_up("dl." + HOST, tcp=True)
    assert world.reaches(ADDRESSES[1])
    world.rule()
    assert not world.reaches(ADDRESSES[1])
    assert not world.reaches(ADDRESSES[2])


def test_what_is_looked_up_while_the_packet_filter_is_flushed_is_under_the_rule(world):
    """A firewall that reloads flushes the rules: until they were back, no answer was read."""
    world.rule()

    def is_refused(address):
        try:
            return not world.reaches(address, limit_s=0.3)
        except TimeoutError:  # its first packet was on its way as the rule came
            return False

    for address in ADDRESSES[1:4]:
        world.zone[HOST, dns.A] = (record(HOST, address),)
        world.laptop.run("iptables", "-t", "mangle", "-F", "INPUT")
        assert world.look_up(HOST) == [address]
        wait_until(lambda address=address: is_refused(address), 3.0)


def test_a_network_whose_addresses_are_called_deprecated_keeps_what_is_ruled(world):
    """Announce it, as any neighbour can: the kernel took LTE's, and half of the bytes went there."""
    world.laptop.ip("link", "set", "wlan0", "up")
    for side, last in ((world.laptop, 2), (world.phones, 1)):
        side.ip("address", "add", f"2001:db8:43::{last}/64", "dev", "wlan0", "nodad")
    route = "-6 route add default via 2001:db8:43::1 dev wlan0 metric 512"
    world.laptop.ip(*route.split())
    world.cedos.client.add_rule(RuleRequest(host=RULED6, only=("wlan0",)))

    def uses_wifi():
        way = world.laptop.run("ip", "-6", "route", "get", RULED6, check=False).stdout
        return "dev wlan0" in way and "src 2001:db8:43::2 " in way

    wait_until(uses_wifi, 10.0)
    for left_s in (0, 1000, 0):
        lifetimes = f"preferred_lft {left_s} valid_lft 2000"
        world.laptop.ip(*f"address change 2001:db8:43::2/64 dev wlan0 {lifetimes}".split())
        wait_until(uses_wifi, 10.0)


def forge(world, name, addresses, *, port=4444, checksum=0):
    """A neighbour sends a datagram in the resolver's name; a checksum of 0 is none."""
    content = answer(dns.question(7, name), record(name, *addresses))
    udp = struct.pack("!4H", 53, port, 8 + len(content), checksum) + content
    ends = b"".join(ip_address(each).packed for each in (PHONE[4], LAPTOP))
    head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), 7, 0, 64, 17, 0) + ends
    with world.phones.entered():
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    with raw:
        raw.sendto(head + udp, (LAPTOP, 0))


def test_a_neighbours_forged_answers_change_no_rule(world):
    """8 datagrams that no program had asked for pushed the true address out of the rule, for good."""
    name = "dl." + HOST
    world.zone[name, dns.A] = (record(name, ADDRESSES[1]),)
    world.look_up(name)
    for _ in range(4):
        forge(world, name, FORGED[:35])
        forge(world, name, FORGED[35:70])
    world.rule()
    assert not world.reaches(ADDRESSES[1])
    # With a wrong checksum, which connection tracking leaves alone; and to a port of another look-up.
    with world.laptop.entered():
        program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with program:
        program.settimeout(5)
        program.bind((LAPTOP, 40_000))
        program.connect((PHONE[4], 53))
        program.sendall(dns.question(9, "other.example"))
        program.recv(1000)
        for at in range(0, len(FORGED), 35):
            forge(world, f"a{at}.{HOST}", FORGED[at : at + 35], checksum=0xDEAD)
            forge(world, f"b{at}.{HOST}", FORGED[at : at + 35], port=40_000)
    world.look_up(name)
    (rule,) = world.cedos.client.rules()
    assert rule.rule.addresses == (ADDRESSES[1],)
    assert not world.reaches(ADDRESSES[1])


def test_an_answer_whose_question_the_kernel_has_forgotten_reaches_no_program(world):
    """Drop it: a user who fills the table of connections makes the kernel forget questions."""
    world.rule()
    with world.laptop.entered():
        program = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with program:
        program.settimeout(5)
        program.bind((LAPTOP, 4444))
        forge(world, HOST, ADDRESSES[:1])
        # The first answer that comes is that to a question. It is held, and its rule stands.
        world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[1]),)
        program.sendto(dns.question(9, HOST), (PHONE[4], 53))
        assert dns.parse(program.recv(1000)).addresses == (ip_address(ADDRESSES[1]),)
        assert not world.reaches(ADDRESSES[1])


def test_an_answer_whose_connection_the_kernel_has_forgotten_reaches_no_program(world):
    """Drop it: the packet filter took it for the first packet of a connection, which no one reads."""
    world.rule()
    world.laptop.sysctl("net.netfilter.nf_conntrack_tcp_timeout_established", 1)
    with world.phones.entered():
        resolver = socket.create_server((OTHER, 53))
    with world.laptop.entered():
        program = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with resolver, program:
        program.connect((OTHER, 53))
        program.settimeout(3)
        speaking, _ = resolver.accept()
        with speaking:
            question = dns.question(7, HOST)
            program.sendall(struct.pack("!H", len(question)) + question)
            content = answer(speaking.recv(1000)[2:], record(HOST, ADDRESSES[0]))
            time.sleep(3)
            speaking.sendall(struct.pack("!H", len(content)) + content)
            with pytest.raises(TimeoutError):
                program.recv(1000)


def test_what_opens_a_connection_once_more_tells_no_beginning_of_its_stream(world):
    """A second SYN-ACK, sent behind a message's length, had the message pass unread."""
    with world.phones.entered():
        resolver = socket.create_server((OTHER, 53))
        seen = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(0x0800))
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_TCP)
    with world.laptop.entered():
        program = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    with resolver, seen, raw, program:
        program.connect((OTHER, 53))
        program.settimeout(3)
        speaking, (_, port) = resolver.accept()
        with speaking:
            content = answer(dns.question(0x9A51, HOST), record(HOST, ADDRESSES[0]))
            speaking.sendall(struct.pack("!H", len(content)))
            assert program.recv(1000) == struct.pack("!H", len(content))
            world.rule()
            ends = ip_address(LAPTOP).packed + ip_address(OTHER).packed
            while (packet := seen.recv(2000))[12:20] != ends or packet[33] != 0x10:
                pass
            sent, first = struct.unpack_from("!2I", packet, 24)
            # What comes behind the length has the next number but one.
            numbers = (first + 1) & 0xFFFFFFFF, sent
            head = struct.pack("!2H2I2B3H", 53, port, *numbers, 5 << 4, 0x12, 1000, 0, 0)
            summed = ends[4:] + ends[:4] + struct.pack("!2H", 6, len(head)) + head
            total = sum(struct.unpack(f"!{len(summed) // 2}H", summed))
            total = (total & 0xFFFF) + (total >> 16)
            total = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
            raw.bind((OTHER, 0))
            raw.sendto(head[:16] + struct.pack("!H", total) + head[18:], (LAPTOP, 0))
            time.sleep(0.3)
            speaking.sendall(content)
            with pytest.raises(TimeoutError):
                program.recv(1000)


def test_a_flood_of_forged_answers_hides_no_question(world):
    """Fill a queue with packets from port 53, as a router did: 15 of 16 look-ups got round the rule."""
    world.rule()
    with world.phones.entered():
        flooding = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    flooding.bind((OTHER, 53))
    ended, found = threading.Event(), []

    def flood():
        content = answer(dns.question(7, "other.example"))
        while not ended.is_set():
            for port in range(20_000, 20_200):
                flooding.sendto(content, (LAPTOP, port))

    sender = threading.Thread(target=flood)
    sender.start()
    try:
        for number in range(6):
            world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[number]),)
            with suppress(TimeoutError):
                found += world.look_up(HOST)
        assert found
        assert not any(map(world.reaches, found))
    finally:
        ended.set()
        sender.join()
        flooding.close()


def test_look_ups_of_many_new_addresses_leave_the_daemon_its_other_work(world):
    """Look up 150 names below a ruled one, 64 addresses each: nothing was answered for 10 s."""
    world.rule()
    names = [f"{number}.{HOST}" for number in range(150)]
    for high, name in enumerate(names):
        found = [f"198.19.{high}.{low}" for low in range(1, 65)]
        world.zone[name, dns.A] = (record(name, *found),)
    world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[1]),)
    world.zone["other.example", dns.A] = (record("other.example", OTHER),)
    world.look_up(HOST)
    with world.laptop.entered():
        flooding = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with flooding:
        os.fchown(flooding.fileno(), 1234, -1)  # another user's
        flooding.connect((PHONE[4], 53))
        for number, name in enumerate(names):
            flooding.send(dns.question(number, name))
            time.sleep(0.01)
        began_s = time.monotonic()
        assert world.look_up("other.example") == [OTHER]
        world.cedos.client.status()
        assert time.monotonic() - began_s < 1.0
        flooding.setblocking(False)
        told = set()
        with suppress(BlockingIOError):
            while True:
                told.add(int.from_bytes(flooding.recv(4096)[:2], "big"))
    assert told, "some are within the user's share"
    assert not any(world.reaches(f"198.19.{high}.1") for high in sorted(told)[-3:])


def test_a_user_who_claims_a_name_changes_nothing_for_others(world):
    """Name hosts that are none of the rule's, in 300 requests and by a resolver of the user's own."""
    world.zone[HOST, dns.A] = (record(HOST, ADDRESSES[1]),)
    world.rule()
    world.look_up(HOST)
    for number in range(300):
        address = ADDRESSES[2 + number % 50]
        if not world.reaches(address, f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode()):
            break
    world.lies[HOST, dns.A] = (record(HOST, *ADDRESSES[2:52]),)
    with pytest.raises(TimeoutError):  # or the ruled name would be reached there
        world.look_up(HOST, resolver=STRANGER)
    assert not world.reaches(ADDRESSES[1])
    assert all(world.reaches(address) for address in ADDRESSES[2:52])
    (rule,) = world.cedos.client.rules()
    assert rule.rule.addresses == (ADDRESSES[1],)
    # What our own look-up confirms is under the rule before the program has it.
    world.zone["new." + HOST, dns.A] = world.lies["new." + HOST, dns.A] = (
        record("new." + HOST, ADDRESSES[55]),
    )
    world.look_up("new." + HOST, resolver=STRANGER)
    assert not world.reaches(ADDRESSES[55])


def test_answers_pass_without_a_rule_for_a_name_and_after_a_crash(world):
    shown = "iptables-save -t mangle"
    assert "NFQUEUE" not in world.laptop.run(*shown.split()).stdout
    world.rule()
    assert "NFQUEUE" in world.laptop.run(*shown.split()).stdout
    world.zone["other.example", dns.A] = (record("other.example", OTHER),)
    assert world.look_up("other.example") == [OTHER]
    world.cedos.client.remove_rule(1)
    assert "NFQUEUE" not in world.laptop.run(*shown.split()).stdout
    world.rule()
    status = world.cedos.client.status()
    world.laptop.run("kill", "-9", str(status.pid))

    def answered():
        with suppress(TimeoutError):  # what it held then is lost, and asked for again
            return world.look_up("other.example") == [OTHER]
        return False

    wait_until(answered, 12.0)
    assert world.cedos.run("restore").returncode == 0
    assert "CEDOS" not in world.laptop.run(*shown.split()).stdout
