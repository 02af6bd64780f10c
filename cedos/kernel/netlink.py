"""Netlink: messages and attributes as bytes (linux/netlink.h), a listener, and two requesters.

We decode ourselves, since pyroute2 takes 7 to 26 times as long for the messages that come with
every flow (docs/decisions/netlink-in-bytes.md). `BatchedReader` reads descriptors on common beats:
frequent messages together, a single one at once.
"""

import asyncio
import errno
import itertools
import math
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Final, NamedTuple

from cedos.errors import HostError
from cedos.kernel.privileges import EventSocket, attach_filter, enlarge, open_privileged


class BatchedReader:
    """Reads a descriptor when it becomes readable, then once an interval until there is nothing more.

    All readers with the same interval read at the same instants, so that the loop wakes once for all of
    them: a wake-up costs more than most of what is read.

    Args:
        fd: the descriptor; its owner closes it.
        read: reads what is there without waiting; returns whether there was anything.
        interval_s: between two readings.
    """

    def __init__(self, fd: int, read: Callable[[], bool], interval_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._read = read
        self._interval_s = interval_s
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._loop.add_reader(fd, self._readable)

    def close(self) -> None:
        """Stop reading; must be called before the descriptor is closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop.remove_reader(self._fd)

    def _readable(self) -> None:
        # The first data is read at once. From now on the timer reads, until a reading finds nothing.
        self._loop.remove_reader(self._fd)
        self._schedule()
        self._read()

    def _schedule(self) -> None:
        # Multiples of the interval are the common instants.
        past = self._loop.time() // self._interval_s
        self._timer = self._loop.call_at((past + 1.0) * self._interval_s, self._due)

    def _due(self) -> None:
        self._timer = None
        # An error must not end the reading: it goes on an interval later.
        more = True
        try:
            more = self._read()
        finally:
            # The reading itself may have closed this reader.
            if self._closed:
                pass
            elif more:
                self._schedule()
            else:
                self._loop.add_reader(self._fd, self._readable)


NETLINK_ROUTE: Final = 0
NETLINK_SOCK_DIAG: Final = 4
NETLINK_NETFILTER: Final = 12
NETLINK_GENERIC: Final = 16

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP: Final = 0x300
NLM_F_REPLACE: Final = 0x100
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400
_NLM_F_CAPPED, _NLM_F_ACK_TLVS = 0x100, 0x200

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3
_ENDINGS: Final = (NLMSG_ERROR, NLMSG_DONE)

# Flags within an attribute's type.
NLA_F_NESTED: Final = 0x8000
NLA_F_NET_BYTEORDER: Final = 0x4000
_TYPE_MASK: Final = 0x3FFF

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ERROR = struct.Struct("=i")
_ERROR_TEXT: Final = 1  # NLMSGERR_ATTR_MSG

_SOL_NETLINK: Final = 270
_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK = 10, 11, 12

_RECEIVE_BYTES: Final = 1 << 16
_DUMP_BYTES: Final = 1 << 18
_ANSWER_TIMEOUT_S: Final = 5.0
# The most datagrams read before they are handled, and the longest time for it. A flood of events
# must not starve the event loop.
_BURST: Final = 64
_MOST_S = 0.01


class NetlinkMessage(NamedTuple):
    """A netlink message; `payload` begins behind the header, `port` is the requester's."""

    type: int
    flags: int
    sequence: int
    payload: bytes
    port: int = 0


# Return whether an answer is kept. A dump may have a hundred thousand.
Keeps = Callable[[NetlinkMessage], bool]


def messages(data: bytes) -> Iterator[NetlinkMessage]:
    """Yield the messages of one datagram. A truncated or impossible one ends the iteration."""
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, sequence, port = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size or offset + length > len(data):
            return
        payload = data[offset + _HEADER.size : offset + length]
        yield NetlinkMessage(kind, flags, sequence, payload, port)
        # Messages and attributes begin at multiples of four bytes (NLMSG_ALIGN, NLA_ALIGN).
        offset += (length + 3) & ~3


def attributes(data: bytes, offset: int = 0) -> dict[int, bytes]:
    """Return the attributes from `offset` on by type, the last of a type; a truncated one ends them."""
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
    """Return one attribute, padded."""
    return _ATTRIBUTE.pack(4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def build_nested(kind: int, *inside: bytes) -> bytes:
    """Return one attribute that holds others, and says so in its type."""
    return attribute(kind | NLA_F_NESTED, b"".join(inside))


def message(kind: int, flags: int, sequence: int, payload: bytes) -> bytes:
    """Return one message with its header."""
    return _HEADER.pack(_HEADER.size + len(payload), kind, flags, sequence, 0) + payload


def read_unsigned(value: bytes | None) -> int | None:
    """Return an integer attribute of any width in host order; None if it is missing or empty."""
    return int.from_bytes(value, sys.byteorder) if value else None


def text(value: bytes | None) -> str:
    """Return a string attribute without its end; empty if it is missing."""
    return value.rstrip(b"\0").decode("utf-8", "replace") if value else ""


def refusal(ending: NetlinkMessage) -> OSError | None:
    """Return the error that an answer ends with, in the kernel's own words if it gives some."""
    payload = ending.payload
    code = -_ERROR.unpack_from(payload)[0] if len(payload) >= _ERROR.size else 0
    if not code:
        return None
    # With extended acknowledgements (`_open_to_ask`), attributes with the kernel's words follow.
    words = ""
    if ending.flags & _NLM_F_ACK_TLVS:
        begin = _ERROR.size
        if ending.type == NLMSG_ERROR and len(payload) >= _ERROR.size + _HEADER.size:
            # Between the code and the words stands the request, or its header alone.
            length = _HEADER.unpack_from(payload, begin)[0]
            begin += _HEADER.size if ending.flags & _NLM_F_CAPPED else (length + 3) & ~3
        words = text(attributes(payload, begin).get(_ERROR_TEXT))
    return OSError(code, words or os.strerror(code))


def open_socket(protocol: int, receive_buffer_bytes: int = 1 << 20) -> socket.socket:
    """Open a socket in the calling thread's network namespace; HostError if the kernel has none."""
    try:
        asking = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        raise HostError(
            f"the kernel has no netlink protocol {protocol} ({error.strerror}); "
            "a kernel with it built in or its module loaded would be right"
        ) from error
    enlarge(asking, receive_buffer_bytes)
    return asking


def _open_to_ask(protocol: int, timeout_s: float, port: int = 0) -> socket.socket:
    """Return a socket for requests; with a timeout of 0 it does not block."""
    asking = open_socket(protocol)
    asking.bind((port, 0))
    # Errors come with the kernel's own words (EXT_ACK) and without the whole request (CAP_ACK), and
    # dumps are filtered by the kernel (GET_STRICT_CHK).
    for option in (_CAP_ACK, _EXT_ACK, _GET_STRICT_CHK):
        asking.setsockopt(_SOL_NETLINK, option, 1)
    asking.settimeout(timeout_s)
    return asking


class Requester:
    """A requester that has its answer at once: the kernel carries out a request within `send`.

    It is for commands, each of less than a millisecond. Dumps of thousands of flows or routes are for
    `AsyncRequester`, which lets the event loop's other work in between its datagrams. Events name the
    requester of a change by its `port`. HostError: the kernel has no such protocol.
    """

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._socket = _open_to_ask(protocol, _ANSWER_TIMEOUT_S)
        self.port: int = self._socket.getsockname()[0]
        self._sequences = itertools.count(1)

    def ask(
        self,
        kind: int,
        payload: bytes,
        flags: int = NLM_F_ACK,
        keeps: Keeps | None = None,
        within_s: float = math.inf,
    ) -> list[NetlinkMessage]:
        """Return the answers to a request (REQUEST is added).

        With ACK or DUMP there may be many answers; without, the first one ends it. Raises OSError where
        the kernel refuses, with its own words where it gives some, TimeoutError after seconds, or where
        the answers take longer than `within_s`.
        """
        until_s = time.monotonic() + within_s
        sequence = next(self._sequences) & 0xFFFFFFFF
        self._socket.send(message(kind, flags | NLM_F_REQUEST, sequence, payload))
        size = _DUMP_BYTES if flags & NLM_F_DUMP == NLM_F_DUMP else _RECEIVE_BYTES
        # With ACK or DUMP the answers end with a message of their own, else with the first answer.
        several = flags & (NLM_F_ACK | NLM_F_DUMP)
        answers: list[NetlinkMessage] = []
        while True:
            for answer in messages(self._socket.recv(size)):
                # What a request that timed out left behind has another sequence number.
                if answer.sequence != sequence:
                    continue
                if answer.type in _ENDINGS:
                    if (error := refusal(answer)) is not None:
                        raise error
                    return answers
                if keeps is None or keeps(answer):
                    answers.append(answer)
                if not several:
                    return answers
            if time.monotonic() > until_s:
                # The rest of a dump would keep the socket busy (EBUSY).
                self._socket.close()
                self._socket = _open_to_ask(self._protocol, _ANSWER_TIMEOUT_S, self.port)
                raise TimeoutError("the kernel's answer is too long")

    def ask_together(self, *requests: tuple[int, bytes, int]) -> list[OSError | None]:
        """Have the kernel carry out changes (kind, payload, flags) in one call; return its refusals.

        A process that is killed has made all of them or none. One that is refused keeps no other out.
        """
        numbers = [next(self._sequences) & 0xFFFFFFFF for _ in requests]
        self._socket.send(
            b"".join(
                message(kind, flags | NLM_F_ACK | NLM_F_REQUEST, number, payload)
                for number, (kind, payload, flags) in zip(numbers, requests, strict=True)
            )
        )
        found: dict[int, OSError | None] = {}
        while len(found) < len(numbers):
            for answer in messages(self._socket.recv(_RECEIVE_BYTES)):
                if answer.type in _ENDINGS and answer.sequence in numbers:
                    found[answer.sequence] = refusal(answer)
        return [found[number] for number in numbers]

    def dump(
        self,
        kind: int,
        payload: bytes,
        keeps: Keeps | None = None,
        within_s: float = math.inf,
    ) -> list[NetlinkMessage]:
        """Return the messages of a dump that are worth keeping; None: all."""
        return self.ask(kind, payload, NLM_F_DUMP, keeps, within_s)

    def close(self) -> None:
        self._socket.close()


class AsyncRequester:
    """A requester of one request at a time, which waits for the kernel in the event loop."""

    def __init__(self, protocol: int) -> None:
        self._protocol = protocol
        self._socket = _open_to_ask(protocol, 0.0)
        self._turn = asyncio.Lock()
        self._sequences = itertools.count(1)

    async def dump(
        self, kind: int, payload: bytes, timeout_s: float = 5.0, keeps: Keeps | None = None
    ) -> list[NetlinkMessage]:
        """Return the messages of a dump that are worth keeping; None: all.

        Raises OSError: refused, or the answers overflowed the buffer (ENOBUFS); TimeoutError.
        """
        return await self._ask(kind, NLM_F_REQUEST | NLM_F_DUMP, payload, timeout_s, keeps)

    async def get(self, kind: int, payload: bytes, timeout_s: float = 5.0) -> list[NetlinkMessage]:
        """Return the answers to a plain request, up to its acknowledgement; errors as for `dump`."""
        return await self._ask(kind, NLM_F_REQUEST | NLM_F_ACK, payload, timeout_s)

    async def _ask(
        self, kind: int, flags: int, payload: bytes, timeout_s: float, keeps: Keeps | None = None
    ) -> list[NetlinkMessage]:
        async with self._turn, asyncio.timeout(timeout_s):
            try:
                return await self._answers(kind, flags, payload, keeps)
            except asyncio.CancelledError:
                # The rest of a dump would keep the socket busy (EBUSY).
                if self._socket.fileno() >= 0:
                    self._socket.close()
                    self._socket = _open_to_ask(self._protocol, 0.0)
                raise

    async def _answers(
        self, kind: int, flags: int, payload: bytes, keeps: Keeps | None
    ) -> list[NetlinkMessage]:
        loop = asyncio.get_running_loop()
        sequence = next(self._sequences)
        await loop.sock_sendall(self._socket, message(kind, flags, sequence, payload))
        answers: list[NetlinkMessage] = []
        while True:
            data, sender = await loop.sock_recvfrom(self._socket, _RECEIVE_BYTES)
            # Any process may send to this socket: only port 0 is the kernel.
            for answer in messages(data) if sender[0] == 0 else ():
                if answer.sequence != sequence:
                    continue
                if answer.type in _ENDINGS:
                    if (error := refusal(answer)) is not None:
                        raise error
                    return answers
                if keeps is None or keeps(answer):
                    answers.append(answer)
            # The next part is there at once: without this, nothing else had its turn, nor the timeout.
            await asyncio.sleep(0)

    def close(self) -> None:
        self._socket.close()


class NetlinkListener:
    """Calls `on_datagram` for each datagram of the multicast groups, `on_overflow` after each loss.

    The socket belongs to the namespace of the thread that makes the listener. HostError: the kernel
    lacks the protocol or one of the groups.
    """

    def __init__(
        self,
        protocol: int,  # the netlink protocol's number
        groups: Iterable[int],  # the groups' numbers
        # Called with one or more messages, from the event loop.
        on_datagram: Callable[[bytes], None],
        # Called when the kernel dropped messages because the buffer was full (ENOBUFS), and after
        # what it had kept before them.
        on_overflow: Callable[[], None],
        # The kernel's buffer. It is large because bursts are faster than the reader.
        receive_buffer_bytes: int = 4 << 20,
        # The interval at which frequent messages are read together (`BatchedReader`); 0: each
        # message is read at once.
        interval_s: float = 0.0,
        # Called before datagrams are handed on, once for all that were read together. If it returns
        # False, they wait for the next time (with `interval_s`).
        before: Callable[[], bool] | None = None,
        only: bytes = b"",  # a filter (classic BPF) of the messages that are worth a wake-up
    ) -> None:
        self.overflows = 0
        self._before = before
        self._on_datagram = on_datagram
        self._on_overflow = on_overflow
        self._held: list[bytes] = []
        self._lost = False
        # The privileged process opens the socket once the daemon has given up its capabilities.
        wanted = EventSocket(protocol, tuple(groups), receive_buffer_bytes)
        try:
            self._socket = open_privileged(wanted)
            if only:
                attach_filter(self._socket, only)
        except OSError as error:
            raise HostError(
                f"netlink protocol {protocol} refuses its events ({error.strerror}); "
                "CAP_NET_ADMIN and a kernel with them built in would be right"
            ) from error
        file = self._socket.fileno()
        self._stop_reading: Callable[[], object]
        # Frequent messages are read at the common instants, others as soon as the socket is readable.
        if interval_s:
            self._stop_reading = BatchedReader(file, self.drain, interval_s).close
        else:
            loop = asyncio.get_running_loop()
            loop.add_reader(file, self.drain)
            self._stop_reading = partial(loop.remove_reader, file)

    def drain(self) -> bool:
        """Handle the queued messages; return whether there was one."""
        return self._drain()[0]

    def empty_queue(self) -> bool:
        """Handle the queued messages; return whether these were all."""
        return self._drain()[1]

    def _drain(self) -> tuple[bool, bool]:
        # Read bursts and hand them on, until nothing is left or the time is over: the event loop must
        # run.
        until_s = time.monotonic() + _MOST_S
        anything = bool(self._held)
        while True:
            empty = self._read()
            anything = anything or bool(self._held)
            # The preparation is not done yet: keep the datagrams.
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
        """Read some more; return whether that was all."""
        for _ in range(_BURST - len(self._held)):
            # A handler may have closed this listener.
            if self._socket.fileno() < 0:
                return True
            try:
                data, sender = self._socket.recvfrom(_RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                return True
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                # The kernel reports a loss at once, before what it had queued until then.
                self.overflows += 1
                self._lost = True
                continue
            # Only datagrams of the kernel, not those of another process.
            if sender[0] == 0:
                self._held.append(data)
        return False

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._stop_reading()
            self._socket.close()
