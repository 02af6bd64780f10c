"""Calls a fetcher, whatever kind of function it is: a coroutine in the loop, another one in a thread."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from cedos.prefetch.turn import Turn

_LETS_GO_S = 5.0
"""A thread that was stopped is waited for so long, since the next attempt goes on where it ended."""


async def call(fetch: Callable[[Turn], Awaitable[Any] | Any], turn: Turn) -> Any:
    """The result of `fetch(turn)`; whatever it raises.

    A thread cannot be ended from outside. One that hangs is left behind: it is no member of a pool, so
    that it keeps nobody from working, nor the program from ending.
    """
    if inspect.iscoroutinefunction(fetch):
        return await fetch(turn)
    result = await _in_thread(fetch, turn)
    return await result if inspect.isawaitable(result) else result


async def _in_thread(fetch: Callable[[Turn], Any], turn: Turn) -> Any:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def tell(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            done.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))

    def work() -> None:
        result, error = None, None
        try:
            result = fetch(turn)
        except BaseException as raised:
            error = raised
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=work, name="prefetch", daemon=True).start()
    try:
        # (Shielded, so that it still says when the thread has really come to its end.)
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        turn.stop()
        await asyncio.wait({done}, timeout=_LETS_GO_S)
        if done.done() and not done.cancelled():
            done.exception()  # seen, so that nobody is told of it
        raise
