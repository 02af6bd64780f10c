"""The profiler at work in a namespace, with the parts of the daemon that feed it, and its answers."""

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass
from ipaddress import ip_address

from cedos.model import FlowKey, SizeEstimate
from cedos.monitor.events import FlowClosed, FlowOpened
from cedos.monitor.flows.flow_monitor import FlowMonitor
from cedos.profiler.capture.packet_socket import Capture, open_capture
from cedos.profiler.frame import CapturedPacket
from cedos.profiler.http import parse_response
from cedos.profiler.profiler import Profiler
from emu.testbed.netns import Namespace
from emu.testbed.programs.watcher import Watcher

_QUIET_S = 0.1
_NOTHING = SizeEstimate(0, 0, 0, "content-length")


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it began: what it states, and the estimate at that moment."""

    status: int
    stated_bytes: int | None
    chunked: bool
    estimate: SizeEstimate


@dataclass(frozen=True, slots=True)
class Connection:
    """A TLS connection: bytes in the end, the estimate at its hello, how often its host was seen."""

    host: str
    down_bytes: int
    up_bytes: int
    estimate: SizeEstimate
    seen: int


class ProfilerWatch(Watcher):
    """Watches a client's only address from a thread of its own, as a `with` block.

    Attributes:
        answers: by server's address and local port, in order; to be cleared by whoever has read
            them.
        connections: all that have ended, in order.
    """

    def __init__(self, client: Namespace, address: str) -> None:
        super().__init__(client, "watching the client's packets")
        self.answers: dict[tuple[str, int], list[Answer]] = defaultdict(list)
        self.connections: list[Connection] = []
        self._address = ip_address(address)
        self._profiler = Profiler()
        self._hellos: dict[FlowKey, tuple[str, SizeEstimate]] = {}
        self._seen: dict[str, int] = defaultdict(int)
        self._begun: set[tuple[FlowKey, int | None]] = set()
        self._last_at_s = 0.0

    def settle(self, answers: int = 0, timeout_s: float = 10.0) -> None:
        """Waits until so many answers were seen, all TLS connections have ended, and all is quiet."""
        deadline_at_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_at_s and self._failure is None:
            seen = sum(map(len, list(self.answers.values())))
            quiet_s = time.monotonic() - self._last_at_s
            if seen >= answers and not self._hellos and quiet_s > _QUIET_S:
                return
            time.sleep(0.01)
        self._hellos.clear()  # of connections whose ends the kernel did not tell in time

    def _watch(self) -> None:
        for program in ("iptables", "ip6tables"):  # connection tracking runs where something asks
            self._namespace.run(program, "-A", "OUTPUT", "-m", "conntrack", "--ctstate", "INVALID")
        asyncio.run(self._profile())

    async def _profile(self) -> None:
        loop = asyncio.get_running_loop()
        with open_capture() as capture:
            async with FlowMonitor(lambda address: address == self._address) as flows:
                loop.add_reader(capture.fileno(), self._captured, capture)
                following = asyncio.create_task(self._follow(flows, capture))
                self._ready.set()
                await asyncio.to_thread(self._stop.wait)
                following.cancel()
                await asyncio.wait({following})
                loop.remove_reader(capture.fileno())

    def _captured(self, capture: Capture) -> None:
        for captured in capture.read(limit=1000):
            self._last_at_s = now_s = time.monotonic()
            events = self._profiler.observe(captured, now_s)
            size = events[-1].size if events else None
            name = self._profiler.server_name(captured.key)
            if captured.outgoing:
                if captured.key.remote_port == 443 and name and size:
                    self._hellos[captured.key] = name, size
            else:
                self._answered(captured, size)

    def _answered(self, captured: CapturedPacket, size: SizeEstimate | None) -> None:
        response = parse_response(captured.payload)
        place = captured.key, captured.sequence
        if place in self._begun:
            return  # sent again
        if response is not None and response.status >= 200:
            self._begun.add(place)
            connection = str(captured.key.remote), captured.key.local_port
            self.answers[connection].append(
                Answer(response.status, response.content_length, response.chunked, size or _NOTHING)
            )

    async def _follow(self, flows: FlowMonitor, capture: Capture) -> None:
        async for event in flows.events():
            self._last_at_s = now_s = time.monotonic()
            if isinstance(event, FlowOpened):
                self._profiler.opened(event.key, now_s, incoming=event.incoming)
            else:
                self._captured(capture)  # a flow's end must not come before its last message
                self._closed(event)

    def _closed(self, event: FlowClosed) -> None:
        down, up = (event.bytes_down, event.bytes_up) if event.exact else (None, None)
        self._profiler.closed(event.key, down, up)
        hello = self._hellos.pop(event.key, None)
        if hello is not None and event.exact:
            host, estimate = hello
            self.connections.append(
                Connection(host, event.bytes_down, event.bytes_up, estimate, self._seen[host])
            )
            self._seen[host] += 1
