"""A process that is told and answers in lines of JSON: one end of a measurement, in a namespace."""

import json
import select
import subprocess
from typing import Any

from cedos.errors import EmulationError
from emu.testbed.services import end_by_input


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
