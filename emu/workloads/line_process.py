"""A process that is told and answers in lines of JSON: one end of a measurement, in a namespace."""

import json
import select
import subprocess
import sys
from typing import Any, Final, Self

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.services import end_by_input

_END_S: Final = 3.0
_START_S: Final = 60.0


class LineProcess:
    """A started process, called `name` in errors; its standard input and output are text.

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


class Program:
    """A process of an application, as a `with` block.

    Args:
        role: `client` or `server`.
        name: the module of the application.
    """

    def __init__(self, where: Namespace, role: str, name: str, **options: Any) -> None:
        self._where, self._role, self._name, self._options = where, role, name, options

    def __enter__(self) -> Self:
        process: subprocess.Popen[str] = self._where.popen(
            sys.executable, "-m", "emu.experiments.sessions.applications", self._role, self._name,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._process = LineProcess(process, f"the {self._role} of {self._name}")
        self._process.tell(self._options)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close(_END_S)

    def ready(self) -> Self:
        """Return once it has loaded what it needs and waits to be told to `go`."""
        if self.answer(_START_S) is None:
            raise EmulationError(f"the {self._role} of {self._name} does not get ready")
        return self

    def go(self) -> None:
        self._process.tell("go")

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next answer; None where there is none in time. EmulationError: it failed."""
        return self._process.answer(max(0.0, timeout_s))
