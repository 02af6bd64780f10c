"""The process that begins a gateway's processes, and begins one anew that ended.

It carries nothing itself. What it needs to go on after `exec` is numbers of open files and processes.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NoReturn, Self

import msgspec
import structlog
from msgspec import Struct

from cedos.proxy.gateway.figures import GatewayFigures
from cedos.proxy.gateway.hand_over import VARIABLE, Handed
from cedos.proxy.gateway.processes.figures_board import FiguresBoard
from cedos.proxy.gateway.processes.process_place import ProcessPlace
from cedos.proxy.gateway.successor import command

_VARIABLE: Final = "CEDOS_GATEWAY_GROUP"
_AGAIN_S: Final = 1.0
_LIVED_S: Final = 10.0
_LOOK_S: Final = 0.05
_RENEWED_S: Final = 30.0

_log: Final[structlog.stdlib.BoundLogger] = structlog.get_logger()


class _GroupState(Struct):
    """`ways`: both ends to each process; `pids`: of those that live."""

    listening: int
    ways: list[tuple[int, int]]
    board: int
    pids: list[int]

    @property
    def files(self) -> list[int]:
        return [self.listening, *(each for pair in self.ways for each in pair), self.board]


class ProcessGroup:
    """`begin`, then `run` until `end`; or `renew` and `begin_anew` instead."""

    def __init__(self, state: _GroupState) -> None:
        self._state = state
        self._board = FiguresBoard(state.board, len(state.ways))
        self._watched: dict[int, int] = {}
        self._began_s = [0.0] * len(state.ways)
        self._ending = False
        self._all_ended = asyncio.Event()

    @classmethod
    def make(cls, count: int, listening: socket.socket) -> Self:
        ways = []
        for _ in range(count):
            ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ways.append((ends[0].detach(), ends[1].detach()))
        board = FiguresBoard.make(count)
        return cls(_GroupState(listening.detach(), ways, board.file, [0] * count))

    @classmethod
    def left(cls) -> Self | None:
        """What this process had before `exec`; None: nothing."""
        text = os.environ.pop(_VARIABLE, "")
        return cls(msgspec.json.decode(text, type=_GroupState)) if text else None

    def figures(self) -> GatewayFigures:
        return self._board.total()

    def begin(self, handed: Handed | None = None) -> None:
        """All processes, with their parts of what the gateway before had; those there are go on."""
        parts = None if handed is None else handed.split(len(self._state.ways))
        for number, pid in enumerate(self._state.pids):
            if pid:
                self._watch(number, pid)
            elif parts is None:
                self._spawn(number)
            else:
                state = parts[number].write()
                self._spawn(number, {VARIABLE: str(state)}, [state, *parts[number].descriptors])
                os.close(state)
        if handed is not None:
            handed.close()

    async def ready(self, within_s: float) -> bool:
        """Whether all of them serve."""
        deadline_s = time.monotonic() + within_s
        # (Other processes write that, into memory.)
        while not self._board.ready and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return self._board.ready

    async def end(self, number: signal.Signals) -> None:
        """Tells all of them, and waits."""
        self._ending = True
        self._tell(number)
        if any(self._state.pids):
            await self._all_ended.wait()

    async def renew(self, goes_on: Callable[[], bool]) -> None:
        """All processes begin anew, some after the others, as long as `goes_on` says so.

        Each is away meanwhile. All at once they would be away for as long as all of them need the
        processors to begin, which may be more than clients and other nodes wait for one.
        """
        at_once = max(1, len(os.sched_getaffinity(0)) // 2)
        for first in range(0, len(self._state.pids), at_once):
            some = range(first, min(first + at_once, len(self._state.pids)))
            for number in some:
                if pid := self._state.pids[number]:
                    self._board.renews(number)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGHUP)
            deadline_s = time.monotonic() + _RENEWED_S
            # (Other processes write that, into memory.)
            while (  # noqa: ASYNC110
                goes_on() and not all(map(self._board.serves, some))
            ) and time.monotonic() < deadline_s:
                await asyncio.sleep(_LOOK_S)
            if not goes_on():
                return

    def begin_anew(self) -> NoReturn:
        """This process: the same command from its beginning, outside of any event loop."""
        for each in self._watched.values():
            os.close(each)
        for each in self._state.files:
            os.set_inheritable(each, True)
        environment = os.environ | {_VARIABLE: msgspec.json.encode(self._state).decode()}
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, command(), environment)  # noqa: S606 (its own command)

    def _tell(self, number: signal.Signals) -> None:
        for pid in filter(None, self._state.pids):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _spawn(
        self, number: int, environment: dict[str, str] | None = None, files: Sequence[int] = ()
    ) -> None:
        state = self._state
        place = ProcessPlace(
            number, os.getpid(), state.listening, [way for _, way in state.ways],
            state.ways[number][0], state.board,
        )  # fmt: skip
        # (It lives on beyond this object, and this process's `exec`.)
        process = subprocess.Popen(
            command(),
            env=os.environ | place.environment() | (environment or {}),
            pass_fds=[*place.files, *files],
            stdin=subprocess.DEVNULL,
        )
        state.pids[number], process.returncode = process.pid, 0
        self._began_s[number] = time.monotonic()
        self._watch(number, process.pid)

    def _watch(self, number: int, pid: int) -> None:
        self._watched[number] = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._watched[number], self._ended, number)

    def _ended(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        file = self._watched.pop(number)
        loop.remove_reader(file)
        os.close(file)
        pid, self._state.pids[number] = self._state.pids[number], 0
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self._board.begins(number)
        if not self._ending and status:
            _log.error(
                "a process of the gateway ended, and begins anew", number=number, status=status
            )
            lived_s = time.monotonic() - self._began_s[number]
            loop.call_later(0.0 if lived_s > _LIVED_S else _AGAIN_S, self._again, number)
        elif not any(self._state.pids):
            self._all_ended.set()

    def _again(self, number: int) -> None:
        if not self._ending:
            self._spawn(number)
