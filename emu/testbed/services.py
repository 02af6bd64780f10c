"""Programs that a `with` block of the testbed starts and ends, and threads that watch."""

import json
import os
import select
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace


class Started(ABC):
    """A program or host as a `with` block, which is ready when the block begins. Errors: as `_start`."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _start(self) -> None:
        """Start it, and wait until it is ready. EmulationError: it does not get ready."""

    @abstractmethod
    def close(self) -> None:
        """End all that was started, after a failure too; a second call does nothing."""


def end_by_input(process: "subprocess.Popen[str]", within_s: float) -> None:
    """Close a program's standard input, which tells it to end; kill it if it does not end in time."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


class LineProcess:
    """A started process that is told and answers in lines of JSON, called `name` in errors.

    An answer is one line, and nothing else comes: no line waits in Python's own buffer.
    """

    def __init__(self, process: "subprocess.Popen[str]", name: str) -> None:
        self._process, self._name = process, name

    def tell(self, what: object) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise EmulationError(f"{self._name} has ended by itself") from None

    def answer(self, limit_s: float | None = None) -> dict[str, Any] | None:
        """Return the next answer; None: none came within the limit.

        EmulationError: the process failed or has ended.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], limit_s)[0]:
            return None
        line = self._process.stdout.readline()
        if not line:
            raise EmulationError(f"{self._name} has ended by itself; its error is above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmulationError(f"{self._name}: {answer['error']}")
        return answer

    def close(self, within_s: float) -> None:
        """Close its input, which tells it to end, and end it where it does not in time."""
        end_by_input(self._process, within_s)


_STOP_TIMEOUT_S = 3.0
_POLL_S = 0.01
_SHOWN_CHARACTERS = 500


class Service:
    """A running program, which leads a session of its own.

    Its output goes to the file `output`; it may write the cause of a failure to other `logs`.
    """

    def __init__(
        self, namespace: Namespace, *command: str, output: Path, logs: tuple[Path, ...] = ()
    ) -> None:
        self._logs = (output, *logs)
        self._name = output.stem
        with output.open("wb") as file:
            self._process = namespace.popen(
                *command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def text(self) -> str:
        found = ""
        for log in self._logs:
            with suppress(OSError):
                found += log.read_text(errors="replace")
        return found.strip()

    def wait_for(self, answers: Callable[[], bool], within_s: float = 10.0) -> None:
        """Wait until it answers.

        EmulationError: it has ended, or does not answer in time; the message has the end of its output.
        """
        deadline_at_s = time.monotonic() + within_s
        # Poll until it answers; fail early if the program has ended.
        while not answers():
            if self._ended or time.monotonic() > deadline_at_s:
                text = self.text[-_SHOWN_CHARACTERS:] or "it says nothing"
                raise EmulationError(f"{self._name} does not answer: {text}")
            time.sleep(_POLL_S)

    @property
    def _ended(self) -> bool:
        """True if the program has ended; its process group's number stays reserved until `close`."""
        if self._process.returncode is not None:
            return True
        # Look without reaping (WNOWAIT): until it is reaped, no other process group gets its number.
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, options) is not None

    def close(self) -> None:
        """Ask it to end, then kill the rest of its process group; a second call does nothing.

        A program that has ended by itself may have left processes behind.
        """
        if self._process.returncode is not None:
            return
        # First ask it to end, then kill what is left of its process group.
        if not self._ended:
            self._process.terminate()
            until_s = time.monotonic() + _STOP_TIMEOUT_S
            while not self._ended and time.monotonic() < until_s:
                time.sleep(_POLL_S)
        # Worker processes may go on without their master.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def accepts(namespace: Namespace, address: str, port: int) -> bool:
    """Return whether a program in the namespace accepts connections there."""
    with namespace.entered():
        trying = socket.socket()
    with trying, suppress(OSError):
        trying.settimeout(1.0)
        trying.connect((address, port))
        return True
    return False


class Watcher(ABC):
    """A thread in a namespace that watches while a `with` block runs; if it fails, the block fails."""

    def __init__(self, namespace: Namespace, purpose: str) -> None:
        self._namespace = namespace
        self._purpose = purpose
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=purpose, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise EmulationError(f"{self._purpose} failed: {self._failure}")

    def _run(self) -> None:
        try:
            with self._namespace.entered():
                self._watch()
        except Exception as error:
            self._failure = error
        finally:
            self._ready.set()

    @abstractmethod
    def _watch(self) -> None:
        """Set `_ready` once it watches, and return soon after `_stop` is set."""
