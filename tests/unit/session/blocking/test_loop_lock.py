"""One loop, many threads: whoever waits runs it, nobody waits for ever, it is never forgotten."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cedos.session.blocking.loop_lock import LoopLock

LONG_S = 20.0


@pytest.fixture(scope="module")
def lock() -> LoopLock:
    return LoopLock()


def test_the_loops_own_thread_does_what_no_call_does(lock: LoopLock) -> None:
    done = threading.Event()
    lock.loop.call_soon_threadsafe(done.set)
    assert done.wait(LONG_S)
    assert lock.take()
    done.clear()
    lock.loop.call_soon(done.set)
    time.sleep(0.03)
    assert not done.is_set()  # the loop is ours
    lock.give()
    assert done.wait(LONG_S)


def test_who_waits_runs_it_until_it_is_so_or_too_late(lock: LoopLock) -> None:
    ran: list[int] = []

    def happens() -> None:
        ran.append(threading.get_ident())
        lock.check()

    assert lock.take()
    try:
        lock.loop.call_later(0.01, happens)
        assert lock.drive(lambda: bool(ran), LONG_S)
        assert ran == [threading.get_ident()]
        began_s = time.monotonic()
        assert not lock.drive(lambda: False, 0.02)
        assert time.monotonic() - began_s >= 0.02
    finally:
        lock.give()


def test_a_call_finds_it_taken_and_is_served_by_who_has_it(lock: LoopLock) -> None:
    came = threading.Event()
    assert lock.take()
    with ThreadPoolExecutor(1) as other:
        refused = other.submit(lock.take)
        assert refused.result(LONG_S) is False

        def follow() -> bool:
            with lock.following():
                lock.loop.call_soon_threadsafe(came.set)
                return came.wait(LONG_S)

        followed = other.submit(follow)
        assert not came.wait(0.02)
        assert lock.drive(came.is_set, 0.2) or came.is_set()
        lock.give()
        assert followed.result(LONG_S)


def test_threads_that_take_turns_lose_nothing(lock: LoopLock) -> None:
    counted = [0]

    def count(times: int) -> int:
        mine = 0
        for _ in range(times):
            if lock.take():
                before = counted[0]
                lock.turn()
                counted[0] = before + 1
                mine += 1
                lock.give(prompt=mine % 7 == 0)
        return mine

    with ThreadPoolExecutor(4) as threads:
        own = list(threads.map(count, [500] * 4))
    assert counted[0] == sum(own) >= 500


def test_who_is_interrupted_while_it_takes_the_loop_leaves_it_to_others(
    lock: LoopLock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Semaphore):
        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            if blocking:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return super().acquire(blocking, timeout)

    ran = threading.Event()
    lock.loop.call_soon_threadsafe(ran.set)
    assert ran.wait(LONG_S)  # its own thread runs it
    monkeypatch.setattr(lock, "_left", Interrupted(0))
    with pytest.raises(KeyboardInterrupt):
        lock.take()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(lock.take).result(LONG_S)
        ran.clear()
        lock.loop.call_soon(ran.set)
        other.submit(lock.give).result(LONG_S)
    assert ran.wait(LONG_S)


def test_a_thread_with_a_loop_of_its_own_does_not_run_this_one(lock: LoopLock) -> None:
    async def ask() -> bool:
        return lock.take()

    assert asyncio.run(ask()) is False
    assert lock.take()
    lock.give()
