"""Arguments and answers as plain values for msgpack, and back, strictly by their types.

Only what the privileged part's methods take and give: numbers, text, bytes, addresses, tuples and
frozen dataclasses of these. What does not fit its type exactly is a ValueError.
"""

import dataclasses
import errno
import socket
import struct
import types
from array import array
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

_ADDRESSES: Final = frozenset((IPv4Address, IPv6Address))
_PREFIXES: Final = frozenset((IPv4Network, IPv6Network))
_PLAIN: Final = frozenset((int, str, bytes, bool, float))


def plain(value: object) -> object:
    """Return a value for msgpack; a dataclass becomes a list that begins with its name."""
    if value is None or type(value) in _PLAIN:
        return value
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return [plain(pair) for pair in value.items()]
    if isinstance(value, int):  # an enumeration's
        return int(value)
    kind: Any = type(value)
    if hasattr(kind, "__dataclass_fields__"):
        names = _fields(kind)
        return [kind.__name__, *(plain(getattr(value, name)) for name in names)]
    return str(value)


def from_plain(kind: Any, value: Any) -> Any:
    """Return the value of a type that `plain` made this of. ValueError for anything else."""
    if kind is None or kind is type(None):
        return _is(value, value is None)
    if kind is float:
        return float(_is(value, type(value) in (int, float)))
    if kind in _PLAIN:
        return _is(value, type(value) is kind)
    origin = get_origin(kind)
    if origin is tuple:
        kinds = get_args(kind)
        if len(kinds) == 2 and kinds[1] is Ellipsis:
            return tuple(from_plain(kinds[0], each) for each in _is(value, type(value) is list))
        return arguments(kinds, value)
    if origin in (Union, types.UnionType):
        return _one_of(get_args(kind), value)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value)
    raise ValueError(f"{kind} goes over no wire")


def arguments(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    """Decode several values, each of its own type."""
    _is(value, type(value) is list and len(value) == len(kinds))
    return tuple(from_plain(kind, each) for kind, each in zip(kinds, value, strict=True))


def _one_of(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None:
        return _is(value, type(None) in kinds)
    if type(value) is str and _ADDRESSES.issubset(kinds):
        return ip_address(value)
    if type(value) is str and _PREFIXES.issubset(kinds):
        return ip_network(value)
    if type(value) is list and value:
        for kind in kinds:
            if dataclasses.is_dataclass(kind) and getattr(kind, "__name__", "") == value[0]:
                return _dataclass(kind, value)
    for kind in kinds:
        if kind in _PLAIN and type(value) is kind:
            return value
        if get_origin(kind) is tuple and type(value) is list:
            return from_plain(kind, value)
    raise ValueError(f"{value!r:.80} is none of {kinds}")


def _dataclass(kind: Any, value: Any) -> Any:
    names = _fields(kind)
    _is(value, type(value) is list and len(value) == 1 + len(names) and value[0] == kind.__name__)
    hints = _hints(kind)
    return kind(
        *(from_plain(hints[name], each) for name, each in zip(names, value[1:], strict=True))
    )


def _is(value: Any, right: bool) -> Any:
    if not right:
        raise ValueError(f"{value!r:.80} is not of its type")
    return value


@cache
def _fields(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


_LENGTH: Final = struct.Struct("=I")
_MOST_BYTES: Final = 64 << 20
_PART_BYTES: Final = 1 << 18
_FILES: Final = socket.CMSG_SPACE(array("i", [0]).itemsize)
_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder()


class PartChannel:
    """An end of a channel: whole messages over a stream socket, with open files beside them.

    Errors end it: EOFError, the other end has gone; ValueError, bad data.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._stream = stream

    def send(self, message: object, file: int | None = None) -> None:
        """Send a message with an open file, of which the other end gets its own descriptor.

        OSError (EMSGSIZE): it is longer than the other end takes; nothing is sent.
        """
        data = _ENCODER.encode(message)
        if len(data) > _MOST_BYTES:
            raise OSError(errno.EMSGSIZE, f"an answer of {len(data)} bytes")
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
            self._receive_more(data, _LENGTH.size)
        (length,) = _LENGTH.unpack_from(data)
        if length > _MOST_BYTES:
            raise ValueError(f"a message of {length} bytes")
        while len(data) < _LENGTH.size + length:
            self._receive_more(data, _LENGTH.size + length)
        return _DECODER.decode(bytes(data[_LENGTH.size :])), file

    def _receive_more(self, data: bytearray, until: int) -> None:
        part = self._stream.recv(min(until - len(data), _PART_BYTES))
        if not part:
            raise EOFError
        data += part

    def close(self) -> None:
        self._stream.close()
