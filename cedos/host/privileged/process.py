"""The privileged part as a process: forked off by the daemon, which then gives its privileges up.

The daemon speaks with it over two channels: one for what takes microseconds, one for what waits for
iptables or reads long lists. It ends with the daemon, whatever ends that.

Steering's kernel, journal and dumps where another process has the privileges.

This process reads by itself. Each privileged operation of the kernel's interface is a call of the
privileged part (`_remote`).
"""

import asyncio
import ctypes
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast, get_type_hints

from cedos import errors
from cedos.api import lock
from cedos.errors import CedosError, HostError
from cedos.host.monitor.flow_source import PrivilegedQuestions
from cedos.host.privileged import wire
from cedos.host.privileged.part import SLOW, PrivilegedPart, refusal
from cedos.host.privileged.wire import PartChannel
from cedos.host.steer.journal_records import JournalReading, Record, journal_line, read_records
from cedos.host.steer.kernel.interface import SteeringKernel
from cedos.host.steer.kernel.linux import LinuxKernel
from cedos.host.steer.kernel.linux_rescue import LinuxRescue
from cedos.host.steer.kernel.rescue import RescueKernel, operations
from cedos.kernel import privileges
from cedos.kernel.mptcp import PathManagerCommand
from cedos.kernel.privileges import EventSocket, PacketSocket, PrivilegedSocket, delegate_opening
from cedos.kernel.service_manager import ENDING_SIGNALS
from cedos.logs import get_logger

_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
_log = get_logger(__name__)
_Method = TypeVar("_Method", bound=Callable[..., Any])


class PrivilegedProcess:
    """The daemon's end. `call` carries out a method of `PrivilegedPart` there, by its name."""

    def __init__(self, pid: int, quick: PartChannel, slow: PartChannel) -> None:
        self._pid = pid
        self._quick, self._slow = quick, slow
        self._turns = {quick: threading.Lock(), slow: threading.Lock()}

    def call(self, name: str, *arguments: object) -> Any:
        """Call a method there; return its answer. Errors: the method's; HostError: it ended."""
        # What may wait goes over the second channel, to a thread of its own.
        channel = self._slow if name in SLOW else self._quick
        with self._turns[channel]:
            try:
                channel.send([name, wire.plain(arguments)])
                (kind, content), file = channel.receive()
            except (EOFError, OSError) as error:
                raise HostError("the privileged part of the daemon has ended") from error
        if kind == "file" and file is not None:
            return socket.socket(fileno=file)
        if kind == "done":
            return wire.from_plain(_methods()[name][1], content)
        if kind == "refused":
            raise OSError(*content)
        failure = getattr(errors, content[0], CedosError)
        raise failure(content[1])

    def open_socket(self, wanted: PrivilegedSocket) -> socket.socket:
        names = {EventSocket: "open_events", PacketSocket: "open_packets"}
        found: socket.socket = self.call(names.get(type(wanted), "open_echoes"), wanted)
        return found

    async def wait_ended(self) -> None:
        """Return when it has ended by itself: then nothing can be changed or undone any more."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        file = os.pidfd_open(self._pid)
        loop.add_reader(file, over.set)
        try:
            await over.wait()
        finally:
            loop.remove_reader(file)
            os.close(file)

    def close(self) -> None:
        self._quick.close()
        self._slow.close()
        os.waitpid(self._pid, 0)


@contextmanager
def privileged_process(state: Path) -> Iterator[PrivilegedProcess]:
    """Start it, and give up all privileges of this process for good.

    To be entered before there are threads.

    Raises:
        AlreadyRunningError: another daemon steers this network namespace.
        HostError: it could not be started.
    """
    near, far = zip(*(socket.socketpair() for _ in range(2)), strict=True)
    gc.freeze()
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _child(parent, state, *far)
    for end in far:
        end.close()
    process = PrivilegedProcess(pid, PartChannel(near[0]), PartChannel(near[1]))
    try:
        process.call("routing_port")
        privileges.give_up()
        with delegate_opening(process.open_socket):
            yield process
    finally:
        process.close()


def _child(parent: int, state: Path, quick: socket.socket, slow: socket.socket) -> None:
    """Serve as the child process until its end."""
    status = 1
    try:
        _be_a_process_of_its_own(parent, keep=(quick.fileno(), slow.fileno()))
        try:
            with lock.hold_namespace():
                part = PrivilegedPart(state)
                waiting = threading.Thread(
                    target=_serve, args=(part, PartChannel(slow)), daemon=True
                )
                waiting.start()
                _serve(part, PartChannel(quick))
        except CedosError as error:
            channel = PartChannel(quick)
            channel.receive()
            channel.send(["failed", [type(error).__name__, str(error)]])
        status = 0
    except (EOFError, OSError, KeyboardInterrupt):
        pass
    finally:
        os._exit(status)


def _be_a_process_of_its_own(parent: int, keep: tuple[int, int]) -> None:
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_NAME, privileges.PART_NAME.encode())
    if os.getppid() != parent:
        raise EOFError
    # Ctrl-C and systemd's SIGTERM are for the daemon, which has yet to undo everything by us. No
    # SIG_IGN: programs that are started here would inherit it.
    for number in ENDING_SIGNALS:
        signal.signal(number, _left_to_the_daemon)
    last = 2
    for file in sorted(keep):
        os.closerange(last + 1, file)
        last = file
    os.closerange(last + 1, os.sysconf("SC_OPEN_MAX"))


def _left_to_the_daemon(number: int, frame: object) -> None:
    pass


def _serve(part: PrivilegedPart, channel: PartChannel) -> None:
    """Serve until the daemon's end is closed."""
    while True:
        try:
            (name, arguments), file = channel.receive()
        except EOFError:
            return
        if file is not None:
            os.close(file)
        answer = answer_request(part, name, arguments)
        if isinstance(answer, socket.socket):
            with answer:
                channel.send(["file", None], answer.fileno())
        else:
            try:
                channel.send(answer)
            except OSError as error:  # too long
                channel.send(["refused", list(refusal(error))])


def answer_request(part: PrivilegedPart, name: Any, arguments: Any) -> list[object] | socket.socket:
    """Return the reply: `done`, `refused` or `failed` with its content, or an open socket."""
    try:
        kinds, _ = _methods()[name]
        given = wire.arguments(kinds, arguments)
        method: Callable[..., Any] = getattr(part, name)
        found = method(*given)
    except OSError as error:
        return ["refused", list(refusal(error))]
    except CedosError as error:
        return ["failed", [type(error).__name__, str(error)]]
    except Exception as error:
        # What makes no sense is refused, whatever it is: this process must go on.
        _log.warning("the privileged part refuses", asked=str(name)[:40], why=repr(error)[:200])
        return ["refused", [22, f"makes no sense: {error!r:.200}"]]
    return found if isinstance(found, socket.socket) else ["done", wire.plain(found)]


@cache
def _methods() -> dict[str, tuple[tuple[Any, ...], Any]]:
    """Return all that may be asked for: the arguments' types, and the answer's."""
    found = {}
    for name, method in vars(PrivilegedPart).items():
        if not name.startswith("_"):
            hints = get_type_hints(method)
            answer = hints.pop("return")
            found[name] = (tuple(hints.values()), answer)
    return found


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

    def decide(self, passed: Sequence[int], dropped: Sequence[int]) -> None:
        self._call("decide_answers", passed, dropped)


class SeparateQuestions:
    """A `PrivilegedQuestions`."""

    def __init__(self, process: PrivilegedProcess) -> None:
        self.call = process.call

    tracked_flows = _remote(PrivilegedQuestions.tracked_flows)
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
