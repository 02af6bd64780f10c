"""What a gateway hands over to the process that follows it: sessions as bytes, and open sockets.

Sockets are told apart by their inodes, which stay the same whichever number a process knows them by: in
the same process after `exec`, or in one that the service manager gives what it has kept.
"""

import os
import socket
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct

from cedos.proxy.streams.kept import KeptStreams
from cedos.session.protocol.handshake.credentials import Credentials
from cedos.session.sockets.sibling_processes import process_of

VARIABLE: Final = "CEDOS_HAND_OVER"
"""Of the environment: the number of the file with the state, in the same process after `exec`."""

NAME: Final = "cedos-gateway"
"""By which the service manager knows what it keeps; of one of several processes `NAME-number`."""

_VERSION: Final = 3
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


class KeptRequest(Struct, array_like=True):
    """A request that is answered here, of which `head` and a part of the body may have been sent."""

    stream: int
    host: str
    port: int
    request: bytes
    head: bytes
    version: str


class KeptSession(Struct, array_like=True):
    """One session of a gateway; `credentials` and `session` as in `HandedFlow`."""

    credentials: bytes
    session: bytes
    streams: KeptStreams
    origins: list[KeptOrigin]
    opening: list[KeptOpening]
    answers: list[KeptRequest]


class HandOver(Struct, array_like=True):
    """All of it. `descriptors`: the numbers of all its sockets and files in the process that wrote this.

    `listening` is among them unless it is shared with other processes, which have it from elsewhere.
    """

    version: int
    listening: int
    descriptors: list[int]
    sessions: list[KeptSession]

    @classmethod
    def make(
        cls, listening: socket.socket, sessions: list[KeptSession], all_: list[int], *, shared: bool
    ) -> Self:
        inode = os.fstat(listening.fileno()).st_ino
        own = [] if shared else [listening.fileno()]
        return cls(_VERSION, inode, [*own, *all_], sessions)

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
            with suppress(OSError):  # it is closed
                about = os.fstat(number)
                os.set_inheritable(number, False)
                if stat.S_ISSOCK(about.st_mode):
                    found = socket.socket(fileno=number)
                    found.setblocking(False)
                    self._sockets[about.st_ino] = found

    def take(self, inode: int) -> socket.socket | None:
        return self._sockets.pop(inode, None)

    def listening(self, port: int) -> socket.socket | None:
        """The socket that listened, where it did at that port."""
        found = self.take(self.state.listening)
        if found is not None and found.getsockname()[1] != port:
            found.close()
            return None
        return found

    def split(self, count: int) -> list[HandOver]:
        """For each of so many processes its part; sockets and files stay open here."""
        parts: list[list[KeptSession]] = [[] for _ in range(count)]
        for kept in self.state.sessions:
            host = Credentials.from_bytes(kept.credentials).peer_key
            parts[process_of(host, count)].append(kept)
        return [
            HandOver(
                _VERSION,
                self.state.listening,
                [
                    self._sockets[origin.inode].fileno()
                    for kept in sessions
                    for origin in kept.origins
                    if origin.inode in self._sockets
                ],
                sessions,
            )
            for sessions in parts
        ]

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
    kept = {
        file: name
        for file, name in zip(range(3, 3 + int(count)), names.split(":"), strict=False)
        if name.startswith(NAME)
    }
    files = [file for file in kept if _is_state(file)]
    newest: dict[str, int] = {}
    for file in files:
        if newest.setdefault(kept[file], file) != file:
            os.close(file)
    if not newest:
        return None
    states = [read(file) for file in newest.values()]
    return Handed(
        HandOver(
            _VERSION, states[0].listening, [], [one for each in states for one in each.sessions]
        ),
        [file for file in kept if file not in files],
    )


def kept_names(environment: "os._Environ[str]" = os.environ) -> set[str]:
    """Under which names the service manager keeps something of a gateway's."""
    return {
        name for name in environment.get("LISTEN_FDNAMES", "").split(":") if name.startswith(NAME)
    }


def _is_state(number: int) -> bool:
    return str(Path(f"/proc/self/fd/{number}").readlink()).startswith("/memfd:")
