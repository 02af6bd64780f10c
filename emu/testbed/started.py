"""What is started by a `with` block, and ended with it, also where its start fails halfway."""

import subprocess
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class Started(ABC):
    """A `with` block; it serves when the block begins. Errors: those of `_start`."""

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @abstractmethod
    def _start(self) -> None:
        """Returns when it serves; EmulationError where it does not."""

    @abstractmethod
    def close(self) -> None:
        """Ends what was started, if only in part; again does nothing."""


def end_by_input(process: "subprocess.Popen[str]", within_s: float) -> None:
    """Closes the input that it reads, which tells it to end, and ends it where it does not in time."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
