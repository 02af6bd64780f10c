"""Steering's kernel, journal and dumps where another process has the privileges.

This process reads by itself. The methods that change the host have the names and types of the real ones;
`_remote` makes each of them a call of the privileged part.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from cedos.daemon.privileged.process import PrivilegedProcess
from cedos.host.monitor.flows.flow_source import PrivilegedQuestions
from cedos.host.steer.journal.records import JournalReading, Record, journal_line, read_records
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.kernel.rescue import RescueKernel
from cedos.kernel.mptcp import PathManagerCommand
from cedos.kernel.policy_routing import Route, Rule
from cedos.model import Address

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _remote(method: _Method, prefix: str = "") -> _Method:
    """Return a method like this one that the privileged part carries out."""

    @wraps(method)
    def carried_out(self: Any, *arguments: Any) -> Any:
        return self.call(prefix + method.__name__, *arguments)

    return cast(_Method, carried_out)


class SeparateRescue:
    """A `RescueKernel`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self.call = process.call

    prepare = _remote(RescueKernel.prepare, "rescue_")
    stands = _remote(RescueKernel.stands, "rescue_")
    prepared = _remote(RescueKernel.prepared, "rescue_")
    remove = _remote(RescueKernel.remove, "rescue_")
    connecting = _remote(RescueKernel.connecting, "rescue_")
    adopt = _remote(RescueKernel.adopt, "rescue_")
    release = _remote(RescueKernel.release, "rescue_")
    forget = _remote(RescueKernel.forget, "rescue_")
    repeat_early = _remote(RescueKernel.repeat_early, "rescue_")
    repeat_as_usual = _remote(RescueKernel.repeat_as_usual, "rescue_")

    def set_first_timeouts(self, timeouts_s: Mapping[Address, float]) -> None:
        self.call("rescue_set_first_timeouts", tuple(timeouts_s.items()))

    def close(self) -> None:
        """Do nothing: the other process keeps its own sockets."""


class SeparateKernel(LinuxKernel):
    """A `SteeringKernel`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self.call = process.call
        super().__init__(port=process.call("routing_port"), rescue=SeparateRescue(process))

    write_sysctl = _remote(LinuxKernel.write_sysctl)
    ours_to_steer = _remote(LinuxKernel.ours_to_steer)
    close_silent = _remote(LinuxKernel.close_silent)
    track_flows = _remote(LinuxKernel.track_flows)
    hold_answers = _remote(LinuxKernel.hold_answers)
    repair_filter = _remote(LinuxKernel.repair_filter)
    remove_wall = _remote(LinuxKernel.remove_wall)
    has_filter = _remote(LinuxKernel.has_filter)
    remove_filter = _remote(LinuxKernel.remove_filter)

    def add_rules(self, rules: Sequence[Rule]) -> None:
        self._change_some("add_rules", rules)

    def delete_rules(self, rules: Sequence[Rule]) -> None:
        self._change_some("delete_rules", rules)

    def add_routes(self, routes: Sequence[Route]) -> None:
        self._change_some("add_routes", routes)

    def delete_routes(self, routes: Sequence[Route]) -> None:
        self._change_some("delete_routes", routes)

    def _change_some(self, name: str, wanted: Sequence[Any]) -> None:
        if wanted:
            self.call(name, tuple(wanted))

    def bar(self, interfaces: Sequence[str]) -> None:
        self.call("bar", tuple(interfaces))

    def raise_wall(self, interfaces: Sequence[str]) -> bool:
        return bool(self.call("raise_wall", tuple(interfaces)))

    def steer(self, commands: Sequence[PathManagerCommand]) -> list[OSError | None]:
        if not commands:
            return []
        refusals = self.call("steer", tuple(commands))
        return [None if each is None else OSError(*each) for each in refusals]


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
