"""An event loop for programs that have none; shared by all blocking sockets of a process."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from cedos.session.blocking.loop_lock import LoopLock

T = TypeVar("T")

_making = threading.Lock()
_tasks: set[asyncio.Task[None]] = set()
_lock: LoopLock | None = None


def loop_lock() -> LoopLock:
    """The loop and who runs it; made when it is first needed, in the network namespace of the caller.

    A forked child gets one of its own.
    """
    global _lock  # noqa: PLW0603 - one loop for a process is what this module is
    if _lock is None:
        with _making:
            _lock = _lock or LoopLock()
    return _lock


def _forked() -> None:
    global _lock, _making
    _lock, _making = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


def loop() -> asyncio.AbstractEventLoop:
    """The loop; its `call_soon_threadsafe` may be used from anywhere."""
    return loop_lock().loop


def run(wanted: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs it in the loop and waits for its end.

    Raises:
        TimeoutError: not in time; it is cancelled then.
    """
    here = loop_lock()
    try:
        if here.take():
            return _run_here(here, wanted, timeout_s)
        with here.following():
            return _run_there(here, wanted, timeout_s)
    except (CancelledError, asyncio.CancelledError) as error:
        raise OSError("the session's loop has ended") from error


def _run_here(here: LoopLock, wanted: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    task = here.loop.create_task(wanted)
    task.add_done_callback(lambda _: here.check())
    try:
        if not here.drive(task.done, timeout_s):
            raise TimeoutError
        return task.result()
    except BaseException:
        task.cancel()
        raise
    finally:
        here.give(prompt=not task.done())


def _run_there(here: LoopLock, wanted: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    future: Future[T] = asyncio.run_coroutine_threadsafe(wanted, here.loop)
    try:
        return future.result(timeout_s)
    except BaseException:
        future.cancel()
        raise


def spawn(wanted: Coroutine[Any, Any, None]) -> None:
    """Lets it run on in the loop; to be called there."""
    task = asyncio.get_running_loop().create_task(wanted)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
