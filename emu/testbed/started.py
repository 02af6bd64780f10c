"""What is started by a `with` block, and ended with it, also where its start fails halfway."""

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
