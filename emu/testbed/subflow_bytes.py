"""Which network carried each transfer: the client's TCP subflows, as the kernel accounts for them.

The testbed's own account, the same for every policy. Destroy notifications give the final bytes of
each subflow; frequent dumps of the living sockets tell which subflows make up one MPTCP connection.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from cedos.model import FlowKey, NetworkKind
from cedos.monitor.events import FlowClosed
from cedos.monitor.flows.flow_monitor import FlowMonitor
from emu.testbed.access import ADDRESSES
from emu.testbed.netns import Namespace
from emu.testbed.programs.watcher import Watcher

_POLL_S = 0.05
_KINDS = {ip_address(address): kind for kind, address in ADDRESSES.items()}
_SHARE = 0.02
"""A network that carried a smaller share of a transfer does not count as its carrier."""


@dataclass(frozen=True, slots=True)
class CarriedBytes:
    """Payload bytes of one connection over each network, both directions together."""

    wifi: int = 0
    cellular: int = 0

    @property
    def network(self) -> str:
        """`wifi`, `cellular`, `both`, or `none` where nothing was carried."""
        total = self.wifi + self.cellular
        if total == 0:
            return "none"
        if min(self.wifi, self.cellular) > _SHARE * total:
            return "both"
        return "wifi" if self.wifi > self.cellular else "cellular"


Connection = tuple[str, int, str]
"""Local address, local port, remote address. A port alone is not enough: connections to different
hosts share one at times, even at once."""


def by_connection(
    carried_bytes: Mapping[FlowKey, int], tokens: Mapping[FlowKey, int]
) -> dict[Connection, CarriedBytes]:
    """What each connection carried, by every subflow that it had. `tokens`: MPTCP's, by subflow."""
    totals: dict[object, dict[NetworkKind, int]] = {}
    for key, moved in carried_bytes.items():
        kinds = totals.setdefault(tokens.get(key, key), {})
        kinds[_KINDS[key.local]] = kinds.get(_KINDS[key.local], 0) + moved
    return {
        (str(key.local), key.local_port, str(key.remote)): CarriedBytes(
            moved.get(NetworkKind.WIFI, 0), moved.get(NetworkKind.CELLULAR, 0)
        )
        for key in carried_bytes
        for moved in [totals[tokens.get(key, key)]]
    }


class SubflowBytes(Watcher):
    """Watches the client's TCP connections while the block runs."""

    def __init__(self, client: Namespace) -> None:
        super().__init__(client, "watching the client's sockets")
        self._tokens: dict[FlowKey, int] = {}
        self._bytes: dict[FlowKey, int] = {}

    def by_connection(self) -> Mapping[Connection, CarriedBytes]:
        return by_connection(self._bytes, self._tokens)

    def _watch(self) -> None:
        asyncio.run(self._follow())

    async def _follow(self) -> None:
        async with FlowMonitor(lambda address: address in _KINDS) as flows:
            ends = asyncio.create_task(self._ends(flows))
            self._ready.set()
            while not self._stop.is_set():
                # A dump that fails is made up for by the next one.
                with contextlib.suppress(OSError, TimeoutError):
                    await self._poll(flows)
                await asyncio.sleep(_POLL_S)
            with contextlib.suppress(OSError, TimeoutError):
                await self._poll(flows)
            ends.cancel()
            await asyncio.wait({ends})

    async def _poll(self, flows: FlowMonitor) -> None:
        for sample in await flows.snapshot():
            if sample.token is not None:
                self._tokens[sample.key] = sample.token
            self._bytes[sample.key] = sample.bytes_down + sample.bytes_up

    async def _ends(self, flows: FlowMonitor) -> None:
        async for event in flows.events():
            if isinstance(event, FlowClosed) and event.exact and event.key.protocol == "tcp":
                self._bytes[event.key] = event.bytes_down + event.bytes_up
