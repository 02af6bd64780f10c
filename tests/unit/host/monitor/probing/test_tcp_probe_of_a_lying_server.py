"""Servers that answer TCP probes with lies, or not at all: an end as a problem."""

import asyncio
from collections.abc import Callable
from ipaddress import ip_address

import pytest

from cedos.host.monitor.probing import tcp_probe, wire
from cedos.host.monitor.probing.result import ProbeServer

pytestmark = pytest.mark.anyio

HERE = ip_address("127.0.0.1")
KEY = b"k" * 32

TCP_LIES: dict[str, tuple[Callable[[wire.TransferRequest], bytes], str]] = {
    "a grant with a wrong key": (
        lambda request: wire.encode(wire.TransferGrant(request.session), b"x" * 32),
        "not signed with this key",
    ),
    "a grant of another session": (
        lambda request: wire.encode(wire.TransferGrant(b"r" * 16), KEY),
        "not signed with this key",
    ),
    "the end too soon": (
        lambda request: wire.encode(wire.TransferGrant(request.session), KEY) + bytes(100),
        "closed 900 bytes before the end",
    ),
    "another end": (
        lambda request: (
            wire.encode(wire.TransferGrant(request.session), KEY)
            + bytes(1000)
            + wire.encode(wire.End(request.session, 999), KEY)
        ),
        "does not confirm all bytes",
    ),
    "no end": (
        lambda request: wire.encode(wire.TransferGrant(request.session), KEY) + bytes(1000),
        "closed the connection",
    ),
}


@pytest.mark.parametrize("lie", [*TCP_LIES, "silence"])
async def test_a_transfer_that_is_a_lie_ends_as_a_problem(lie: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if lie != "silence":
            writer.write(wire.encode(wire.Challenge(b"n" * 16), b""))
            request = wire.decode(await reader.readexactly(wire.REQUEST_BYTES), KEY)
            assert isinstance(request, wire.TransferRequest)
            writer.write(TCP_LIES[lie][0](request))
        else:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = ProbeServer(HERE, port, KEY, tcp_bytes=1000)
        outcome = await tcp_probe.run(server, interface="lo", timeout_s=0.5)
        expected = "not done within 0.5 s" if lie == "silence" else TCP_LIES[lie][1]
        assert expected in outcome.problem
        assert outcome.indicators == {}
        await asyncio.sleep(0.05)
