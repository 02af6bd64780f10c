"""DNS as a stub resolver needs it (RFC 1035, 6891, 7766): messages, and questions to resolvers.

A question goes on as it is, by UDP, and by TCP where the answer does not fit.
"""

import asyncio
import secrets
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cedos.host.monitor.dns_message import read_question, read_response
from cedos.host.monitor.resolvers import RESOLV_CONF, resolv_conf
from cedos.kernel.interface_socket import receive

LARGEST_BYTES: Final = 65_535
PLAIN_BYTES: Final = 512
_HEADER: Final = struct.Struct("!6H")
_RESPONSE, _OPERATION, _TRUNCATED = 0x8000, 0x7800, 0x0200
_RECURSE, _RECURSES = 0x0100, 0x0080
_RECORD: Final = struct.Struct("!HHHIH")  # name, kind, class, seconds, length
_QUESTION_NAME: Final = 0xC00C  # a pointer to it
_KINDS: Final = {4: 1, 16: 28}  # A and AAAA, by an address's length
ADDRESS_KINDS: Final = frozenset(_KINDS.values())
SERVER_FAILED: Final = 2
NO_SUCH_NAME: Final = 3
_OPT: Final = 41
_TRANSFERS: Final = frozenset({251, 252})  # whole zones: nothing that a program asks a resolver for


@dataclass(frozen=True, slots=True)
class AskedName:
    """A question; `number` is the asker's, `ends` its offset, `takes_bytes` the largest answer by UDP."""

    number: int
    name: str
    kind: int
    ends: int
    takes_bytes: int


def read(message: bytes) -> AskedName | None:
    """Return the question in a message; None: there is none, or none that a stub answers."""
    found = read_question(message)
    if found is None or len(message) > LARGEST_BYTES or found[1] in _TRANSFERS:
        return None
    number, flags, _, answers, authorities, extra = _HEADER.unpack_from(message)
    if flags & _OPERATION or answers or authorities:
        return None
    ends = _end_of_name(message, _HEADER.size) + 4
    return AskedName(number, *found, ends, _takes(message, ends, extra))


def with_number(message: bytes, number: int) -> bytes:
    """Return the message under another number."""
    return struct.pack("!H", number) + message[2:]


def answers(message: bytes, question: AskedName, number: int) -> bool:
    """Tell whether a message is an answer to a question that was sent under `number`.

    Its records are not read: those of one answer may be thousands, and the asker reads them.
    """
    reply = read_response(message)
    return reply is not None and (reply.number, reply.name, reply.kind) == (
        number,
        question.name,
        question.kind,
    )


def is_truncated(message: bytes) -> bool:
    return len(message) >= _HEADER.size and bool(_HEADER.unpack_from(message)[1] & _TRUNCATED)


def error_of(message: bytes) -> int:
    """Return a response's error code; 0: none."""
    return int(_HEADER.unpack_from(message)[1]) & 15


def truncate(message: bytes, question: AskedName) -> bytes:
    """Return an answer without its records: the asker asks again by TCP."""
    number, flags = _HEADER.unpack_from(message)[:2]
    return _HEADER.pack(number, flags | _TRUNCATED, 1, 0, 0, 0) + message[12 : question.ends]


def servfail(message: bytes, question: AskedName) -> bytes:
    """Return a SERVFAIL, so that the asker does not wait."""
    flags = _RESPONSE | _RECURSES | (_HEADER.unpack_from(message)[1] & _RECURSE) | SERVER_FAILED
    return _HEADER.pack(question.number, flags, 1, 0, 0, 0) + message[12 : question.ends]


def answered_here(message: bytes, question: AskedName, addresses: Sequence[str]) -> bytes:
    """Return an answer with the addresses of the kind that is asked for, not to be kept."""
    flags = _RESPONSE | _RECURSES | (_HEADER.unpack_from(message)[1] & _RECURSE)
    packed = (ip_address(each.partition("%")[0]).packed for each in addresses)
    wanted = [each for each in packed if _KINDS[len(each)] == question.kind]
    records = b"".join(
        _RECORD.pack(_QUESTION_NAME, question.kind, 1, 0, len(each)) + each for each in wanted
    )
    head = _HEADER.pack(question.number, flags, 1, len(wanted), 0, 0)
    return head + message[12 : question.ends] + records


def _end_of_name(message: bytes, at: int) -> int:
    """Return the offset behind the question's name; `asked` has checked that it ends."""
    while message[at]:
        if message[at] >= 0xC0:
            return at + 2
        at += 1 + message[at]
    return at + 1


def _takes(message: bytes, at: int, records: int) -> int:
    """Return the largest answer by UDP, as the asker's OPT record says (RFC 6891, 6.2.3)."""
    # OPT's name is the root: one byte.
    if records and len(message) >= at + 11 and message[at] == 0:
        kind, size = struct.unpack_from("!HH", message, at + 1)
        if kind == _OPT:
            return max(PLAIN_BYTES, int(size))
    return PLAIN_BYTES


# A question waits for a gateway's answer so long, at both ends.
ASKED_S: Final = 3.0
_EACH_S: Final = 1.0
_ROUNDS: Final = 2
_MOST_SERVERS: Final = 3  # as the C library (resolv.conf(5), MAXNS)

Endpoint = tuple[str, int]


class NobodyAnswersError(OSError):
    """An error: no resolver has answered."""


def names_by_socket(
    switch: Path = Path("/etc/nsswitch.conf"),
    resolved: Path = Path("/run/systemd/resolve/io.systemd.Resolve"),
    cache: Path = Path("/run/nscd/socket"),
) -> str | None:
    """Return what programs ask for names by a socket instead of by DNS; None: nothing."""
    with suppress(OSError):
        if cache.exists():
            return "nscd"
        for line in switch.read_text(encoding="utf-8", errors="replace").splitlines():
            words = line.partition("#")[0].split()
            if words[:1] == ["hosts:"] and "resolve" in words and resolved.exists():
                return f"systemd-resolved (`resolve` in {switch})"
    return None


def host_servers(file: Path = RESOLV_CONF) -> list[Endpoint]:
    """Return this host's resolvers, also those on loopback."""
    return [(each, 53) for each in resolv_conf(file).servers[:_MOST_SERVERS]]


class Resolver:
    """A client of `servers`, which is called for each question: they change with the networks."""

    def __init__(self, servers: Callable[[], Sequence[Endpoint]] = host_servers) -> None:
        self._servers = servers

    async def ask(self, message: bytes, question: AskedName) -> bytes:
        """Return the answer, under the question's own number. NobodyAnswersError."""
        # Each server in turn, twice; a truncated answer is asked for again by TCP.
        for _ in range(_ROUNDS):
            for server in self._servers():
                with suppress(OSError, TimeoutError, ValueError):
                    async with asyncio.timeout(_EACH_S):
                        answer = await _by_udp(server, message, question)
                        if is_truncated(answer):
                            answer = await _by_tcp(server, message, question)
                        return with_number(answer, question.number)
        raise NobodyAnswersError("no resolver answers")


async def _by_udp(server: Endpoint, message: bytes, question: AskedName) -> bytes:
    loop, number = asyncio.get_running_loop(), secrets.randbelow(1 << 16)
    with _socket(server, socket.SOCK_DGRAM) as one:
        # A connected socket gets no packets of others, and an error at once from a closed port.
        await loop.sock_connect(one, _address(server, one))
        await loop.sock_sendall(one, with_number(message, number))
        while True:
            answer = await receive(one, LARGEST_BYTES)
            if answers(answer, question, number):
                return answer


async def _by_tcp(server: Endpoint, message: bytes, question: AskedName) -> bytes:
    loop, number = asyncio.get_running_loop(), secrets.randbelow(1 << 16)
    with _socket(server, socket.SOCK_STREAM) as one:
        await loop.sock_connect(one, _address(server, one))
        await loop.sock_sendall(one, struct.pack("!H", len(message)) + with_number(message, number))
        answer = await read_message(one)
        if answer is None or not answers(answer, question, number):
            raise ValueError("no answer to what was asked")
        return answer


async def read_message(one: socket.socket, most_bytes: int = LARGEST_BYTES) -> bytes | None:
    """Return the next message of a TCP connection; None: it has ended, or is longer. OSError."""
    head = await _read_exactly(one, 2)
    if head is None or int.from_bytes(head) > most_bytes:
        return None
    return await _read_exactly(one, int.from_bytes(head))


async def _read_exactly(one: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = await receive(one, count - len(data))
        if not more:
            return None
        data += more
    return bytes(data)


def _socket(server: Endpoint, kind: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in server[0] else socket.AF_INET
    return socket.socket(family, kind | socket.SOCK_NONBLOCK)


def _address(server: Endpoint, one: socket.socket) -> tuple[str, int] | tuple[str, int, int, int]:
    if one.family is not socket.AF_INET6:
        return server
    host, _, zone = server[0].partition("%")
    return host, server[1], 0, socket.if_nametoindex(zone) if zone else 0
