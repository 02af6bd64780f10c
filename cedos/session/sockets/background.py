"""An event loop for programs that have none; shared by all blocking sockets of a process."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from cedos.session.sockets.loop_lock import Helm

T = TypeVar("T")

_lock = threading.Lock()
_tasks: set[asyncio.Task[None]] = set()
_helm: Helm | None = None


def helm() -> Helm:
    """The loop and who runs it; made when it is first needed, in the network namespace of the caller.

    A forked child gets one of its own.
    """
    global _helm  # noqa: PLW0603 - one loop for a process is what this module is
    if _helm is None:
        with _lock:
            _helm = _helm or Helm()
    return _helm


def _forked() -> None:
    global _helm, _lock
    _helm, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forked)


def loop() -> asyncio.AbstractEventLoop:
    """The loop; its `call_soon_threadsafe` may be used from anywhere."""
    return helm().loop


def run(wanted: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs it in the loop and waits for its end.

    Raises:
        TimeoutError: not in time; it is cancelled then.
    """
    here = helm()
    try:
        if here.take():
            return _run_here(here, wanted, timeout_s)
        with here.following():
            return _run_there(here, wanted, timeout_s)
    except (CancelledError, asyncio.CancelledError) as error:
        raise OSError("the session's loop has ended") from error


def _run_here(here: Helm, wanted: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
    task = here.loop.create_task(wanted)
    task.add_done_callback(lambda _: here.look())
    try:
        if not here.drive(task.done, timeout_s):
            raise TimeoutError
        return task.result()
    except BaseException:
        task.cancel()
        raise
    finally:
        here.give(prompt=not task.done())


def _run_there(here: Helm, wanted: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
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
