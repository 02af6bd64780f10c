"""This process begun anew, with what it had: as after an upgrade, or with another file of keys."""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from cedos.proxy.gateway.hand_over import VARIABLE

_CHECK_S = 20.0


def command() -> list[str]:
    """By which this process was begun."""
    return [sys.executable, *sys.orig_argv[1:]]


class Successor:
    """`state`, a file with it, and `descriptors` are left open for it."""

    def __init__(self, state: int, descriptors: Sequence[int]) -> None:
        self._state, self._descriptors = state, descriptors

    def begin(self) -> NoReturn:
        """The same command in the same process, from its beginning; outside of any event loop."""
        for number in (self._state, *self._descriptors):
            with suppress(OSError):
                os.set_inheritable(number, True)
        environment = os.environ | {VARIABLE: str(self._state)}
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, command(), environment)  # noqa: S606 (its own command)


async def cannot_begin() -> str:
    """Why the command, as it is installed now, does not even read its files; empty: it does."""
    process = await asyncio.create_subprocess_exec(
        *command(),
        "--list",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_CHECK_S):
            _, told = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"it took more than {_CHECK_S:g} s"
    last = told.decode(errors="replace").strip().rpartition("\n")[2]
    return f"status {process.returncode}: {last}" if process.returncode else ""
