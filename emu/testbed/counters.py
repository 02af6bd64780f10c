"""Counters that are read while an emulation runs: interfaces, subflows, the host's TCP memory.

The testbed counts transfers itself, in the same way for each policy: destroy notifications give the final
bytes of each subflow, and frequent dumps of the living sockets tell which subflows belong to one MPTCP
connection. All namespaces share the host's TCP memory. Beyond the first number of `tcp_mem` the kernel
may keep windows small and drop received data, also on the emulated hosts.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from cedos.controller.events import FlowClosed
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.model import FlowKey, NetworkKind
from emu.testbed.access import ADDRESSES
from emu.testbed.netns import Namespace
from emu.testbed.services import Watcher

_EVERY_S = 0.5
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_LIMITS = Path("/proc/sys/net/ipv4/tcp_mem")
_TAKEN = Path("/proc/thread-self/net/sockstat")


class TcpMemory(Watcher):
    """A watcher of TCP memory: `most_pages` were in use; beyond `free_pages` the kernel may limit it."""

    def __init__(self, client: Namespace) -> None:
        super().__init__(client, "watching the host's TCP memory")
        self.most_pages = 0
        self.free_pages = int(_LIMITS.read_text().split()[0])

    def _watch(self) -> None:
        self._ready.set()
        while True:
            self.most_pages = max(self.most_pages, taken_pages(_TAKEN.read_text()))
            if self._stop.wait(_EVERY_S):
                return


def taken_pages(sockstat: str) -> int:
    """Return the pages that TCP uses in all namespaces; the kernel counts them once for the host."""
    for line in sockstat.splitlines():
        protocol, *fields = line.split()
        if protocol == "TCP:" and "mem" in fields:
            return int(fields[fields.index("mem") + 1])
    return 0


_POLL_S = 0.05
_KINDS = {ip_address(address): kind for kind, address in ADDRESSES.items()}
# A network with a smaller share of a transfer does not count as its carrier.
_SHARE = 0.02


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


# Local address, local port, remote address. Connections to different hosts may share a port at the
# same time.
Connection = tuple[str, int, str]


def by_connection(
    carried_bytes: Mapping[FlowKey, int], tokens: Mapping[FlowKey, int]
) -> dict[Connection, CarriedBytes]:
    """Return the bytes of each connection over all its subflows. `tokens`: of MPTCP subflows."""
    # Add up the subflows of each connection: by token, or the flow itself without MPTCP.
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
    """A watcher of the bytes of the client's TCP connections and subflows."""

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
            # Destroy notifications bring final counts; dumps bring the tokens, and counts until then.
            ends = asyncio.create_task(self._ends(flows))
            self._ready.set()
            while not self._stop.is_set():
                # If a dump fails, the next one brings the same.
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
            self._count(sample.key, sample.bytes_down + sample.bytes_up)

    async def _ends(self, flows: FlowMonitor) -> None:
        async for event in flows.events():
            if isinstance(event, FlowClosed) and event.exact and event.key.protocol == "tcp":
                self._count(event.key, event.bytes_down + event.bytes_up)

    def _count(self, key: FlowKey, moved: int) -> None:
        # A socket may end, and tell its final count, while a dump is read that has fewer bytes of it.
        self._bytes[key] = max(moved, self._bytes.get(key, 0))


@dataclass(frozen=True, slots=True)
class Sample:
    """The counters of one interface at one monotonic instant, since it was made."""

    at_s: float
    interface: str
    received_bytes: int
    sent_bytes: int


class Sampler(Watcher):
    """A watcher that samples interfaces every `interval_s`."""

    def __init__(
        self, client: Namespace, interfaces: Sequence[str], interval_s: float = 0.1
    ) -> None:
        super().__init__(client, "counting the client's bytes")
        self.samples: list[Sample] = []
        self._interfaces = interfaces
        self._interval_s = interval_s

    def _watch(self) -> None:
        self._ready.set()
        counters = Path("/proc/thread-self/net/dev")
        next_at_s = time.monotonic()
        while not self._stop.wait(max(0.0, next_at_s - time.monotonic())):
            self._sample(counters.read_text())
            next_at_s += self._interval_s
        self._sample(counters.read_text())

    def _sample(self, text: str) -> None:
        at_s = time.monotonic()
        for line in text.splitlines()[2:]:
            name, _, rest = line.partition(":")
            if (interface := name.strip()) in self._interfaces:
                fields = rest.split()
                self.samples.append(Sample(at_s, interface, int(fields[0]), int(fields[8])))


def processor_s(pid: int) -> float:
    """Return the processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
