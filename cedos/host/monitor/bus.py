"""The system's message bus: calls with a time limit, to services that may not be there.

A bus connection's socket that gives the library only messages which it can parse quickly.

Any user may send signals to this program's connection. The library would parse them all: 30 MB of numbers
took five seconds and 200 MB. Signals of services are for all, and have no receiver.
"""

import asyncio
import os
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from errno import EAGAIN
from typing import Any, Final, Literal

from dbus_fast import BusType, Message, MessageFlag, MessageType, unpack_variants
from dbus_fast.aio import MessageBus
from dbus_fast.errors import AuthError

from cedos.errors import HostError

_BUS = "org.freedesktop.DBus"
# User numbers that systemd gives to services for their lifetime (systemd, UIDS-GIDS: "Dynamic
# users").
_MADE_UP = range(61184, 65520)
# The longest message of each type that is parsed. Calls are for services, which this program is not.
MOST_BYTES: Final = {
    MessageType.METHOD_RETURN.value: 1 << 20,
    MessageType.ERROR.value: 1 << 16,
    MessageType.SIGNAL.value: 1 << 14,
}
# The bytes that are read before other tasks have their turn.
_AT_ONCE: Final = 1 << 18
# A bus keeps up to 128 calls of a connection that wait for an answer, which some services never give.
_MOST_UNANSWERED: Final = 48
_START: Final = 16
_MOST_OF_A_HEAD: Final = 4096
_SIGNAL, _DESTINATION = MessageType.SIGNAL.value, 6


class BoundedSocket:
    """A connected socket without the messages that are too long or of another type."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._left = 0
        self._is_wanted = True
        self._read = 0

    def recvmsg(self, size: int, room: int) -> tuple[bytes, list[tuple[int, int, bytes]]]:
        """Return bytes of wanted messages, as a socket that does not block."""
        if self._read >= _AT_ONCE:
            self._read = 0
            raise _try_later()
        try:
            while True:
                if not self._left:
                    self._begin()
                most = min(size, self._left) if self._is_wanted else min(_AT_ONCE, self._left)
                data, ancillary, _, _ = self._socket.recvmsg(most, room)
                self._left -= len(data)
                self._read += len(data)
                if self._is_wanted or not data:
                    return data, ancillary
                _close_files(ancillary)
                if self._read >= _AT_ONCE:
                    raise _try_later()
        except BlockingIOError:
            self._read = 0
            raise

    def _begin(self) -> None:
        """Look at the head of the next message, which says how long it is, and to whom it was sent."""
        head = self._socket.recv(_MOST_OF_A_HEAD, socket.MSG_PEEK)
        if head and len(head) < _START:
            raise _try_later()
        order: Literal["little", "big"] = "little" if head[:1] == b"l" else "big"
        body, fields = (int.from_bytes(head[at : at + 4], order) for at in (4, 12))
        if head and len(head) < min(_START + fields, _MOST_OF_A_HEAD):
            raise _try_later()
        self._left = _START + -(-fields // 8) * 8 + body
        if not head:
            # The connection has ended, which the library is to notice.
            self._is_wanted = True
            return
        self._is_wanted = (
            self._left <= MOST_BYTES.get(head[1], 0)
            and _START + fields <= len(head)
            and (head[1] != _SIGNAL or not _has_destination(head[: _START + fields], order))
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class BoundedBus(MessageBus):
    """A connection to the system's bus that reads through a `BoundedSocket`."""

    def __init__(self, address: str | None) -> None:
        super().__init__(address, BusType.SYSTEM, negotiate_unix_fd=True)

    async def _authenticate(self) -> None:
        await super()._authenticate()
        assert self._sock is not None
        self._sock = BoundedSocket(self._sock)  # type: ignore[assignment]  # the library uses it as a socket


def _has_destination(head: bytes, order: Literal["little", "big"]) -> bool:
    """Return whether the head of a signal names a receiver."""
    at = _START
    while at < len(head):
        field, kind = head[at], head[at + 2 : at + 3]
        if field == _DESTINATION:
            return True
        at += 4  # the field, and its signature with a length and an end
        if kind == b"g":
            at += head[at] + 2
        else:
            number = int.from_bytes(head[at : at + 4], order)
            at += 4 if kind == b"u" else number + 5
        at += -at % 8
    return False


def _try_later() -> BlockingIOError:
    return BlockingIOError(EAGAIN, os.strerror(EAGAIN))


def _close_files(ancillary: list[tuple[int, int, bytes]]) -> None:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            files = array("i")
            files.frombytes(data[: len(data) - len(data) % files.itemsize])
            for each in files:
                os.close(each)


class BusError(HostError):
    """The bus or the service behind it is absent, refused, or did not answer in time."""


class SystemBus:
    """A lazy connection to the system bus (`address`: another one), made again after it broke.

    A call takes at most `timeout_s`, connecting included, and never starts a service (NO_AUTO_START).
    An absent bus is tried again after `retry_s`.
    """

    def __init__(
        self, address: str | None = None, *, timeout_s: float = 2.0, retry_s: float = 30.0
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._bus: BoundedBus | None = None
        self._unanswered = 0
        self._connecting = asyncio.Lock()
        self._not_before_s = 0.0
        self._absence = ""
        self._watches: list[tuple[str, str, str, Callable[[str], None]]] = []
        # That it is there and does not let this program in; None: it does, or is not there.
        self.problem: str | None = None

    async def call(
        self,
        service: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
    ) -> list[Any]:
        """Call a method; its results without variants. BusError: no bus, service, or answer in time."""
        reply = await self._reply(service, path, interface, member, signature, body)
        unpacked = unpack_variants(reply.body)
        return list(unpacked)

    async def descriptor(
        self,
        service: str,
        path: str,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[object] = (),
    ) -> int:
        """Return the file that a method gives, which is the caller's to close. Errors: as of `call`."""
        reply = await self._reply(service, path, interface, member, signature, body)
        if len(reply.unix_fds) != 1:
            for each in reply.unix_fds:
                os.close(each)
            raise BusError(
                f"{service} {member}: {len(reply.unix_fds)} files where one was expected"
            )
        descriptor: int = reply.unix_fds[0]
        return descriptor

    async def _reply(
        self,
        service: str,
        path: str,
        interface: str,
        member: str,
        signature: str,
        body: Sequence[object],
    ) -> Message:
        what = f"{service} {member}"
        bus = await self._connect()
        try:
            request = Message(
                destination=service,
                path=path,
                interface=interface,
                member=member,
                signature=signature,
                body=list(body),
                flags=MessageFlag.NO_AUTOSTART,
            )
            async with asyncio.timeout(self._timeout_s):
                reply = await bus.call(request)
        except TimeoutError as error:
            self._unanswered += 1
            if self._unanswered >= _MOST_UNANSWERED and bus is self._bus:
                self._bus = None  # the next call connects anew, and nothing waits there
                bus.disconnect()
            raise BusError(f"{what}: no answer within {self._timeout_s:g} s") from error
        except Exception as error:  # of the transport, or for a path of the service's that is none
            raise BusError(f"{what}: {error or type(error).__name__}") from error
        if reply is None or reply.message_type is not MessageType.METHOD_RETURN:
            raise BusError(f"{what}: {reply.error_name if reply else 'no reply'}")
        return reply

    async def properties(self, service: str, path: str, interface: str) -> dict[str, Any]:
        """Return all properties of an object's interface; raise BusError as `call` does."""
        body = await self.call(service, path, f"{_BUS}.Properties", "GetAll", "s", [interface])
        if not body or not isinstance(body[0], dict):
            raise BusError(f"{service}: properties of another form than expected")
        return body[0]

    async def watch(
        self, service: str, path: str, interface: str, changed: Callable[[str], None]
    ) -> None:
        """Call `changed` on each PropertiesChanged that the service's owner sends to all.

        Of the object at `path` and those below it, whose paths `changed` is given: a bus takes 512
        watches, and a service has new objects all the time. After a BusError, from the first connection
        on.
        """
        self._watches.append((service, path, interface, changed))
        if self._bus is not None and self._bus.connected:
            await self._match("AddMatch", service, path, interface)
        else:
            await self._connect()

    async def _match(self, change: str, service: str, path: str, interface: str) -> None:
        # Any user may send a signal of this name; the bus knows whose the service is.
        rule = (
            f"type='signal',sender='{service}',interface='{_BUS}.Properties',"
            f"member='PropertiesChanged',path_namespace='{path}',arg0='{interface}'"
        )
        await self.call(_BUS, "/org/freedesktop/DBus", _BUS, change, "s", [rule])

    async def _connect(self) -> BoundedBus:
        async with self._connecting:
            if self._bus is not None and self._bus.connected:
                return self._bus
            if time.monotonic() < self._not_before_s:
                raise BusError(self._absence)
            try:
                async with asyncio.timeout(self._timeout_s):
                    bus = BoundedBus(self._address)
                    await bus.connect()
            except Exception as error:
                self._not_before_s = time.monotonic() + self._retry_s
                why = getattr(error, "strerror", None) or error or type(error).__name__
                self._absence = f"no system bus ({why})"
                self.problem = _refusal(str(why)) if _is_there(error) else None
                raise BusError(self._absence) from error
            bus.add_message_handler(self._on_signal)
            self._bus, self.problem, self._unanswered = bus, None, 0
        for service, path, interface, _ in self._watches:
            await self._match("AddMatch", service, path, interface)
        return bus

    def _on_signal(self, message: Message) -> None:
        if message.message_type in (MessageType.SIGNAL, MessageType.METHOD_CALL):
            for each in message.unix_fds:  # no peer is to fill our table of files
                os.close(each)
        if message.message_type is MessageType.SIGNAL and message.member == "PropertiesChanged":
            if message.destination is not None:
                return  # sent to this program alone, past the match's sender
            sent_by = f"{message.path}/"
            for _, path, interface, changed in self._watches:
                if sent_by.startswith(f"{path}/") and message.body[:1] == [interface]:
                    changed(str(message.path))

    async def close(self) -> None:
        if self._bus is not None:
            bus, self._bus = self._bus, None
            bus.disconnect()
            await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # the library's gap


def _is_there(error: Exception) -> bool:
    """Return whether the bus took the connection and then ended it, or forbade it."""
    ended = ConnectionResetError | BrokenPipeError | EOFError | AuthError
    return isinstance(error, ended | PermissionError)


def _refusal(why: str) -> str:
    user = os.geteuid()
    text = (
        f"the system's message bus (D-Bus) refuses this program, which runs as user {user} ({why}). So it"
        " is not known what NetworkManager says of metered networks, which resolver belongs to which"
        " network, how full the battery is, and when this host sleeps"
    )
    if user in _MADE_UP:
        text += (
            ". systemd has made up this user, and the bus lets in only those that stay: run"
            " `sudo systemctl stop cedos cedos-redirect; sudo useradd --system --user-group cedos;"
            " sudo systemctl start cedos`, and start cedos-redirect again if you use it"
        )
    return text
