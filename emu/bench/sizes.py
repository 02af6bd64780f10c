"""The quality of sizes near a transfer's start (Delphi, section 4 and Table 1), and of learned ones.

Generated pages (`emu.workloads.web.corpus`), served by nginx, are visited again and again
(`emu.workloads.web.visits`), once over HTTP/1.1 and once over TLS with HTTP/2, while the profiler
watches with the daemon's own capture and flow monitor. What it said is set against what curl
(bodies) and the kernel (connections) counted in the end. The shipped priors are made from another
corpus (`emu.workloads.web.visits`).
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from statistics import median

from cedos.controller.events import FlowClosed, FlowOpened
from cedos.errors import EmulationError
from cedos.host.monitor.flow_monitor import FlowMonitor
from cedos.host.profiler.capture import Capture, open_capture
from cedos.host.profiler.frame import CapturedPacket
from cedos.host.profiler.http import parse_response
from cedos.host.profiler.profiler import Profiler
from cedos.model import FlowKey, SizeEstimate
from emu.testbed.hosts import CLIENT, cabled
from emu.testbed.netns import Namespace
from emu.testbed.services import Watcher
from emu.testbed.wiring import SERVER_ADDRESSES
from emu.workloads.web import corpus
from emu.workloads.web.visits import Fetched, Visit, load, plan, write_holes

_QUIET_S, _SETTLE_S = 0.1, 10.0
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
    """Watches a client's only address from a thread of its own, as a `with` block."""

    def __init__(self, client: Namespace, address: str) -> None:
        super().__init__(client, "watching the client's packets")
        # By server's address and local port, in order; to be cleared by the caller that has read
        # them.
        self.answers: dict[tuple[str, int], list[Answer]] = defaultdict(list)
        self.connections: list[Connection] = []  # all that have ended, in order
        self._address = ip_address(address)
        self._profiler = Profiler()
        self._hellos: dict[FlowKey, tuple[str, SizeEstimate]] = {}
        self._seen: dict[str, int] = defaultdict(int)
        self._begun: set[tuple[FlowKey, int | None]] = set()
        self._last_at_s = 0.0

    def settle(self, answers: int) -> None:
        """Wait until so many answers were seen, all TLS connections have ended, and all is quiet."""
        deadline_at_s = time.monotonic() + _SETTLE_S
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
                self._profiler.on_open(event.key, now_s, incoming=event.incoming)
            else:
                self._captured(capture)  # a flow's end must not come before its last message
                self._closed(event)

    def _closed(self, event: FlowClosed) -> None:
        down, up = (event.bytes_down, event.bytes_up) if event.exact else (None, None)
        self._profiler.on_close(event.key, down, up)
        hello = self._hellos.pop(event.key, None)
        if hello is not None and event.exact:
            host, estimate = hello
            self.connections.append(
                Connection(host, event.bytes_down, event.bytes_up, estimate, self._seen[host])
            )
            self._seen[host] += 1


_SITES, _PAGES, _VISITS = 12, 3, 60
_SEED = 2024
_NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Transaction:
    """An HTTP transaction: what was carried, and what was said when the answer began.

    `again`: the page had been visited before; `fetched`: this resource had been.
    """

    body_bytes: int
    answer: Answer
    again: bool
    fetched: bool

    @property
    def near(self) -> bool:
        return abs(self.answer.estimate.median_bytes - self.body_bytes) <= _NEAR * self.body_bytes

    @property
    def stated(self) -> bool:
        return self.answer.stated_bytes is not None


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure for one to three minutes.

    Returns:
        Table 1's rows, of the pages' first visits as there: `http_content_length_share`,
        `http_predictable_share` (stated within 10 % of what was carried), `http_chunked_share`. Of all
        visits: `http_predictable_bytes_share` (of bytes, whose transfer's estimate was within 10 % when
        its answer began), and `http_untold_bytes_share`, of bodies that state no length and had never
        been fetched: these cannot be known as they begin. Of TLS connections:
        `tls_all_median_rel_error`, and `tls_seen5plus_...` of servers seen five times before, with
        `_connections`.

    Raises:
        EmulationError: nginx or curl fail, or the profiler missed transactions.
    """
    http = _transactions(_SEED, progress)
    tls = _connections(_SEED, progress)
    return figures(http, tls)


def figures(http: Sequence[Transaction], tls: Sequence[Connection]) -> dict[str, float]:
    # A transaction seen again is known from history: Table 1 counts the first ones.
    first = [each for each in http if not each.again]
    known = {
        "http_content_length_share": _share(first, lambda each: each.stated),
        "http_predictable_share": _share(first, lambda each: each.stated and each.near),
        "http_chunked_share": _share(first, lambda each: each.answer.chunked),
        "http_predictable_bytes_share": _bytes(e for e in http if e.near) / _bytes(http),
        "http_untold_bytes_share": _bytes(e for e in http if not (e.stated or e.fetched))
        / _bytes(http),
    }
    # Sizes of TLS connections come from history alone: judge by how often the host was seen.
    often = [each for each in tls if each.seen >= 5]
    for name, some in (("seen5plus", often), ("all", tls)):
        known[f"tls_{name}_median_rel_error"] = median(map(relative_error, some))
    return known | {"tls_seen5plus_connections": float(len(often))}


def relative_error(connection: Connection) -> float:
    """Return the error of the estimate at the hello: |estimated - carried| / carried."""
    carried = max(1, connection.down_bytes)
    return abs(connection.estimate.median_bytes - carried) / carried


def _share(some: Sequence[object], fits: Callable[..., bool]) -> float:
    return sum(1 for each in some if fits(each)) / len(some)


def _bytes(some: Iterable[Transaction]) -> int:
    return sum(each.body_bytes for each in some)


def _transactions(seed: int, progress: Callable[[str], None]) -> list[Transaction]:
    found: list[Transaction] = []
    known: set[str] = set()

    def visited(visit: Visit, fetched: list[Fetched], watch: ProfilerWatch) -> None:
        answers = {connection: iter(those) for connection, those in watch.answers.items()}
        for each in fetched:
            answer = next(answers.get((each.remote_ip, each.local_port), iter(())), None)
            if answer is None or answer.status != each.status:
                raise EmulationError(f"the profiler missed the answer to {each.url}")
            fetched_before = each.url in known
            found.append(Transaction(each.body_bytes, answer, visit.again, fetched_before))
            known.add(each.url)
        watch.answers.clear()

    _visit(seed, visited, progress, tls=False)
    return found


def _connections(seed: int, progress: Callable[[str], None]) -> list[Connection]:
    return _visit(seed, lambda visit, fetched, watch: None, progress, tls=True)


def _visit(
    seed: int,
    visited: Callable[[Visit, list[Fetched], ProfilerWatch], None],
    progress: Callable[[str], None],
    *,
    tls: bool,
) -> list[Connection]:
    sites = corpus.generate(sites=_SITES, pages=_PAGES, seed=seed)
    addresses = corpus.addresses(sites)
    what = "HTTPS" if tls else "HTTP"
    with cabled(SERVER_ADDRESSES) as hosts:
        folder = hosts.directory / "sites"
        write_holes(sites, folder)
        servers = corpus.nginx_servers(sites, folder, tls=tls, http2=tls)
        hosts.serve((hosts.certificate() if tls else "") + servers)
        with ProfilerWatch(hosts.client, CLIENT) as watch:
            for number, visit in enumerate(plan(sites, _VISITS, seed)):
                if number % 20 == 0:
                    progress(f"{what}: visit {number} of {_VISITS}")
                fetched = load(hosts.client, visit.objects, addresses, tls=tls)
                watch.settle(0 if tls else len(fetched))
                visited(visit, fetched, watch)
    return watch.connections
