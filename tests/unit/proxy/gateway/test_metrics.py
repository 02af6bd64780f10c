"""What a gateway shows to Prometheus."""

import asyncio
from typing import Any

import aiohttp
import pytest

from cedos.errors import HostError
from cedos.proxy.gateway.metrics import MetricsServer

pytestmark = pytest.mark.anyio


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(await reader.read(100) * 3)
    await writer.drain()
    await reader.read()


async def test_what_was_carried_is_shown(ends: Any, closed_port: int) -> None:
    await ends.start()
    server = MetricsServer(ends.gateway.figures, ("127.0.0.1", 0))
    await server.open()

    async def shown() -> dict[str, float]:
        host, port = server.address
        where = f"http://{host}:{port}/metrics"
        async with aiohttp.ClientSession() as client, client.get(where) as answer:
            lines = (await answer.text()).splitlines()
        return {
            name: float(value)
            for name, _, value in (each.rpartition(" ") for each in lines if each[0] != "#")
        }

    try:
        assert (await shown())["cedos_gateway_sessions"] == 0
        reader, writer = await ends.forward(await ends.origin(echo))
        writer.write(b"12345")
        assert await reader.readexactly(15) == b"12345" * 3
        during = await shown()
        assert during["cedos_gateway_sessions"] == during["cedos_gateway_connections"] == 1
        writer.close()
        refused, other = await ends.forward(closed_port)
        with pytest.raises(ConnectionResetError):
            await refused.read()
        other.close()
        await asyncio.sleep(0.2)
        after = await shown()
        assert after['cedos_gateway_carried_bytes_total{direction="up"}'] == 5
        assert after['cedos_gateway_carried_bytes_total{direction="down"}'] == 15
        assert after["cedos_gateway_connections"] == 0
        assert after["cedos_gateway_connections_opened_total"] == 1
        assert after["cedos_gateway_connections_refused_total"] == 1
        assert after["process_open_fds"] > 3
        with pytest.raises(HostError, match="cannot listen"):
            await MetricsServer(ends.gateway.figures, server.address).open()
    finally:
        await server.close()
