"""A server of requests and responses over kept connections.

    python -m emu.workloads.exchange_server PORT   prints "ready", serves until it is ended

A request says how long its response is to be. The client may cancel a request; the server answers each
request at once, so that a cancellation costs its bytes and changes nothing else.
"""

import asyncio
import signal
import struct
import sys
from contextlib import suppress

REQUEST = struct.Struct("!BIII")
"""Kind, number, bytes that follow, bytes of the response."""

RESPONSE = struct.Struct("!II")
"""Number, bytes that follow."""

ASK, CANCEL = 1, 2
_LARGEST_BYTES = 64 << 20


async def serve(port: int, host: str = "0.0.0.0") -> None:  # noqa: S104
    """Serve until SIGTERM."""
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    server = await asyncio.start_server(_answer_requests, host, port)
    print("ready", flush=True)
    async with server:
        await server.serve_forever()


async def _answer_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection until it closes or sends nonsense."""
    # The client's network may go, or the server may be ended: both close the connection.
    with suppress(asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
        while True:
            head = await reader.readexactly(REQUEST.size)
            kind, number, follows, response_bytes = REQUEST.unpack(head)
            if kind not in (ASK, CANCEL) or max(follows, response_bytes) > _LARGEST_BYTES:
                break
            await reader.readexactly(follows)
            if kind == ASK:
                writer.write(RESPONSE.pack(number, response_bytes) + bytes(response_bytes))
    writer.close()


if __name__ == "__main__":
    with suppress(asyncio.CancelledError):
        asyncio.run(serve(int(sys.argv[1])))
