"""A thread inside a namespace that watches while a `with` block runs."""

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from cedos.errors import EmulationError
from emu.testbed.netns import Namespace


class Watcher(ABC):
    """What fails in the thread is the block's EmulationError, unless the block has one of its own."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
        """Sets `_ready` as soon as nothing is missed, and returns soon after `_stop` is set."""
