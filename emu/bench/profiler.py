"""The cost of the capture: packets that reach user space, and the processor time of each.

A real nginx serves a real curl over a veth pair whose packets are as on a wire (1500 bytes, no
offloads; with them the same two packets a download would be set against fewer, larger ones). First
bulk: 10 MB objects of random bytes, the worst that a filter on first bytes can be given, over one
keep-alive connection. Then small objects, so that many packets are delivered: the capturing thread
runs what the daemon runs, an asyncio loop that reads, parses and follows flows, and nothing else.
"""

import asyncio
import json
import os
import select
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cedos.errors import EmulationError
from cedos.host.profiler.capture import Capture, open_capture
from cedos.host.profiler.profiler import Profiler
from emu.testbed.hosts import INTERFACE, SERVER, Hosts, cabled
from emu.testbed.netns import Namespace

_BULK_BYTES = 10_000_000
_BULK_OBJECTS = 20
_SMALL_BYTES = 1_000
_SMALL_OBJECTS = 3_000
_TRANSFER_TIMEOUT_S = 120.0


@dataclass
class _Seen:
    """The result of one phase. `sizes` are the stated ones, in order."""

    packets: int = 0
    delivered: int = 0
    lost: int = 0
    cpu_s: float = 0.0
    requests: int = 0
    sizes: tuple[int, ...] = ()


def run(progress: Callable[[str], None]) -> dict[str, float]:
    """Measure for about ten seconds.

    Returns:
        `us_per_packet` (processor time per delivered packet: wake-up, read, parse, flow state),
        `delivered_share` (of the packets on the link, bulk keep-alive HTTP), `lengths_seen_share`
        (downloads of both phases whose request and stated length were seen).

    Raises:
        EmulationError: nginx or curl fail, or not one packet was seen.
    """
    with cabled() as hosts:
        progress("starting nginx")
        _serve(hosts)
        progress(f"{_BULK_OBJECTS} downloads of {_BULK_BYTES} bytes on one connection")
        bulk = _download(hosts.client, "large", _BULK_OBJECTS)
        progress(f"{_SMALL_OBJECTS} downloads of {_SMALL_BYTES} bytes on one connection")
        small = _download(hosts.client, "small", _SMALL_OBJECTS)
    if not bulk.delivered or not small.delivered:
        raise EmulationError("the capture saw nothing of the downloads")
    complete = min(bulk.requests, bulk.sizes.count(_BULK_BYTES))
    complete += min(small.requests, small.sizes.count(_SMALL_BYTES))
    return {
        "us_per_packet": small.cpu_s / small.delivered * 1e6,
        "delivered_share": bulk.delivered / bulk.packets,
        "lengths_seen_share": complete / (_BULK_OBJECTS + _SMALL_OBJECTS),
    }


def _serve(hosts: Hosts) -> None:
    folder = hosts.directory / "www"
    folder.mkdir()
    (folder / "large").write_bytes(os.urandom(_BULK_BYTES))
    (folder / "small").write_bytes(os.urandom(_SMALL_BYTES))
    hosts.serve(f"server {{ listen {SERVER}:80; root {folder}; }}")


def _download(client: Namespace, name: str, times: int) -> _Seen:
    seen = _Seen()
    with client.entered():
        capture = open_capture(INTERFACE)
    with capture:
        before = _packets(client)
        with _capturing(capture, seen):
            client.run(
                *("curl", "--silent", "--show-error", "--fail", "--output", "/dev/null"),
                f"http://{SERVER}/{name}?[1-{times}]",
                timeout_s=_TRANSFER_TIMEOUT_S,
            )
        seen.packets = _packets(client) - before
        seen.delivered, seen.lost = capture.statistics()
    return seen


@contextmanager
def _capturing(capture: Capture, seen: _Seen) -> Iterator[None]:
    """Read as the daemon does while the block runs, in a thread whose processor time is taken."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=_follow, args=(loop, capture, seen), daemon=True)
    thread.start()
    try:
        yield
        while select.select([capture], [], [], 0.05)[0]:
            time.sleep(0.01)  # the thread has not caught up yet
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _follow(loop: asyncio.AbstractEventLoop, capture: Capture, seen: _Seen) -> None:
    profiler = Profiler()
    sizes: list[int] = []

    def readable() -> None:
        now_s = time.monotonic()
        for captured in capture.read():
            for event in profiler.observe(captured, now_s):
                if event.size.source == "content-length":
                    sizes.append(event.size.median_bytes)
                else:
                    seen.requests += 1

    loop.add_reader(capture.fileno(), readable)
    began_s = time.thread_time()
    loop.run_forever()
    seen.cpu_s = time.thread_time() - began_s
    loop.remove_reader(capture.fileno())
    seen.sizes = tuple(sizes)


def _packets(client: Namespace) -> int:
    (link,) = json.loads(client.ip("-json", "-stats", "link", "show", INTERFACE))
    return int(link["stats64"]["rx"]["packets"]) + int(link["stats64"]["tx"]["packets"])
