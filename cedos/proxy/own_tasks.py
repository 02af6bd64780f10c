"""Tasks of one owner, cancelled with it; and callbacks whose failures are a task's."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cedos.logs import BoundLogger


def failing(awaited: asyncio.Future[Any], call: Callable[[], object]) -> Callable[[], None]:
    """Return a callback for the event loop, or for others' code: who awaits the future has its failure.

    So a connection's task ends with it, and with nothing else.
    """

    def called() -> None:
        try:
            call()
        except Exception as error:
            if not awaited.done():
                awaited.set_exception(error)

    return called


class OwnTasks:
    """Tasks of one owner. A task that fails is logged as `failed`, and harms no other."""

    def __init__(self, log: BoundLogger, failed: str) -> None:
        self._log, self._failed = log, failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def end(self, within_s: float = 0.0) -> None:
        """Cancel all that have not ended within some time, and wait for their ends."""
        if within_s and self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error(self._failed, exc_info=error)
