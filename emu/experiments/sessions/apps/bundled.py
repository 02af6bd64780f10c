"""One large download as bundles (BPv7 of pyd3tn over its TCP convergence layer, MTCP).

MTCP acknowledges nothing and pyd3tn is no complete agent, so that what both leave to one is done here
with the protocol's own means: the file is fragmented beforehand, the receiver sends a status report for
each fragment delivered, and after a disruption the sender repeats those that were not reported.
"""

import asyncio
import importlib
import socket
import threading
import time
from typing import Any, Final

_FRAGMENT_BYTES: Final = 65_536
_PROBE_S: Final = 1.0
"""The paper's longest pause between two probes for a network."""
_SERVER, _CLIENT = "dtn://server/files", "dtn://client/fetch"
_ZEROS: Final = bytes(_FRAGMENT_BYTES)


def _pyd3tn() -> tuple[Any, Any, Any]:
    """Import pyd3tn's modules; it is no dependency and may be absent."""
    names = ("bundle7", "helpers", "mtcp")
    bundle7, helpers, mtcp = (importlib.import_module(f"pyd3tn.{name}") for name in names)
    return bundle7, helpers, mtcp


async def server(host: str, port: int, size: int) -> None:
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
                    _SERVER, _CLIENT, _ZEROS[: min(_FRAGMENT_BYTES, size - offset)],
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


async def client(host: str, port: int, size: int) -> dict[str, Any]:
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
    connections = repeated = 0
    while sum(got.values()) < size:
        tried_s = time.monotonic()
        try:
            connection = socket.create_connection((host, port), timeout=_PROBE_S)
        except OSError:
            time.sleep(max(0.0, _PROBE_S - (time.monotonic() - tried_s)))
            continue
        connections += 1
        peer = mtcp.MTCPSocket(connection, timeout=_PROBE_S)
        connection.settimeout(_PROBE_S)
        try:
            while sum(got.values()) < size:
                bundle = bundle7.Bundle.parse(peer.recv_bundle())
                offset = bundle.primary_block.fragment_offset
                repeated += len(bundle.payload_block.data) if offset in got else 0
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
    return {
        "bytes": sum(got.values()),
        "ended_s": time.monotonic(),
        "connections": connections,
        "repeated_bytes": repeated,
    }
