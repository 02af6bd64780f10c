"""The test page over a network of its own kind: which addresses are asked for, and what is known then."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.model import Network, NetworkKind, NextHop
from cedos.monitor.dns import message
from cedos.monitor.liveness.portal_check import check
from cedos.monitor.liveness.portal_verdict import PortalVerdict, TestPage

pytestmark = pytest.mark.anyio

SIX = ip_address("::1")
LO6 = Network(
    *("lo", "lo", 1, NetworkKind.ETHERNET, False, (ip_interface("::1/128"),)), resolvers=(SIX,)
)


class Resolver(asyncio.DatagramProtocol):
    """Knows one name, which has IPv6 addresses alone; `kinds`: what it was asked for."""

    def __init__(self, name: str) -> None:
        self.name, self.kinds = name, set[int]()

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self.transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        name, kind = message.asked(data) or ("", 0)
        self.kinds.add(kind)
        given = name == self.name and kind == message.AAAA
        code = 0 if name == self.name else 3
        header = data[:2] + struct.pack("!5H", 0x8180 | code, 1, int(given), 0, 0)
        record = b"\xc0\x0c" + struct.pack("!2HIH", message.AAAA, 1, 60, 16) + SIX.packed
        self.transport.sendto(header + data[12:] + (record if given else b""), addr)


@asynccontextmanager
async def surroundings() -> AsyncIterator[tuple[Resolver, int, int]]:
    """A resolver, its port, and that of the page's server."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    loop = asyncio.get_running_loop()
    transport, resolver = await loop.create_datagram_endpoint(
        lambda: Resolver("page.test"), ("::1", 0)
    )
    server = await asyncio.start_server(page, "::1", 0, family=socket.AF_INET6)
    try:
        port = transport.get_extra_info("sockname")[1]
        yield resolver, port, server.sockets[0].getsockname()[1]
    finally:
        transport.close()
        server.close()


async def test_a_network_of_ipv6_alone_is_asked_for_ipv6_addresses() -> None:
    async with surroundings() as (resolver, port, web):
        found = await check(LO6, TestPage.of(f"http://page.test:{web}/", ""), 2.0, port)
    assert found.verdict is PortalVerdict.FREE
    assert resolver.kinds == {message.AAAA}


async def test_a_page_that_a_network_could_not_lead_to_tells_nothing() -> None:
    """Else another network, where it answers, would make this one a portal's."""
    found = await check(LO6, TestPage.of("http://127.0.0.1:9/", ""), 2.0)
    assert found.verdict is PortalVerdict.UNCLEAR


async def test_a_router_that_answers_no_names_need_not_be_a_resolver() -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as silent:
        silent.bind(("::1", 0))
        port = silent.getsockname()[1]
        page = TestPage.of("http://page.test/", "")
        guessed = replace(LO6, resolvers=(), next_hops=(NextHop(6, SIX),))
        for network in (guessed, LO6):
            found = await check(network, page, 0.4, port)
            assert found.verdict is PortalVerdict.SILENT
            assert found.guessed == (network is guessed)
