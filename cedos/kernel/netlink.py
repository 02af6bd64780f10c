"""Netlink for events: messages and attributes as bytes, and sockets that notice lost messages.

Links, routes, rules and Wi-Fi go through pyroute2. Flow events come at the rate of new connections:
each TCP flow or MPTCP subflow makes three, each MPTCP connection four more. Decoded by pyroute2 0.9.7
and by us (formats: linux/netlink.h), in one run, in microseconds of processor time:

| message | pyroute2 | here | ratio |
|---|---|---|---|
| connection tracking: new | 128 | 5.0 | 25 |
| connection tracking: destroy | 170 | 6.6 | 26 |
| sock_diag: destroy | 41 | 5.1 | 8.1 |
| MPTCP path manager: event | 61 | 5.6 | 11 |
| sock_diag: entry of a dump | 38 | 5.0 | 7.5 |

(All of IPv4; of IPv6, connection tracking's take 9.1 and 11 here.) 100 flows a second over two MPTCP
subflows each would cost 9.2 % of a core, here 0.6 %. Also, pyroute2's sock_diag socket is not
asynchronous and takes a dump's errors for IPv4 sockets.
"""

import asyncio
import errno
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cedos.errors import HostError
from cedos.kernel.batched_reader import Resting

NLM_F_REQUEST = 0x1
NLM_F_ACK = 0x4
NLM_F_DUMP = 0x300

NLMSG_ERROR = 2
NLMSG_DONE = 3

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_TYPE_MASK = 0x3FFF  # the two upper bits of an attribute's type are flags

_SOL_NETLINK = 270
_NETLINK_ADD_MEMBERSHIP = 1
_SO_RCVBUFFORCE = 33

_RECEIVE_BYTES = 1 << 16
# So many datagrams are read before they are handed on, and so long at most at a time: a flood of events
# must not starve the loop's other work.
_BURST = 64
_MOST_S = 0.01


class Message(NamedTuple):
    """One netlink message; `payload` begins behind the netlink header."""

    type: int
    flags: int
    sequence: int
    payload: bytes


def messages(data: bytes) -> Iterator[Message]:
    """The messages of one datagram. A truncated or impossible one ends the iteration."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        yield Message(kind, flags, sequence, data[offset + _HEADER.size : offset + length])
        offset += (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """The attributes from `offset` on: type -> value, the last of a type; a truncated one ends them."""
    found: dict[int, bytes] = {}
    end = len(data)
    while offset + 4 <= end:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4 or offset + length > end:
            break
        found[kind & _TYPE_MASK] = data[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    return found


def attribute(kind: int, value: bytes) -> bytes:
    """One attribute, padded."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """One message with its header."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def unsigned(value: bytes | None) -> int | None:
    """An integer attribute of any width in host order; None where it is missing or empty."""
    return int.from_bytes(value, "little" if _LITTLE else "big") if value else None


_LITTLE = struct.pack("=H", 1) == b"\1\0"


def _open(protocol: int, receive_buffer_bytes: int) -> socket.socket:
    try:
        opened = socket.socket(
            socket.AF_NETLINK,
            socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            protocol,
        )
    except OSError as error:
        raise HostError(
            f"the kernel has no netlink protocol {protocol} ({error.strerror}); "
            "a kernel with it built in or its module loaded would be right"
        ) from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, receive_buffer_bytes)
    except OSError:  # without CAP_NET_ADMIN the system's limit holds
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    return opened


class Listener:
    """Calls `on_datagram` for each datagram of the multicast groups, `on_overflow` after each loss.

    pyroute2's own socket is of no use after a loss (ENOBUFS).

    The socket belongs to the namespace of the thread that makes the listener.

    Args:
        protocol: the netlink protocol's number.
        groups: the groups' numbers.
        on_datagram: called with one or more messages, from the event loop.
        on_overflow: called when the kernel dropped messages because the buffer was full (ENOBUFS), and
            after what it had kept before them.
        receive_buffer_bytes: the kernel's buffer, large because bursts come faster than we read.
        rest_s: what comes often is read together, so often (`Resting`); 0: everything at once.
        before: called before datagrams are handed on, once for all that were read together; they wait
            for the next time where it says that it has not come to its end (with `rest_s`).

    Raises:
        HostError: the kernel lacks the protocol or one of the groups.
    """

    def __init__(
        self,
        protocol: int,
        groups: Iterable[int],
        on_datagram: Callable[[bytes], None],
        on_overflow: Callable[[], None],
        receive_buffer_bytes: int = 4 << 20,
        rest_s: float = 0.0,
        before: Callable[[], bool] | None = None,
    ) -> None:
        self.overflows = 0
        self._before = before
        self._on_datagram = on_datagram
        self._on_overflow = on_overflow
        self._held: list[bytes] = []
        self._lost = False
        self._socket = _open(protocol, receive_buffer_bytes)
        try:
            self._socket.bind((0, 0))
            for group in groups:
                self._socket.setsockopt(_SOL_NETLINK, _NETLINK_ADD_MEMBERSHIP, group)
        except OSError as error:
            self._socket.close()
            raise HostError(
                f"netlink protocol {protocol} refuses its events ({error.strerror}); "
                "CAP_NET_ADMIN and a kernel with them built in would be right"
            ) from error
        self._resting: Resting | None = None
        if rest_s:
            self._resting = Resting(self._socket.fileno(), self.drain, rest_s)
        else:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket.fileno(), self.drain)

    def drain(self) -> bool:
        """Handles what the kernel has queued by now; says whether there was anything."""
        return self._drain()[0]

    def emptied(self) -> bool:
        """Handles what the kernel has queued by now; says whether that was all."""
        return self._drain()[1]

    def _drain(self) -> tuple[bool, bool]:
        """Whether there was anything, and whether nothing is left."""
        until_s = time.monotonic() + _MOST_S
        anything = bool(self._held)
        while True:
            empty = self._read()
            anything = anything or bool(self._held)
            if self._held and self._before is not None and not self._before():
                return True, False
            held, self._held = self._held, []
            for datagram in held:
                self._on_datagram(datagram)
            # After a loss the kernel queues nothing more until all before it has been read.
            if empty and self._lost:
                self._lost = False
                self._on_overflow()
            if empty or time.monotonic() >= until_s:
                return anything, empty

    def _read(self) -> bool:
        """Reads some more; whether that was all."""
        for _ in range(_BURST - len(self._held)):
            if self._socket.fileno() < 0:  # by what was handed on
                return True
            try:
                data, sender = self._socket.recvfrom(_RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                # The kernel tells a loss at once, before what it had queued until then.
                self.overflows += 1
                self._lost = True
                continue
            if sender[0] == 0:  # from the kernel, not from another process
                self._held.append(data)
        return False

    def close(self) -> None:
        """Stops listening."""
        if self._socket.fileno() < 0:
            return
        if self._resting is not None:
            self._resting.close()
        else:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()


class Requester:
    """Asks the kernel, one request at a time."""

    def __init__(self, protocol: int) -> None:
        self._socket = _open(protocol, 1 << 20)
        self._socket.bind((0, 0))
        self._turn = asyncio.Lock()
        self._sequences = itertools.count(1)

    async def dump(self, kind: int, payload: bytes, timeout_s: float = 5.0) -> list[Message]:
        """All messages of a dump.

        Raises:
            OSError: the kernel refused, or the answers overflowed the buffer (ENOBUFS).
            TimeoutError: no end after `timeout_s`.
        """
        return await self.ask(kind, NLM_F_REQUEST | NLM_F_DUMP, payload, timeout_s)

    async def get(self, kind: int, payload: bytes, timeout_s: float = 5.0) -> list[Message]:
        """The answers to a plain request, up to its acknowledgement; errors as for `dump`."""
        return await self.ask(kind, NLM_F_REQUEST | NLM_F_ACK, payload, timeout_s)

    async def ask(self, kind: int, flags: int, payload: bytes, timeout_s: float) -> list[Message]:
        """Sends one request and collects its answers; errors as for `dump`."""
        loop = asyncio.get_running_loop()
        async with self._turn, asyncio.timeout(timeout_s):
            sequence = next(self._sequences)
            await loop.sock_sendall(self._socket, message(kind, flags, sequence, payload))
            answers: list[Message] = []
            while True:
                data, sender = await loop.sock_recvfrom(self._socket, _RECEIVE_BYTES)
                # What a cancelled earlier request left behind has another sequence number.
                for answer in messages(data) if sender[0] == 0 else ():
                    if answer.sequence != sequence:
                        continue
                    if answer.type in (NLMSG_ERROR, NLMSG_DONE):
                        _raise_for(answer)
                        return answers
                    answers.append(answer)

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()


def _raise_for(answer: Message) -> None:
    if len(answer.payload) >= _ERROR.size and (code := -_ERROR.unpack_from(answer.payload)[0]):
        raise OSError(code, os.strerror(code))
