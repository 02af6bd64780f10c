"""Messages, hints and the broadcast."""

import asyncio
from contextlib import aclosing
from ipaddress import IPv4Address

import msgspec
import pytest

from cedos.api.messages import DecisionMessage, flow_matches, server_matches
from cedos.daemon.decisions.decision_log import Broadcast
from cedos.model import FlowKey

V4 = FlowKey(IPv4Address("192.168.43.2"), 5000, IPv4Address("198.51.100.1"), 443)


@pytest.mark.parametrize(
    "wanted",
    [
        "tcp 192.168.43.2:5000 > 198.51.100.1:443",
        "192.168.43.2:5000 > 198.51.100.1:443",
        " 198.51.100.1:443",
        "198.51.100.1",
        "192.168.43.2",
        "5000",
        "www.example.org",
        "Example.org",
    ],
)
def test_flow_matches(wanted: str) -> None:
    assert flow_matches(wanted, V4, "www.example.org")


@pytest.mark.parametrize(
    ("wanted", "server", "means"),
    [
        (" Example.org ", "www.EXAMPLE.org", True),
        ("example.org:443", "www.example.org", True),
        ("www.example.org", "www.example.org", True),
        ("example.org:44", "example.org", False),
        ("ample.org", "example.org", False),
        ("443", "example.org", False),
        ("2001:DB8::1", "2001:db8::1", True),
        ("[2001:db8::1]:443", "2001:db8::1", True),
        ("[2001:db8::1]:444", "2001:db8::1", False),
        ("198.51.100.1:443", "198.51.100.1", True),
        ("100.1", "198.51.100.1", False),
        ("100.1:443", "198.51.100.1", False),
    ],
)
def test_server_matches(wanted: str, server: str, means: bool) -> None:
    assert server_matches(wanted, server, 443) is means


def test_decisions_survive_the_wire(make_decision) -> None:
    message = DecisionMessage.of(make_decision(3))
    assert msgspec.json.decode(msgspec.json.encode(message), type=DecisionMessage) == message


@pytest.mark.anyio
async def test_everybody_hears_everything_in_order() -> None:
    broadcast: Broadcast[int] = Broadcast()
    broadcast.publish(0)  # nobody there

    async def listen() -> list[int]:
        return [item async for item in broadcast.subscribe()]

    listeners = [asyncio.create_task(listen()) for _ in range(3)]
    await asyncio.sleep(0)
    assert broadcast.subscribers == 3
    for item in range(1, 6):
        broadcast.publish(item)
        if item % 2:
            await asyncio.sleep(0)
    broadcast.close()
    assert await asyncio.gather(*listeners) == [[1, 2, 3, 4, 5]] * 3
    assert broadcast.subscribers == 0


@pytest.mark.anyio
async def test_who_dawdles_loses_the_oldest() -> None:
    broadcast: Broadcast[int] = Broadcast(limit=3)
    async with aclosing(broadcast.subscribe()) as items:
        first = asyncio.ensure_future(anext(items))
        await asyncio.sleep(0)
        for item in range(10):
            broadcast.publish(item)
        assert [await first, await anext(items), await anext(items)] == [7, 8, 9]
    assert broadcast.subscribers == 0
