"""A kept connection for requests and responses over one network, without ever blocking.

The server is `emu.workloads.exchange_server`.
"""

import errno
import socket
import struct

from emu.testbed.netns import Namespace
from emu.workloads.exchange_server import ASK, CANCEL, REQUEST, RESPONSE

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ExchangeConnection:
    """One TCP connection, bound to the address of a network (`source`); requests wait until it stands."""

    def __init__(self, client: Namespace, source: str, server: tuple[str, int]) -> None:
        with client.entered():
            self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.bind((source, 0))
        code = self.socket.connect_ex(server)
        self.failed = code not in (0, errno.EINPROGRESS)
        self.connected = code == 0
        self._out = bytearray()
        self._in = bytearray()

    @property
    def wants_to_write(self) -> bool:
        """Whether to watch for writability: it connects, or something waits to be sent."""
        return not self.failed and (not self.connected or bool(self._out))

    def ask(self, number: int, up_bytes: int, down_bytes: int) -> None:
        """Sends a request of `up_bytes` in all, head included where that is longer."""
        body = max(0, up_bytes - REQUEST.size)
        self._out += REQUEST.pack(ASK, number, body, max(0, down_bytes - RESPONSE.size))
        self._out += bytes(body)
        self._flush()

    def cancel(self, number: int) -> None:
        self._out += REQUEST.pack(CANCEL, number, 0, 0)
        self._flush()

    def writable(self) -> bool:
        """To be called when the socket is writable; True the one time that it has just connected."""
        if self.failed:
            return False
        if self.connected:
            self._flush()
            return False
        if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0:
            self.failed = True
            return False
        self.connected = True
        self._flush()
        return True

    def readable(self) -> list[int]:
        """To be called when the socket is readable; the numbers of the responses that are complete."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.failed = True
            return []
        self._in += data
        done = []
        while len(self._in) >= RESPONSE.size:
            number, follows = RESPONSE.unpack_from(self._in)
            if len(self._in) < RESPONSE.size + follows:
                break
            del self._in[: RESPONSE.size + follows]
            done.append(number)
        return done

    def abort(self) -> None:
        """Ends it at once, as a host does whose network has gone."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.socket.close()
        self.failed = True

    def _flush(self) -> None:
        if not self.connected or self.failed:
            return
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.failed = True
