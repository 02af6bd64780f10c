"""Steering's kernel, journal and dumps where another process has the privileges.

This process reads by itself. Each privileged operation of the kernel's interface is a call of the
privileged part (`_remote`).
"""

import socket
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from cedos.daemon.privileged.process import PrivilegedProcess
from cedos.host.monitor.flows.flow_source import PrivilegedQuestions
from cedos.host.steer.journal.records import JournalReading, Record, journal_line, read_records
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.kernel.linux_rescue import LinuxRescue
from cedos.host.steer.kernel.rescue import RescueKernel, operations
from cedos.kernel.mptcp import PathManagerCommand

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _remote(method: _Method, prefix: str = "") -> _Method:
    """Return a method like this one that the privileged part carries out."""

    @wraps(method)
    def carried_out(self: Any, *arguments: Any) -> Any:
        return self.call(prefix + method.__name__, *arguments)

    return cast(_Method, carried_out)


class SeparateRescue(LinuxRescue):
    """A `RescueKernel`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        super().__init__()
        self.call = process.call

    def close(self) -> None:
        """Do nothing: the other process keeps its own sockets."""


class SeparateKernel(LinuxKernel):
    """A `SteeringKernel`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self.call = process.call
        super().__init__(port=process.call("routing_port"), rescue=SeparateRescue(process))

    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        if not commands:
            return []
        refusals = self.call("steer", commands)
        return [None if each is None else OSError(*each) for each in refusals]


for _operation, _ in operations(SteeringKernel):
    if _operation.__name__ not in vars(SeparateKernel):
        setattr(SeparateKernel, _operation.__name__, _remote(_operation))
for _operation, _ in operations(RescueKernel):
    setattr(SeparateRescue, _operation.__name__, _remote(_operation, "rescue_"))


class SeparateQueue:
    """An `AnswerQueue`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self._call = process.call

    def open(self) -> socket.socket:
        opened: socket.socket = self._call("open_answers")
        opened.setblocking(False)
        return opened

    def decide(self, number: int, *, passes: bool) -> None:
        self._call("pass_answer", number, passes)


class SeparateQuestions:
    """A `PrivilegedQuestions`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self.call = process.call

    tracked = _remote(PrivilegedQuestions.tracked)
    mark = _remote(PrivilegedQuestions.mark)


class SeparateJournal:
    """An open journal that the privileged part keeps; errors as those of `Journal`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self._call = process.call
        self._appended: list[Record] = []
        self._call("open_journal")

    @property
    def appended(self) -> Sequence[Record]:
        return self._appended

    def read(self) -> JournalReading:
        lines, foreign, damaged = self._call("read_journal")
        records = [record for line in lines for record in read_records(line).records]
        return JournalReading(records, foreign, damaged)

    def append(self, record: Record) -> None:
        self._call("append_to_journal", journal_line(record))
        self._appended.append(record)

    def remove(self) -> None:
        self._call("remove_journal")

    def put_aside(self) -> Path | None:
        aside: str | None = self._call("put_journal_aside")
        return None if aside is None else Path(aside)

    def close(self) -> None:
        self._call("close_journal")
