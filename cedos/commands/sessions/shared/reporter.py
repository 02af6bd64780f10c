"""What a program that pipes bytes says on standard error: how far it is, and what it waits for."""

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import click

from cedos.commands.console.progress import ProgressLine, size
from cedos.commands.console.render import plain
from cedos.files.progress import Progress
from cedos.session.sockets.connection import Connection

_LOOK_S: Final = 0.2
_WAITS_S: Final = 2.0  # shorter waits are nobody's business


class Reporter:
    """`verbose`: each network that comes and goes; `quiet`: nothing else."""

    def __init__(self, verbose: bool, quiet: bool) -> None:
        self._verbose, self._quiet = verbose, quiet
        self._drawn = not quiet and not verbose

    @contextmanager
    def connecting(self, server: str) -> Iterator[None]:
        """Says that it tries to connect where that takes its time."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_WAITS_S, self._say, f"still connecting with {server}")
        try:
            yield
        finally:
            timer.cancel()

    @contextmanager
    def following(self, connection: Connection) -> Iterator[None]:
        """Says what happens to a connection, until it is left."""
        if self._verbose:
            self._watch(connection)
        following = asyncio.get_running_loop().create_task(self._follow(connection))
        try:
            yield
        finally:
            following.cancel()

    async def _follow(self, connection: Connection) -> None:
        progress = Progress(connection=connection)
        typed, read = sys.stdin.isatty(), sys.stdout.isatty()
        line = ProgressLine("cedos-cat", progress, quiet=not self._drawn or (typed and read))
        loop = asyncio.get_running_loop()
        since_s, said = loop.time(), False
        try:
            while True:
                await asyncio.sleep(_LOOK_S)
                progress.have_bytes = connection.acknowledged_bytes + connection.received_bytes
                # A line that is drawn again and again is not for where a person types, or reads.
                # (The end of the peer's stream counts as one byte.)
                if (typed and connection.written_bytes) or (read and connection.received_bytes > 1):
                    line.end()
                line.draw()
                up = sorted({path.network for path in connection.paths() if not path.stalled})
                if up:
                    since_s = loop.time()
                    if said:
                        line.clear()
                        self._say(f"goes on over {' and '.join(up)}")
                    said = False
                elif not said and loop.time() - since_s > _WAITS_S:
                    line.clear()
                    have = size(progress.have_bytes)
                    self._say(f"waits for a network, {have} are through; Ctrl-C gives up")
                    said = True
        finally:
            line.clear()

    def _say(self, text: str) -> None:
        if not self._quiet:
            click.echo(f"cedos-cat: {text}", err=True)

    def _watch(self, connection: Connection) -> None:
        seen: set[tuple[str, str]] = set()

        def show() -> None:
            now = {(path.network, path.peer) for path in connection.paths()}
            for network, peer in sorted(now - seen):
                click.echo(f"cedos-cat: {network}: connected with {peer}", err=True)
            for network, peer in sorted(seen - now):
                why = connection.flow.last_why
                click.echo(f"cedos-cat: {network}: lost {peer} ({plain(why)})", err=True)
            seen.clear()
            seen.update(now)

        connection.on_change(show)
        show()
