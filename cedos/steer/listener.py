"""Netlink's events on asyncio, with losses noticed."""

import asyncio
import errno
from collections.abc import Callable, Iterable
from typing import Final

from pyroute2.netlink import NETLINK_ADD_MEMBERSHIP, SOL_NETLINK

from cedos.steer.netlink import RECEIVE_BYTES, Message, Parser, open_socket

# So many datagrams at most per wake-up, so that a flood of events does not starve the loop.
_BURST: Final = 64


class Listener:
    """Calls `on_message` for each message of multicast groups, `on_loss` after each loss.

    Args:
        protocol: the netlink protocol's number.
        groups: the groups' numbers.
        parser: parses their messages.
        on_message: called from the event loop that runs now.
        on_loss: called when the kernel dropped messages because its buffer was full.
    """

    def __init__(
        self,
        protocol: int,
        groups: Iterable[int],
        parser: Parser,
        on_message: Callable[[Message], None],
        on_loss: Callable[[], None],
    ) -> None:
        self._parser = parser
        self._on_message = on_message
        self._on_loss = on_loss
        self._socket = open_socket(protocol, 4 << 20)
        self._socket.setblocking(False)
        try:
            for group in groups:
                self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, group)
        except OSError:
            self._socket.close()
            raise
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self.drain)

    def drain(self) -> None:
        """Handles what has come, up to a burst; the event loop comes back for the rest."""
        for _ in range(_BURST):
            if self._socket.fileno() < 0:
                return
            try:
                data, sender = self._socket.recvfrom(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._on_loss()
                continue
            if sender[0] == 0:
                for message in self._parser.messages(data):
                    self._on_message(message)

    def close(self) -> None:
        """Stops listening."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
