"""Starts one end of an application in a namespace and asks what it found."""

import subprocess
import sys
from types import TracebackType
from typing import Any, Final, Self

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace
from emu.workloads.line_process import LineProcess

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
        process: subprocess.Popen[str] = self._where.popen(
            sys.executable, "-m", "emu.experiments.sessions.apps", self._role, self._name,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._process = LineProcess(process, f"the {self._role} of {self._name}")
        self._process.tell(self._options)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
