"""Whole messages over a stream socket between two processes of ours, with open files beside them."""

import socket
import struct
from array import array
from typing import Any, Final

import msgspec

_LENGTH: Final = struct.Struct("=I")
_MOST_BYTES: Final = 64 << 20
_PART_BYTES: Final = 1 << 18
_FILES: Final = socket.CMSG_SPACE(array("i", [0]).itemsize)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder()


class PartChannel:
    """One end of a channel. Errors end it: EOFError, the other end has gone; ValueError, bad data."""

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def send(self, message: object, file: int | None = None) -> None:
        """Send a message with an open file, of which the other end gets its own descriptor."""
        data = _ENCODER.encode(message)
        data = _LENGTH.pack(len(data)) + data
        try:
            if file is not None:
                sent = socket.send_fds(self._stream, [data[:1]], [file])
                data = data[sent:]
            self._stream.sendall(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error

    def receive(self) -> tuple[Any, int | None]:
        """Return a message, and the descriptor of the file that came with it."""
        file: int | None = None
        first, ancillary, _, _ = self._stream.recvmsg(_PART_BYTES, _FILES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                (file,) = array("i", content)
        data = bytearray(first)
        if not data:
            raise EOFError
        while len(data) < _LENGTH.size:
            self._more(data, _LENGTH.size)
        (length,) = _LENGTH.unpack_from(data)
        if length > _MOST_BYTES:
            raise ValueError(f"a message of {length} bytes")
        while len(data) < _LENGTH.size + length:
            self._more(data, _LENGTH.size + length)
        return _DECODER.decode(bytes(data[_LENGTH.size :])), file

    def _more(self, data: bytearray, until: int) -> None:
        part = self._stream.recv(min(until - len(data), _PART_BYTES))
        if not part:
            raise EOFError
        data += part

    def close(self) -> None:
        self._stream.close()
