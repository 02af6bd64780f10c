"""Starts one end of an application in a namespace and asks what it found."""

import json
import select
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Final, Self

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.testbed.services import end_by_input

_END_S: Final = 3.0
_START_S: Final = 60.0


class Program:
    """A process of an application, as a `with` block.

    Args:
        role: `client` or `server`.
        name: the module of the application.
    """

    def __init__(self, where: Namespace, role: str, name: str, **options: Any) -> None:
        self._where, self._role, self._name, self._options = where, role, name, options

    def __enter__(self) -> Self:
        self._process: subprocess.Popen[str] = self._where.popen(
            sys.executable, "-m", "emu.experiments.sessions.apps", self._role, self._name,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(self._options) + "\n")
        self._process.stdin.flush()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        end_by_input(self._process, _END_S)

    def ready(self) -> Self:
        """Return once it has loaded what it needs and wait to be told to `go`."""
        if self.answer(_START_S) is None:
            raise EmulationError(f"the {self._role} of {self._name} does not get ready")
        return self

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def answer(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next line that it writes; None where there is none in time.

        Raises:
            EmulationError: it failed.
        """
        output = self._process.stdout
        assert output is not None
        end_s = time.monotonic() + timeout_s
        # (Line by line, and each is read whole: nothing stays behind in the buffer.)
        if not select.select([output], [], [], max(0.0, end_s - time.monotonic()))[0]:
            return None
        line = output.readline()
        if not line:
            raise EmulationError(f"the {self._role} of {self._name} died; its words are above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EmulationError(f"the {self._role} of {self._name}: {answer['error']}")
        return answer
