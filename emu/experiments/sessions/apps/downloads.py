"""Large downloads: over a session, as an endless stream over a session, and as bundles.

Bundles are those of pyd3tn (BPv7 over MTCP, its TCP convergence layer). MTCP acknowledges nothing and
pyd3tn is no complete agent, so that the missing parts are done here with the protocol's own means: the
file is fragmented beforehand, the receiver sends a status report for each fragment delivered, and after
a disruption the sender repeats the fragments that were not reported.
"""

import asyncio
import importlib
import os
import socket
import threading
import time
from typing import Any, Final

from cedos.errors import SessionError
from cedos.session import connect, listen
from cedos.session.protocol.crypto import KeyPair

_ZEROS = bytes(1 << 20)


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


_ENDLESS = 1 << 40


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


_FRAGMENT_BYTES: Final = 65_536
# The paper's longest pause between two probes for a network.
_PROBE_S: Final = 1.0
_SERVER, _CLIENT = "dtn://server/files", "dtn://client/fetch"
_FRAGMENT: Final = bytes(_FRAGMENT_BYTES)


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
