"""A timed HTTP transfer: what `collect` measures.

A completion time runs from just before `connect()` to the last byte of a download, or to the server's
answer to the last byte of an upload.
"""

import socket
import time
from dataclasses import dataclass

from cedos.model import Direction
from emu.testbed.netns import Namespace

IPPROTO_MPTCP = 262
_BLOCK = bytes(65536)


@dataclass(frozen=True, slots=True)
class Timing:
    """The time of one transfer: seconds to completion, or `censored` at the limit or on failure.

    `problem` names what ended a censored transfer: `limit`, or the error of the socket.
    """

    time_s: float
    censored: bool
    connect_s: float | None
    problem: str | None = None


def measure(
    client: Namespace,
    *,
    server: str,
    port: int,
    size_bytes: int,
    direction: Direction,
    mptcp: bool,
    source: str | None,
    limit_s: float,
) -> Timing:
    """Carry `size_bytes` over one connection from `source` (which selects the network).

    A transfer that fails or does not finish is censored at `limit_s`: a reset or a refused connection
    is no completion, however early it comes.
    """
    with client.entered():
        connection = socket.socket(
            socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP if mptcp else 0
        )
    with connection:
        if source is not None:
            connection.bind((source, 0))
        started_at_s = time.monotonic()
        deadline_at_s = started_at_s + limit_s
        connect_s = None
        try:
            connection.settimeout(limit_s)
            connection.connect((server, port))
            connect_s = time.monotonic() - started_at_s
            if direction is Direction.DOWN:
                _download(connection, server, size_bytes, deadline_at_s)
            else:
                _upload(connection, server, size_bytes, deadline_at_s)
        except TimeoutError:
            return Timing(limit_s, True, connect_s, "limit")
        except OSError as error:
            return Timing(limit_s, True, connect_s, str(error))
        return Timing(time.monotonic() - started_at_s, False, connect_s)


def _left(connection: socket.socket, deadline_at_s: float) -> None:
    left_s = deadline_at_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    connection.settimeout(left_s)


def _download(
    connection: socket.socket, server: str, size_bytes: int, deadline_at_s: float
) -> None:
    request = f"GET /bytes/{size_bytes} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n"
    connection.sendall(request.encode())
    head, body = _head(connection, deadline_at_s)
    _expect(head, b"200")
    received = len(body)
    buffer = bytearray(1 << 18)
    while received < size_bytes:
        _left(connection, deadline_at_s)
        count = connection.recv_into(buffer)
        if count == 0:
            raise ConnectionError(f"closed by the server after {received} of {size_bytes} bytes")
        received += count


def _upload(connection: socket.socket, server: str, size_bytes: int, deadline_at_s: float) -> None:
    request = (
        f"PUT /upload/x HTTP/1.1\r\nHost: {server}\r\nContent-Length: {size_bytes}\r\n"
        "Connection: close\r\n\r\n"
    )
    first = request.encode() + _BLOCK[: min(size_bytes, 8192)]
    connection.sendall(first)
    sent = min(size_bytes, 8192)
    while sent < size_bytes:
        _left(connection, deadline_at_s)
        sent += connection.send(_BLOCK[: min(len(_BLOCK), size_bytes - sent)])
    head, _ = _head(connection, deadline_at_s)
    _expect(head, b"20")


def _head(connection: socket.socket, deadline_at_s: float) -> tuple[bytes, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        _left(connection, deadline_at_s)
        block = connection.recv(65536)
        if not block:
            raise ConnectionError("closed by the server before its answer")
        data += block
    head, _, body = data.partition(b"\r\n\r\n")
    return head, body


def _expect(head: bytes, code: bytes) -> None:
    status = head.split(b" ", 2)[1:2]
    if not status or not status[0].startswith(code):
        raise ConnectionError(
            f"the server answered {head.splitlines()[0].decode(errors='replace')}"
        )
