"""An event loop in a thread, for programs that have none; shared by all blocking sockets of a process."""

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_tasks: set[asyncio.Task[None]] = set()
_running: "tuple[int, asyncio.AbstractEventLoop] | None" = None


def loop() -> asyncio.AbstractEventLoop:
    """The loop, started when it is first needed, in the network namespace of the caller.

    A forked child gets one of its own.
    """
    global _running  # noqa: PLW0603 - one loop for a process is what this module is
    with _lock:
        if _running is None or _running[0] != os.getpid():
            made = asyncio.new_event_loop()
            threading.Thread(target=made.run_forever, name="cedos-session", daemon=True).start()
            _running = (os.getpid(), made)
        return _running[1]


def run(wanted: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """Runs it in the loop and waits for its end.

    Raises:
        TimeoutError: not in time; it is cancelled then.
    """
    future: Future[T] = asyncio.run_coroutine_threadsafe(wanted, loop())
    try:
        return future.result(timeout_s)
    except CancelledError as error:
        raise OSError("the session's loop has ended") from error
    except BaseException:
        future.cancel()
        raise


def spawn(wanted: Coroutine[Any, Any, None]) -> None:
    """Lets it run on in the loop; to be called there."""
    task = asyncio.get_running_loop().create_task(wanted)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
