"""Who runs the loop of blocking sockets: the thread that waits for it, else one of the loop's own.

A call that has to wait runs the loop in its own thread: nobody has to be woken then, and an answer needs
no way from one thread to another. The loop's own thread does what is due while no call does; further
threads wait for whoever runs it.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_PAUSE_S: Final = 0.005
"""So long no call may have run the loop before its own thread does."""


class LoopLock:
    """A loop of which one thread at a time has hold. Who has may touch what lives in the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._resumed = threading.Condition(self._lock)  # the loop's own thread, until it is needed
        self._left = threading.Semaphore(0)  # it has left the loop to a call
        self._taken = False  # by a call
        self._running = False  # by the loop's own thread
        self._prompt = True  # it is needed at once
        self._tell = False  # it waits for the end of a call
        self._followers = 0
        self._turns = 0
        self._wanted: Callable[[], bool] | None = None
        threading.Thread(target=self._run, name="cedos-session", daemon=True).start()

    def take(self) -> bool:
        """Takes hold of the loop; False where another call has it, or this thread runs another loop."""
        if asyncio._get_running_loop() is not None:
            return False
        with self._lock:
            if self._taken:
                return False
            self._taken = True
            running = self._running
        if running:
            self.loop.call_soon_threadsafe(self.loop.stop)
            try:
                self._left.acquire()
            except BaseException:  # a signal's: it must not keep the loop from everybody for ever
                with self._lock:
                    if not self._running:
                        self._left.acquire(blocking=False)
                self.give(prompt=True)
                raise
        return True

    def give(self, *, prompt: bool = False) -> None:
        """Lets it go; `prompt`: what happens from now on must not wait until some call runs the loop."""
        with self._lock:
            self._taken = False
            self._prompt |= prompt or self._followers > 0
            if self._prompt or self._tell:
                self._tell = False
                self._resumed.notify()

    @contextmanager
    def following(self) -> Iterator[None]:
        """For a thread that waits for what another one does in the loop."""
        with self._lock:
            self._followers += 1
            if not self._taken:
                self._prompt = True
                self._resumed.notify()
        try:
            yield
        finally:
            with self._lock:
                self._followers -= 1

    def drive(self, wanted: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Runs the loop, of which this thread has hold, until something is so; False: not in time."""
        loop = self.loop
        ends_s = None if timeout_s is None else time.monotonic() + timeout_s
        timer: asyncio.TimerHandle | None = None
        self._wanted = wanted
        try:
            while not wanted():
                if ends_s is not None:
                    left_s = ends_s - time.monotonic()
                    if left_s <= 0:
                        return False
                    timer = loop.call_later(left_s, loop.stop)
                self._turns += 1
                loop.run_forever()
                if timer is not None:
                    timer.cancel()
        finally:
            self._wanted = None
        return True

    def turn(self) -> None:
        """Does what is due in the loop, of which this thread has hold."""
        self._turns += 1
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def nudge(self) -> None:
        """Something has happened outside of the loop, or waits for the loop, and must not wait long."""
        self.loop.call_soon_threadsafe(self.check)
        with self._lock:
            self._prompt = True
            self._resumed.notify()

    def check(self) -> None:
        """Something has happened in the loop that a call may wait for."""
        if self._wanted is not None and self._wanted():
            self.loop.stop()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._wait_until_free()
                self._running = True
            self.loop.run_forever()
            with self._lock:
                self._running = False
                if self._taken:
                    self._left.release()

    def _wait_until_free(self) -> None:
        """Waits, with the lock held, until no call runs the loop."""
        while True:
            seen = self._turns
            if self._taken or not self._prompt:
                self._resumed.wait(_PAUSE_S)
            if self._taken:
                if self._turns == seen:
                    # A long call, or one that does not wait: it says when it ends.
                    self._tell = True
                    self._resumed.wait()
            elif self._prompt or self._turns == seen:
                self._prompt = False
                return
