"""A TLS handshake with a known host: what its answer proves."""

import asyncio
import socket
from ipaddress import ip_address, ip_interface

import pytest

from cedos.host.monitor.portal_check import TlsAnswer, shake_hands
from cedos.model import Network, NetworkKind

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
