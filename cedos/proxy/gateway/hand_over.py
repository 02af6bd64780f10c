"""What a gateway hands over to the process that follows it: sessions as bytes, and open sockets.

Sockets are told apart by their inodes, which stay the same whichever number a process knows them by: in
the same process after `exec`, or in one that the service manager gives what it has kept.
"""

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from cedos.proxy.streams.kept import KeptStreams

VARIABLE: Final = "CEDOS_HAND_OVER"
"""Of the environment: the number of the file with the state, in the same process after `exec`."""

NAME: Final = "cedos-gateway"
"""By which the service manager knows what it keeps."""

_VERSION: Final = 1
_MARK: Final = b"cedos gateway\n"


class KeptOrigin(Struct, array_like=True):
    """A connection to an origin; `up_rest`: what came from it and is in no stream yet."""

    stream: int
    inode: int
    up_rest: bytes

    @classmethod
    def of(cls, stream: int, origin: socket.socket, rest: bytes) -> Self:
        return cls(stream, os.fstat(origin.fileno()).st_ino, rest)


class KeptOpening(Struct, array_like=True):
    """A connection that was asked for, and does not stand yet."""

    stream: int
    host: str
    port: int


class KeptSession(Struct, array_like=True):
    """One session of a gateway; `credentials` and `session` as in `HandedFlow`."""

    credentials: bytes
    session: bytes
    streams: KeptStreams
    origins: list[KeptOrigin]
    opening: list[KeptOpening]


class HandOver(Struct, array_like=True):
    """All of it. `descriptors`: the numbers of all sockets in the process that wrote this."""

    version: int
    listening: int
    descriptors: list[int]
    sessions: list[KeptSession]

    @classmethod
    def make(cls, listening: socket.socket, sessions: list[KeptSession], all_: list[int]) -> Self:
        inode = os.fstat(listening.fileno()).st_ino
        return cls(_VERSION, inode, [listening.fileno(), *all_], sessions)

    def write(self) -> int:
        """A file in memory with it; its number."""
        file = os.memfd_create(NAME)
        data = memoryview(_MARK + msgspec.msgpack.encode(self))
        while data:
            data = data[os.write(file, data) :]
        os.lseek(file, 0, os.SEEK_SET)
        return file


def read(file: int) -> HandOver:
    """What `write` wrote. ValueError: it is no such file, or another version's."""
    with os.fdopen(file, "rb") as opened:
        opened.seek(0)
        data = opened.read()
    if not data.startswith(_MARK):
        raise ValueError("not a gateway's state")
    found = msgspec.msgpack.decode(data[len(_MARK) :], type=HandOver)
    if found.version != _VERSION:
        raise ValueError(f"it was written by version {found.version}; this is {_VERSION}")
    return found


class Handed:
    """What this process was given: the state, and the sockets by inode; `close` ends those not taken."""

    def __init__(self, state: HandOver, descriptors: Iterable[int]) -> None:
        self.state = state
        self._sockets: dict[int, socket.socket] = {}
        for number in descriptors:
            with suppress(OSError):  # it is none, or closed
                found = socket.socket(fileno=number)
                found.set_inheritable(False)
                found.setblocking(False)
                self._sockets[os.fstat(number).st_ino] = found

    def take(self, inode: int) -> socket.socket | None:
        return self._sockets.pop(inode, None)

    def close(self) -> None:
        for each in self._sockets.values():
            each.close()
        self._sockets.clear()


def received(environment: "os._Environ[str]" = os.environ) -> Handed | None:
    """What the process before this one left, by `exec` or with the service manager; None: nothing.

    The environment is cleared of it. ValueError: something that cannot be read.
    """
    number = environment.pop(VARIABLE, "")
    if number:
        state = read(int(number))
        return Handed(state, state.descriptors)
    mine = environment.pop("LISTEN_PID", "") == str(os.getpid())
    count, names = environment.pop("LISTEN_FDS", "0"), environment.pop("LISTEN_FDNAMES", "")
    if not mine or not count.isdecimal():
        return None
    kept = [
        number
        for number, name in zip(range(3, 3 + int(count)), names.split(":"), strict=False)
        if name == NAME
    ]
    files = [number for number in kept if _is_state(number)]
    if not files:
        return None
    for older in files[1:]:
        os.close(older)
    return Handed(read(files[0]), [number for number in kept if number not in files])


def _is_state(number: int) -> bool:
    return str(Path(f"/proc/self/fd/{number}").readlink()).startswith("/memfd:")
