"""What captured packets reveal of a size makes the daemon decide again, where a flow can still move."""

import asyncio
import os
import time
from ipaddress import ip_address
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from cedos.controller.events import FlowOpened, SizeLearned
from cedos.controller.flows.living_flows import LivingFlows
from cedos.daemon.loop.packet_handler import PacketHandler
from cedos.model import Direction, FlowKey, SizeEstimate

pytestmark = pytest.mark.anyio

HOME, FAR = ip_address("10.0.0.2"), ip_address("198.51.100.1")
PLAIN, FIXED, MOVABLE = (FlowKey(HOME, port, FAR, 443) for port in (4000, 4001, 4002))


class Packet(NamedTuple):
    key: FlowKey
    outgoing: bool = False
    interface: str = "wlan0"


class Wire:
    """A capture on a pipe: a byte written is a packet of the next key."""

    def __init__(self) -> None:
        self._read_fd, self._write_fd = os.pipe()
        os.set_blocking(self._read_fd, False)
        self._keys: list[FlowKey] = []

    def bring(self, *keys: FlowKey) -> None:
        self._keys.extend(keys)
        os.write(self._write_fd, bytes(len(keys)))

    def fileno(self) -> int:
        return self._read_fd

    def read(self, limit: int) -> list[Any]:
        try:
            count = len(os.read(self._read_fd, limit))
        except BlockingIOError:
            return []
        packets = [Packet(key) for key in self._keys[:count]]
        del self._keys[:count]
        return packets

    def close(self) -> None:
        os.close(self._read_fd)
        os.close(self._write_fd)


async def test_only_connections_that_can_move_are_decided_on_again() -> None:
    flows, again = LivingFlows(), asyncio.Queue[FlowKey]()
    for key in (PLAIN, FIXED, MOVABLE):
        flows.on_open(FlowOpened(key, 1.0, 101.0))
    flows.joined(7, FIXED, 1.0)
    flows.joined(8, MOVABLE, 1.0)

    async def reconsider(flow: Any, _context: object) -> None:
        again.put_nowait(flow.key)

    moves = SimpleNamespace(may_move=lambda flow: flow.token == 8, reconsider=reconsider)
    size = SizeEstimate(500_000, 500_000, 500_000, "content-length")
    profiler = SimpleNamespace(
        observe=lambda packet, _now_s: [SizeLearned(packet.key, Direction.DOWN, size)]
    )
    wire = Wire()
    captured = PacketHandler(
        cast(Any, wire),
        flows,
        cast(Any, profiler),
        cast(Any, SimpleNamespace(moves=moves, turn=asyncio.Lock())),
        cast(Any, SimpleNamespace(context=dict)),
    )
    running = asyncio.create_task(captured.run())
    try:
        async with asyncio.timeout(30):
            wire.bring(PLAIN, FIXED, MOVABLE)
            assert await again.get() == MOVABLE
            wire.bring(FIXED, MOVABLE)
            assert await again.get() == MOVABLE
        assert again.empty()
        for key in (PLAIN, FIXED, MOVABLE):  # what was learned is known of all of them
            transfer = cast(Any, flows.find(key)).transfer
            assert transfer is not None
            assert transfer.size == size
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        wire.close()


async def test_answers_that_nobody_asked_for_teach_nothing() -> None:
    flows, seen = LivingFlows(), list[FlowKey]()
    profiler = SimpleNamespace(
        observe=lambda packet, _now_s: seen.append(packet.key) or [], knows=lambda _key: False
    )
    wire = Wire()
    captured = PacketHandler(
        cast(Any, wire),
        flows,
        cast(Any, profiler),
        cast(Any, SimpleNamespace(turn=asyncio.Lock())),
        cast(Any, SimpleNamespace(context=dict)),
    )
    running = asyncio.create_task(captured.run())
    try:
        # An answer may come a moment before its flow is told of: it is kept.
        wire.bring(*(FlowKey(HOME, port, FAR, 80) for port in range(1000, 1200)), PLAIN)
        await asyncio.sleep(0.1)
        assert seen == []
        flows.on_open(FlowOpened(PLAIN, 1.0, 101.0))
        wire.bring(FIXED)
        async with asyncio.timeout(10):
            while not seen:
                await asyncio.sleep(0.02)
        assert seen == [PLAIN]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        wire.close()


async def test_what_goes_over_loopback_is_not_followed() -> None:
    """Each request to a proxy of this host left two flows, until 8192 stood there (16 MB)."""
    seen: list[Any] = []
    profiler = SimpleNamespace(observe=lambda packet, _now_s: seen.append(packet) or [])
    own = Packet(FlowKey(HOME, 4004, HOME, 1080), outgoing=True, interface="lo")
    far = Packet(PLAIN, outgoing=True)
    handler = PacketHandler(
        cast(Any, SimpleNamespace(read=lambda _limit: [own, far])),
        LivingFlows(),
        cast(Any, profiler),
        cast(Any, SimpleNamespace()),
        cast(Any, SimpleNamespace()),
    )
    handler.read_before(float("inf"))
    assert seen == [far]


def test_a_hello_that_is_read_before_its_flow_is_told_of_names_it() -> None:
    """Openings are gathered for 20 ms: a request within them showed as "SERVER -"."""
    flows, claimed = LivingFlows(), list[str]()
    size = SizeEstimate(3000, 1000, 9000, "default")
    profiler = SimpleNamespace(
        observe=lambda packet, _now_s: [
            SizeLearned(packet.key, Direction.DOWN, size, "a.example", tls=True)
        ]
    )
    handler = PacketHandler(
        cast(Any, SimpleNamespace(read=lambda _limit: [Packet(PLAIN, outgoing=True)])),
        flows,
        cast(Any, profiler),
        cast(Any, SimpleNamespace()),
        cast(Any, SimpleNamespace()),
        lambda name, _address: claimed.append(name),
    )
    handler.read_before(float("inf"))
    flow = flows.on_open(FlowOpened(PLAIN, time.monotonic(), 101.0))
    assert (flow.server_name, flow.tls, claimed) == ("a.example", True, ["a.example"])
