"""Three applications (dissertation, 2.4): a remote file system, e-mail, and a vehicle's sensors.

A remote file system under a compiler: each step reads a source file block by block on demand, computes,
and writes a result, which is sent in the background; the server sees modifications in their order. The
paper rebuilds lighttpd on BlueFS; here a script of the same kind of operations with drawn sizes stands
for it. E-mail after a time without network: the headers of all messages first; then a proxy fetches all
messages in the background, while the person chooses five of them and waits for each. Sizes are drawn
evenly over their logarithm; the paper gives only their range. A vehicle's sensors: each second brings
25 KB of raw data and a summary of 4 KB. What cannot be sent before the next second's data is dropped;
the next summary covers both. Three times, five urgent messages come within seven seconds. Over a
session a thunk says when a network is there; over TCP `select` says whether the socket takes data.

Large downloads: over a session, as an endless stream over a session, and as bundles.

Bundles are those of pyd3tn (BPv7 over MTCP, its TCP convergence layer). MTCP acknowledges nothing and
pyd3tn is no complete agent, so that the missing parts are done here with the protocol's own means: the
file is fragmented beforehand, the receiver sends a status report for each fragment delivered, and after
a disruption the sender repeats the fragments that were not reported.
"""

import asyncio
import importlib
import json
import math
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from cedos.errors import CedosError, SessionError
from cedos.model import Label
from cedos.session import connect, listen
from cedos.session.protocol.crypto import KeyPair
from emu.experiments.sessions.application_link import (
    BACKGROUND_LARGE,
    BACKGROUND_SMALL,
    FOREGROUND_SMALL,
    Asking,
    Link,
    SessionLink,
    answer,
    connected,
    serving,
)

BLOCK_BYTES: Final = 4096
_ACK_BYTES: Final = 16
_ZEROS = bytes(1 << 20)
HEADER_BYTES: Final = 400
LEAST_BYTES, MOST_BYTES = 50, 256 * 1024
RAW_BYTES, SUMMARY_BYTES, URGENT_BYTES = 25_000, 4_096, 512
EPISODES, PER_EPISODE, EPISODE_S = 3, 5, 7.0
# The most pending messages of a session, two for each second. More would arrive too late.
_OUTSTANDING: Final = 4
_ENDLESS = 1 << 40
_FRAGMENT_BYTES: Final = 65_536
# The paper's longest pause between two probes for a network.
_PROBE_S: Final = 1.0
_SERVER, _CLIENT = "dtn://server/files", "dtn://client/fetch"
_FRAGMENT: Final = bytes(_FRAGMENT_BYTES)


async def serve_answers(transport: str, host: str, port: int, key: str) -> None:
    await serving(transport, host, port, key, answer)


async def files(
    transport: str,
    host: str,
    port: int,
    server_key: str,
    seed: int,
    steps: int = 30,
    blocks: tuple[int, int] = (2, 8),
    compute_s: tuple[float, float] = (0.05, 0.15),
    result_bytes: tuple[int, int] = (20_000, 80_000),
    scale: float = 1.0,
) -> dict[str, Any]:
    """Return seconds until the last step is through, and until the server has all results."""
    drawn = random.Random(seed)
    async with connected(transport, host, port, server_key) as link:
        asking = Asking(link)
        began_s = time.monotonic()
        written: list[asyncio.Future[None]] = []
        before: tuple[int, ...] = ()
        total = 0
        for _ in range(steps):
            # The compiler reads one block after the other: a person waits for each.
            for _ in range(drawn.randint(*blocks)):
                _, block = await asking.ask(BLOCK_BYTES, FOREGROUND_SMALL)
                await block
            await asyncio.sleep(drawn.uniform(*compute_s))
            # The result is written in the background, behind the one before.
            size = round(scale * drawn.randint(*result_bytes))
            total += size
            irob, done = await asking.ask(_ACK_BYTES, BACKGROUND_LARGE, size, before)
            assert irob is not None
            before = (irob,)
            written.append(done)
        interactive_s = time.monotonic() - began_s
        await asyncio.gather(*written)
        took_s = time.monotonic() - began_s
        asking.close()
    return {"foreground_s": [interactive_s], "background_s": took_s, "background_bytes": total}


def sizes(messages: int, scale: float, seed: int) -> list[int]:
    """Return bytes of each message."""
    drawn = random.Random(seed)
    low, high = math.log(LEAST_BYTES), math.log(MOST_BYTES)
    return [round(scale * math.exp(drawn.uniform(low, high))) for _ in range(messages)]


def choices(messages: int, picked: int, seed: int) -> list[int]:
    """Return the messages that the person reads: of the latter two thirds, which are fetched late."""
    return random.Random(seed + 1).sample(range(messages // 3, messages), picked)


async def mail(
    transport: str,
    host: str,
    port: int,
    server_key: str,
    seed: int,
    messages: int = 100,
    picked: int = 5,
    scale: float = 1.0,
    think_s: tuple[float, float] = (0.5, 1.5),
) -> dict[str, Any]:
    """Return seconds of each read, and until all messages are here."""
    bodies, thinking = sizes(messages, scale, seed), random.Random(seed + 2)
    async with connected(transport, host, port, server_key) as link:
        asking = Asking(link)
        # The headers are fetched first, then all messages in the background.
        _, headers = await asking.ask(messages * HEADER_BYTES, FOREGROUND_SMALL)
        await headers
        began_s = time.monotonic()
        here = [(await asking.ask(size, BACKGROUND_SMALL))[1] for size in bodies]
        everything = asyncio.gather(*here)
        ended: list[float] = []
        everything.add_done_callback(lambda _: ended.append(time.monotonic()))
        waits = []
        for number in choices(messages, picked, seed):
            await asyncio.sleep(thinking.uniform(*think_s))
            asked_s = time.monotonic()
            # The person opens a message: ask for it in the foreground, if it is not here yet.
            if not here[number].done():
                _, read = await asking.ask(bodies[number], FOREGROUND_SMALL)
                await asyncio.wait([read, here[number]], return_when=asyncio.FIRST_COMPLETED)
            waits.append(time.monotonic() - asked_s)
        await everything
        await asyncio.sleep(0)
        asking.close()
    return {
        "foreground_s": waits,
        "background_s": ended[0] - began_s,
        "background_bytes": sum(bodies),
    }


def urgent_at_s(duration_s: float, seed: int) -> list[float]:
    """Return when urgent messages come."""
    drawn = random.Random(seed)
    part_s = duration_s / EPISODES
    found = []
    for episode in range(EPISODES):
        begin_s = part_s * episode + drawn.uniform(0.1, 1.0) * max(0.5, part_s - EPISODE_S - 2.0)
        found += sorted(begin_s + drawn.uniform(0.0, EPISODE_S) for _ in range(PER_EPISODE))
    return sorted(found)


async def sensing(
    transport: str,
    host: str,
    port: int,
    server_key: str,
    seed: int,
    duration_s: float = 60.0,
    scale: float = 1.0,
    parts: tuple[str, ...] = ("urgent", "bulk"),
) -> dict[str, Any]:
    """Return seconds of each urgent message until its answer; bytes of bulk data acknowledged."""
    async with connected(transport, host, port, server_key) as link:
        asking = Asking(link)
        began_s = time.monotonic()
        waits: list[float] = []
        bulk = _Bulk(link, asking, scale)
        tasks = []
        if "urgent" in parts:
            tasks.append(_urgent(asking, began_s, urgent_at_s(duration_s, seed), waits))
        if "bulk" in parts:
            tasks.append(bulk.run(began_s, duration_s))
        await asyncio.gather(*tasks)
        asking.close()
    return {
        "foreground_s": waits,
        "background_s": duration_s,
        "background_bytes": bulk.arrived_bytes,
    }


async def _urgent(asking: Asking, began_s: float, at_s: list[float], waits: list[float]) -> None:
    async def one(due_s: float) -> None:
        await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
        sent_s = time.monotonic()
        _, answered = await asking.ask(_ACK_BYTES, FOREGROUND_SMALL, URGENT_BYTES)
        await answered
        waits.append(time.monotonic() - sent_s)

    await asyncio.gather(*map(one, at_s))


class _Bulk:
    def __init__(self, link: Link, asking: Asking, scale: float) -> None:
        self._link, self._asking = link, asking
        self._raw, self._summary = round(RAW_BYTES * scale), round(SUMMARY_BYTES * scale)
        self._outstanding: set[asyncio.Future[None]] = set()
        self._thunk: Callable[[], None] | None = None
        # (TCP's own bound is the socket's buffer.)
        self._most = _OUTSTANDING if isinstance(link, SessionLink) else 1 << 30
        self._late: asyncio.Task[None] | None = None
        self.arrived_bytes = 0

    async def run(self, began_s: float, duration_s: float) -> None:
        """Run one round a second; messages that arrived by the end count."""
        for second in range(1, round(duration_s) + 1):
            await asyncio.sleep(max(0.0, began_s + second - time.monotonic()))
            if self._thunk is None and self._takes():
                await self._round()

    def _takes(self) -> bool:
        return self._link.ready() and len(self._outstanding) < self._most

    async def _round(self) -> None:
        """Send this second's data, or leave a thunk that sends the newest when a network is there."""
        self._thunk = self._again
        summary = await self._ask(BACKGROUND_SMALL, self._summary, (), self._again)
        if summary is None:
            return
        self._thunk = None
        await self._ask(BACKGROUND_LARGE, self._raw, (summary,))

    def _again(self) -> None:
        self._thunk = None
        self._late = asyncio.get_running_loop().create_task(self._round())

    async def _ask(
        self,
        label: Label,
        size: int,
        after: tuple[int, ...],
        thunk: Callable[[], None] | None = None,
    ) -> int | None:
        irob, done = await self._asking.ask(_ACK_BYTES, label, size, after, thunk)
        if irob is None:
            return None
        self._outstanding.add(done)

        def arrived(_: asyncio.Future[None]) -> None:
            self._outstanding.discard(done)
            self.arrived_bytes += size

        done.add_done_callback(arrived)
        return irob


async def serve_file(host: str, port: int, key: str, size: int) -> None:
    listener = await listen((host, port), key=KeyPair(bytes.fromhex(key)))
    while True:
        connection = await listener.accept()
        await connection.write_source(lambda offset, count: _ZEROS[:count], size)
        await connection.close()


async def fetch(host: str, port: int, server_key: str, deadline_s: float) -> dict[str, Any]:
    """Fetch it; `ended_s` is the monotonic instant of the last byte."""
    connection = await connect(
        (host, port),
        server_key=bytes.fromhex(server_key),
        key=KeyPair(os.urandom(32)),
        deadline=deadline_s,
        timeout_s=None,
    )
    size = 0
    while data := await connection.read():
        size += len(data)
    ended_s = time.monotonic()
    await connection.close()
    return {"bytes": size, "ended_s": ended_s}


async def serve_stream(host: str, port: int, key: str) -> None:
    listener = await listen((host, port), key=KeyPair(bytes.fromhex(key)))
    while True:
        connection = await listener.accept()
        await connection.write_source(lambda offset, count: _ZEROS[:count], _ENDLESS)


async def read_stream(
    host: str, port: int, server_key: str, seconds: float, silence_s: float
) -> dict[str, Any]:
    """Read; the silences longer than `silence_s`, as [began, ended] (monotonic seconds)."""
    connection = await connect(
        (host, port),
        server_key=bytes.fromhex(server_key),
        key=KeyPair(os.urandom(32)),
        timeout_s=None,
    )
    silences, size = [], 0
    await connection.read()
    last_s = time.monotonic()
    end_s = last_s + seconds
    while last_s < end_s:
        data = await connection.read()
        if not data:
            raise SessionError("an endless stream has ended")
        size += len(data)
        now_s = time.monotonic()
        if now_s - last_s > silence_s:
            silences.append([last_s, now_s])
        last_s = now_s
    connection.abort("measured")
    return {"silences": silences, "bytes": size}


def _pyd3tn() -> tuple[Any, Any, Any]:
    """Import pyd3tn's modules; it is no dependency and may be absent."""
    names = ("bundle7", "helpers", "mtcp")
    bundle7, helpers, mtcp = (importlib.import_module(f"pyd3tn.{name}") for name in names)
    return bundle7, helpers, mtcp


async def serve_bundles(host: str, port: int, size: int) -> None:
    bundle7, helpers, mtcp = _pyd3tn()

    flags = bundle7.BundleProcFlag.IS_FRAGMENT | bundle7.BundleProcFlag.REPORT_DELIVERY
    left = set(range(0, size, _FRAGMENT_BYTES))
    listening = socket.create_server((host, port))

    def send(connection: socket.socket, over: threading.Event) -> None:
        try:
            for offset in sorted(left):
                if over.is_set():
                    return
                bundle = bundle7.serialize_bundle7(
                    _SERVER, _CLIENT, _FRAGMENT[: min(_FRAGMENT_BYTES, size - offset)],
                    report_to_eid=_SERVER, flags=flags, creation_timestamp=1_000_000_000,
                    sequence_number=1, fragment_offset=offset, total_adu_length=size,
                )  # fmt: skip
                mtcp.MTCPSocket(connection).send_bundle(bundle)
        except OSError:
            return

    def serve(connection: socket.socket) -> None:
        over = threading.Event()
        sending = threading.Thread(target=send, args=(connection, over), daemon=True)
        sending.start()
        peer = mtcp.MTCPSocket(connection)
        try:
            while data := peer.recv_bundle():
                report = bundle7.Bundle.parse_administrative_record(
                    bundle7.Bundle.parse(data).payload_block.data
                )
                left.discard(report["record_data"][4])
        except (OSError, ValueError, helpers.CommunicationError):
            pass
        over.set()
        connection.close()

    before: socket.socket | None = None
    while True:
        connection, _ = await _accepted(listening)
        if before is not None:
            before.close()
        before = connection
        threading.Thread(target=serve, args=(connection,), daemon=True).start()


async def _accepted(listening: socket.socket) -> tuple[socket.socket, Any]:
    listening.setblocking(False)
    connection, address = await asyncio.get_running_loop().sock_accept(listening)
    connection.setblocking(True)
    return connection, address


async def fetch_bundles(host: str, port: int, size: int) -> dict[str, Any]:
    """Fetch it; `ended_s` is the monotonic instant of the last byte."""
    loop = asyncio.get_running_loop()
    found: asyncio.Future[dict[str, Any]] = loop.create_future()

    def fetch() -> None:
        fetched = _fetch(host, port, size)
        loop.call_soon_threadsafe(found.set_result, fetched)

    threading.Thread(target=fetch, daemon=True).start()
    return await found


def _fetch(host: str, port: int, size: int) -> dict[str, Any]:
    bundle7, helpers, mtcp = _pyd3tn()

    got: dict[int, int] = {}
    while sum(got.values()) < size:
        tried_s = time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=_PROBE_S)
        except OSError:
            time.sleep(max(0.0, _PROBE_S - (time.monotonic() - tried_s)))
            continue
        peer = mtcp.MTCPSocket(connection, timeout=_PROBE_S)
        connection.settimeout(_PROBE_S)
        try:
            while sum(got.values()) < size:
                bundle = bundle7.Bundle.parse(peer.recv_bundle())
                offset = bundle.primary_block.fragment_offset
                got[offset] = len(bundle.payload_block.data)
                report = bundle7.BundleStatusReport.from_bundle(
                    bundle7.StatusCode.DELIVERED_BUNDLE, bundle7.ReasonCode.NO_INFO, bundle
                )
                primary = bundle7.PrimaryBlock(
                    bundle_proc_flags=bundle7.BundleProcFlag.ADMINISTRATIVE_RECORD,
                    destination=_SERVER,
                    source=_CLIENT,
                )
                peer.send_bundle(bytes(bundle7.Bundle(primary, report)))
        except (OSError, ValueError, helpers.CommunicationError):
            pass
        finally:
            connection.close()
    return {"bytes": sum(got.values()), "ended_s": time.monotonic()}


_Run = Callable[..., Awaitable[dict[str, Any] | None]]

_SERVERS: Mapping[str, _Run] = {
    "files": serve_answers,
    "mail": serve_answers,
    "sensing": serve_answers,
    "fetch": serve_file,
    "stream": serve_stream,
    "bundled": serve_bundles,
}
_CLIENTS: Mapping[str, _Run] = {
    "files": files,
    "mail": mail,
    "sensing": sensing,
    "fetch": fetch,
    "stream": read_stream,
    "bundled": fetch_bundles,
}
_ROLES = {"server": _SERVERS, "client": _CLIENTS}


async def _main(role: str, name: str) -> None:
    options: dict[str, Any] = json.loads(sys.stdin.readline())
    run = _ROLES[role][name]
    loop = asyncio.get_running_loop()
    me = asyncio.current_task()
    assert me is not None
    print(json.dumps({"ready": True}), flush=True)
    # The parent says when to begin.
    sys.stdin.readline()
    loop.add_reader(sys.stdin.fileno(), me.cancel)  # the parent is gone, or wants the end
    answer = await run(**options)
    if answer is not None:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    try:
        asyncio.run(_main(*sys.argv[1:3]))
    except CedosError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(1)
    except (asyncio.CancelledError, KeyboardInterrupt):
        os._exit(0)  # threads that still wait for a network do not matter any more
