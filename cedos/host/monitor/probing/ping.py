"""ICMP echo over one interface: a socket that needs no privilege where the host allows it, else raw."""

import asyncio
import contextlib
import itertools
import os
import socket
import struct
import time
from collections.abc import Callable
from ipaddress import ip_address

from cedos.errors import PrivilegeError
from cedos.kernel.interface_socket import TIMESTAMP_SPACE, arrival_ns, interface_socket
from cedos.kernel.privileges import EchoSocket, open_privileged
from cedos.model import Address

_ECHO = struct.Struct("!BBHHH")  # type, code, checksum, identifier, sequence
_PAYLOAD = b"cedos..."
_REQUEST = {4: 8, 6: 128}
_REPLY = {4: 0, 6: 129}
_ICMP_FILTER = 1
_SOL_RAW = 255
# The most replies that are read before the event loop does other work.
_AT_ONCE = 64


def checksum(data: bytes) -> int:
    """Return the Internet checksum (RFC 1071)."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data[: len(data) & ~1]))
    if len(data) & 1:
        total += data[-1] << 8
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def echo(version: int, identifier: int, sequence: int) -> bytes:
    """Return an echo request. The kernel fills an ICMPv6 checksum in."""
    blank = _ECHO.pack(_REQUEST[version], 0, 0, identifier, sequence) + _PAYLOAD
    if version == 6:
        return blank
    return blank[:2] + checksum(blank).to_bytes(2) + blank[4:]


def parse_reply(version: int, data: bytes, *, with_header: bool) -> tuple[int, int] | None:
    """Return identifier and sequence of an echo reply (after its IP header); None for other packets."""
    if with_header:
        if not data or len(data) < (start := (data[0] & 0xF) * 4):
            return None
        data = data[start:]
    if len(data) < _ECHO.size:
        return None
    kind, code, _, identifier, sequence = _ECHO.unpack_from(data)
    return (identifier, sequence) if (kind, code) == (_REPLY[version], 0) else None


class PingSocket:
    """Sends echoes over one interface; `on_reply` takes sequence and seconds. PrivilegeError, OSError."""

    def __init__(
        self, interface: str, version: int, on_reply: Callable[[int, float], None]
    ) -> None:
        self._version = version
        self._on_reply = on_reply
        self._sent: dict[int, tuple[Address, int, int]] = {}
        self._sequences = itertools.cycle(range(1 << 16))
        self._socket, self._raw = _open(interface, version)
        try:
            if self._raw:
                self._identifier = int.from_bytes(os.urandom(2))
                self._accept_replies_only()
            else:
                # The kernel demultiplexes by the identifier, which it keeps where a port would be.
                self._socket.bind(("", 0))
                self._identifier = self._socket.getsockname()[1]
        except OSError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._readable)

    def _accept_replies_only(self) -> None:
        """Let the kernel drop all other ICMP, which would wake us up for nothing."""
        if self._version == 4:
            mask = ~(1 << _REPLY[4]) & 0xFFFFFFFF
            self._socket.setsockopt(_SOL_RAW, _ICMP_FILTER, struct.pack("=I", mask))
        else:
            blocked = [0xFFFFFFFF] * 8
            blocked[_REPLY[6] >> 5] &= ~(1 << (_REPLY[6] & 31)) & 0xFFFFFFFF
            self._socket.setsockopt(socket.IPPROTO_ICMPV6, 1, struct.pack("=8I", *blocked))

    def send(self, target: Address) -> int:
        """Send one echo, returns its sequence number. OSError: no route, interface down, buffer full."""
        sequence = next(self._sequences)
        packet = echo(self._version, self._identifier, sequence)
        self._sent[sequence] = (target, time.monotonic_ns(), time.time_ns())
        try:
            self._socket.sendto(packet, (str(target), 0))
        except OSError:
            del self._sent[sequence]
            raise
        return sequence

    def forget(self, sequence: int) -> None:
        self._sent.pop(sequence, None)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                data, ancillary, _, sender = self._socket.recvmsg(512, TIMESTAMP_SPACE)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # an ICMP error for an earlier echo: that echo is simply lost
                return
            with_header = self._raw and self._version == 4
            found = parse_reply(self._version, data, with_header=with_header)
            if found is None or found[0] != self._identifier or found[1] not in self._sent:
                continue
            target, sent_ns, sent_unix_ns = self._sent[found[1]]
            if ip_address(sender[0].split("%")[0]) != target:
                continue
            del self._sent[found[1]]
            elapsed_ns = time.monotonic_ns() - sent_ns
            stamped_ns = arrival_ns(ancillary) - sent_unix_ns
            # The stamp is of the wall clock, which may have been set meanwhile: it can only shorten.
            rtt_ns = stamped_ns if 0 < stamped_ns < elapsed_ns else elapsed_ns
            self._on_reply(found[1], rtt_ns / 1e9)

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


def _open(interface: str, version: int) -> tuple[socket.socket, bool]:
    protocol = socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6
    with contextlib.suppress(PermissionError):
        echoing = interface_socket(interface, version, socket.SOCK_DGRAM, protocol, timestamps=True)
        return echoing, False
    try:
        return open_privileged(EchoSocket(interface, version)), True
    except PermissionError as error:
        raise PrivilegeError(
            "pings need CAP_NET_RAW, or this group in net.ipv4.ping_group_range"
        ) from error
