"""Sessions whose networks change or go: resumption and black-outs.

Resumption is timed from the kernel's answer that the network is there to the first new bytes of the
stream at the application.
"""

import asyncio
import contextlib
import socket
import time
from typing import Any, Final

from pyroute2.iproute.linux import AsyncIPRoute

from cedos import session
from cedos.errors import SessionError
from cedos.session.protocol.life import SessionLimits
from emu.workloads.sessions.pair import Peer

_PIECE: Final = bytes(1_000)
_SMALL: Final = SessionLimits(send_bytes=262_144, stream_window=262_144)


async def trickle(peer: Peer) -> dict[str, Any]:
    """Send a little all the time, until the other end gives up."""
    connection = await peer.accept()
    with contextlib.suppress(SessionError):
        while True:
            await connection.write(_PIECE)
            await asyncio.sleep(0.001)
    return {}


class _Stream:
    def __init__(self, connection: session.Connection, interface: str) -> None:
        self.connection = connection
        self.index = socket.if_nametoindex(interface)
        self.got = 0
        self._new = asyncio.Event()
        self.task = asyncio.ensure_future(self._take())

    async def _take(self) -> None:
        while data := await self.connection.read():
            self.got += len(data)
            self._new.set()

    async def flows(self, timeout_s: float = 30.0) -> None:
        self._new.clear()
        async with asyncio.timeout(timeout_s):
            await self._new.wait()

    async def quiet(self) -> None:
        while True:
            self._new.clear()
            try:
                async with asyncio.timeout(0.05):
                    await self._new.wait()
            except TimeoutError:
                return


async def _begin(peer: Peer, mode: str, to: str, port: int, key: str, interface: str) -> _Stream:
    connection = await peer.connect(mode, to, port, key, limits=_SMALL)
    stream = _Stream(connection, interface)
    await stream.flows()
    return stream


async def change_addresses(
    peer: Peer,
    mode: str,
    to: str,
    port: int,
    key: str,
    interface: str,
    addresses: list[str],
    gateway: str,
    rounds: int,
) -> dict[str, Any]:
    """Change the interface's address again and again; the seconds until data flows each time."""
    stream = await _begin(peer, mode, to, port, key, interface)
    times: list[float] = []
    async with AsyncIPRoute() as kernel:
        for number in range(rounds):
            old, new = addresses[number % 2], addresses[(number + 1) % 2]
            await kernel.addr("del", index=stream.index, address=old, prefixlen=24)
            await stream.quiet()
            await kernel.addr("add", index=stream.index, address=new, prefixlen=24)
            await kernel.route("add", dst="default", gateway=gateway, oif=stream.index)
            began_s = time.perf_counter()
            await stream.flows()
            times.append(time.perf_counter() - began_s)
            await asyncio.sleep(0.05)
    rtts = [path.rtt_s for path in stream.connection.paths() if path.rtt_s is not None]
    stream.task.cancel()
    stream.connection.abort("measured")
    await stream.connection.wait_drained()
    return {"times": times, "rtt_s": min(rtts, default=0.0)}


async def black_out(
    peer: Peer,
    mode: str,
    to: str,
    port: int,
    key: str,
    interface: str,
    gateway: str,
    seconds: float,
    simulated_s: float,
) -> dict[str, Any]:
    """Take the link down, for so many real seconds and, by a clock that jumps, so many more."""
    stream = await _begin(peer, mode, to, port, key, interface)
    loop = asyncio.get_running_loop()
    async with AsyncIPRoute() as kernel:
        await kernel.link("set", index=stream.index, state="down")
        await stream.quiet()
        await asyncio.sleep(seconds / 2)
        if simulated_s:
            usual = loop.time
            loop.time = lambda: usual() + simulated_s  # type: ignore[method-assign]
            stream.connection.flow.driver.now = loop.time
        await asyncio.sleep(seconds / 2)
        await kernel.link("set", index=stream.index, state="up")
        await kernel.route("add", dst="default", gateway=gateway, oif=stream.index)
        began_s = time.perf_counter()
        await stream.flows()
        took_s = time.perf_counter() - began_s
    stream.task.cancel()
    stream.connection.abort("measured")
    await stream.connection.wait_drained()
    return {"resume_s": took_s}
