"""The client's side of a TCP probe: a short transfer over one network, its time and rate."""

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Awaitable

from cedos.host.monitor.flows import own_flows
from cedos.host.monitor.probing import wire
from cedos.host.monitor.probing.result import TCP_HEADERS, ProbeOutcome, ProbeServer, Spent
from cedos.host.monitor.probing.udp_train import ProbeFailed
from cedos.kernel.interface_socket import interface_socket
from cedos.kernel.tcp_info import TCP_INFO_BYTES, tcp_info_fields
from cedos.model import Direction

_BLOCK = bytes(65536)


async def run(
    server: ProbeServer,
    *,
    interface: str,
    index: int = 0,
    direction: Direction = Direction.DOWN,
    timeout_s: float = 2.0,
) -> ProbeOutcome:
    """Carry `server.tcp_bytes` over one TCP connection; never raises for what network or server do.

    Gives `tcp_connect_s`, and `tcp_bps`: the bits of payload over the time from the request to the
    last byte (up: to the server's word that all have come), as on a connection that stands. Or the
    problem.
    """
    started_s = time.monotonic()
    known: dict[str, float] = {}
    problem, spent = "", Spent()
    try:
        with interface_socket(interface, server.address.version, socket.SOCK_STREAM) as connection:
            try:
                async with asyncio.timeout(timeout_s):
                    known = await _transfer(connection, server, index, direction)
            finally:
                spent = _spent(connection, server, time.monotonic() - started_s)
    except TimeoutError:
        problem = f"not done within {timeout_s:g} s"
    except ProbeFailed as failure:
        problem = str(failure)
    except OSError as error:
        problem = f"{interface}: {os.strerror(error.errno) if error.errno else error}"
    return ProbeOutcome({} if problem else known, spent, problem, known.get("tcp_connect_s"))


async def _transfer(
    connection: socket.socket,
    server: ProbeServer,
    index: int,
    direction: Direction,
) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    started_s = time.monotonic()
    await own_flows.connected(connection, server.address, server.port, index)
    connect_s = time.monotonic() - started_s
    challenge = await _exactly(connection, wire.CHALLENGE_BYTES)
    session = secrets.token_bytes(wire.SESSION_BYTES)
    # A challenge is not signed; its number is all that is taken from it.
    number = challenge[5 : 5 + wire.SESSION_BYTES]
    request = wire.TransferRequest(session, number, direction, server.tcp_bytes)
    asked_s = time.monotonic()
    await loop.sock_sendall(connection, wire.encode(request, server.key))
    answer = _ours(await _exactly(connection, wire.GRANT_BYTES), server.key, session)
    if isinstance(answer, wire.Refused):
        raise ProbeFailed(f"the server refuses: {wire.REASONS[answer.reason]}")
    if not isinstance(answer, wire.TransferGrant):
        raise ProbeFailed("the server answers something else than was asked")
    left = server.tcp_bytes
    if direction is Direction.DOWN:
        buffer = bytearray(1 << 16)
        while left:
            count = await loop.sock_recv_into(connection, memoryview(buffer)[: min(left, 1 << 16)])
            if not count:
                raise ProbeFailed(f"the server closed {left} bytes before the end")
            left -= count
        ended_s = time.monotonic()
    else:
        asked_s = time.monotonic()
        while left:
            block = _BLOCK[: min(left, len(_BLOCK))]
            await loop.sock_sendall(connection, block)
            left -= len(block)
    end = _ours(await _exactly(connection, wire.END_BYTES), server.key, session)
    if direction is Direction.UP:
        ended_s = time.monotonic()
    if not isinstance(end, wire.End) or end.size_bytes != server.tcp_bytes:
        raise ProbeFailed("the server does not confirm all bytes")
    return {"tcp_bps": 8 * server.tcp_bytes / (ended_s - asked_s), "tcp_connect_s": connect_s}


async def _exactly(connection: socket.socket, count: int) -> bytes:
    loop = asyncio.get_running_loop()
    data = b""
    while len(data) < count:
        reading: Awaitable[bytes] = loop.sock_recv(connection, count - len(data))
        block = await reading
        if not block:
            raise ProbeFailed("the server closed the connection")
        data += block
    return data


def _ours(data: bytes, key: bytes, session: bytes) -> wire.Message:
    message = wire.decode(data, key)
    if message is None or message.session != session:
        raise ProbeFailed("the server's answers are not signed with this key")
    return message


def _spent(connection: socket.socket, server: ProbeServer, seconds: float) -> Spent:
    """Return what the kernel counted: payload, and a header for each segment."""
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    info = tcp_info_fields(raw)
    header = TCP_HEADERS[server.address.version]
    up = info.bytes_sent + info.segs_out * header
    return Spent(up, info.bytes_received + info.segs_in * header, seconds)
