"""Several processes that accept sessions on one port: each host is served by one of them.

Which one follows from the host's id alone, so nobody keeps a table. A connection says whose it is with
its first message (the host's key, or a locator); who took another's hands the socket on, with what it
read.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from cedos.session.protocol.handshake.locators import share_byte

_MOST_HELLO: Final = 4096


def process_of(peer_key: bytes, count: int) -> int:
    """The number, from 0, of the process that serves the holder of a key."""
    return share_byte(peer_key) % count


class SiblingProcesses:
    """`number`: this process's; `ways`: to each of them, in order; `mine`: what was handed on comes here.

    All of them are pairs of unix sockets (SOCK_SEQPACKET), which whoever began the processes made.
    """

    def __init__(self, number: int, ways: Sequence[socket.socket], mine: socket.socket) -> None:
        self.number, self._ways, self._mine = number, ways, mine
        for each in (*ways, mine):
            each.setblocking(False)

    def __len__(self) -> int:
        return len(self._ways)

    def fileno(self) -> int:
        return self._mine.fileno()

    def place(self, share: int) -> int | None:
        number = share % len(self._ways)
        return None if number == self.number else number

    def hand_on(self, to: int, connection: socket.socket, hello: bytes) -> bool:
        """Whether it was; if not, it is lost, and its client dials again."""
        try:
            socket.send_fds(self._ways[to], [hello], [connection.fileno()])
        except OSError:
            return False
        return True

    def take(self) -> tuple[socket.socket, str, bytes] | None:
        """A connection, its other end's address, and what has come over it; None: there is none."""
        while True:
            try:
                hello, files, _, _ = socket.recv_fds(self._mine, _MOST_HELLO, 4)
            except OSError:
                return None
            if not hello and not files:
                return None
            found = socket.socket(fileno=files[0]) if files else None
            for each in files[1:]:
                os.close(each)
            if found is None:
                continue
            with suppress(OSError):
                return found, str(found.getpeername()[0]), hello
            found.close()  # the other end has gone meanwhile
