"""Tells the daemon whose connections the session with the gateway carries (`cedos usage`, `status`)."""

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from cedos.api.carried import CarriedNews, CarriedReport
from cedos.api.client import ControlClient
from cedos.errors import CedosError
from cedos.proxy.local.carried.carried_connections import CarriedConnections

_LOOK_S: Final = 1.0
_TELL_S: Final = 3.0
"""Where nothing has changed: what nobody tells of for five seconds is not listed."""

_AGAIN_S: Final = 4.0
_ABSENT_S: Final = 60.0
"""A busy daemon may not answer at once: what has ended waits so long to be told of."""

_SELDOM_S: Final = 30.0
_TIMEOUT_S: Final = 2.0
_MOST_ADDRESSES: Final = 16
_MOST_BYTES: Final = 48_000


class CarriedTeller:
    """`run` until it is cancelled, then `last`; without connections, or a daemon, nothing is said."""

    def __init__(self, socket: Path, connections: CarriedConnections, gateway: str) -> None:
        self._client = ControlClient(socket, _TIMEOUT_S)
        self._connections = connections
        self._gateway = gateway
        self._addresses: dict[str, None] = {}  # known last at the end
        self._program = secrets.token_hex(16)

    async def run(self) -> None:
        connections, silent_s, unheard_s = self._connections, 0.0, 0.0
        while True:
            pause_s = _LOOK_S
            connections.look()
            if connections and (connections.changed or silent_s >= _TELL_S):
                heard = await self._tell()
                silent_s = 0.0
                unheard_s = 0.0 if heard else unheard_s + _AGAIN_S
                pause_s = _LOOK_S if heard else _AGAIN_S
                if unheard_s >= _ABSENT_S:
                    connections.forget_ended()
                    pause_s = _SELDOM_S
            await asyncio.sleep(pause_s)
            silent_s += pause_s

    async def last(self) -> None:
        """What happened since: many a proxy carries one connection, for less than a second."""
        self._connections.look()
        if self._connections.changed:
            await self._tell()

    async def _tell(self) -> bool:
        news = list(_that_fit(self._connections.news()))
        for address in sorted(self._connections.addresses):
            self._addresses.pop(address, None)
            self._addresses[address] = None
        report = CarriedReport(
            program=self._program,
            gateway=self._gateway,
            addresses=tuple(self._addresses)[-_MOST_ADDRESSES:],
            connections=tuple(news),
        )
        try:
            await asyncio.to_thread(self._client.tell_carried, report)
        except CedosError:  # none there, another version, not ours to tell
            return False
        self._connections.told(news)
        return True


def _that_fit(news: Iterable[CarriedNews]) -> Iterator[CarriedNews]:
    """A daemon takes 64 KiB at once; names are as long as programs like."""
    room = _MOST_BYTES
    for one in news:
        room -= len(msgspec.json.encode(one)) + 1
        if room < 0:
            break
        yield one
