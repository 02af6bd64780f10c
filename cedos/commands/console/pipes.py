"""Standard output beside an event loop; it may be a file, a pipe or a terminal.

epoll does not support files, and a non-blocking pipe would be non-blocking for all processes that
share it. Therefore a daemon thread writes, which does not delay the end of the program.
"""

import asyncio
import os
import threading


class Output:
    """A writer to a file descriptor in a thread; `write` waits for the previous chunk."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._before: asyncio.Future[None] | None = None

    async def write(self, data: bytes | memoryview) -> None:
        """Write all data in the background. OSError: a previous write failed."""
        await self.drain()
        self._before = future = self._loop.create_future()
        threading.Thread(target=self._write, args=(data, future), daemon=True).start()

    async def drain(self) -> None:
        """Wait until everything is written. OSError: a write failed."""
        if self._before is not None:
            before, self._before = self._before, None
            await before

    def _write(self, data: bytes | memoryview, future: "asyncio.Future[None]") -> None:
        failure: OSError | None = None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            failure = error

        def told() -> None:
            if future.done():
                return
            if failure is None:
                future.set_result(None)
            else:
                future.set_exception(failure)

        try:
            self._loop.call_soon_threadsafe(told)
        except RuntimeError:
            return
