"""Sessions of a program that ends without `close`: what it sent still arrives, as with TCP."""

import asyncio
import atexit
import contextlib
import os
import weakref
from collections.abc import Iterable
from typing import Final

from cedos.errors import SessionError
from cedos.session.blocking.os_errors import run
from cedos.session.sockets.connection import Connection

_AT_EXIT_S: Final = 3.0
"""So long a program that ends waits, at most, until what it sent has arrived."""

_connections: weakref.WeakSet[Connection] = weakref.WeakSet()


def end_at_exit(connection: Connection) -> None:
    """Ends it with the program, unless it has ended before."""
    _connections.add(connection)


async def close(connection: Connection) -> None:
    """Ends it for a program that does not wait for that."""
    try:
        await connection.close()
    except SessionError:
        return  # nobody is left to be told


def _end_all() -> None:
    if open_ones := list(_connections):
        with contextlib.suppress(OSError):
            run(_leave_all(open_ones), _AT_EXIT_S)


async def _leave_all(connections: Iterable[Connection]) -> None:
    await asyncio.gather(*(each.leave() for each in connections), return_exceptions=True)


atexit.register(_end_all)
os.register_at_fork(after_in_child=_connections.clear)  # they are the parent's
