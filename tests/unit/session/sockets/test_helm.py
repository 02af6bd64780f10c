"""One loop, many threads: whoever waits runs it, nobody waits for ever, it is never forgotten."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cedos.session.sockets.loop_lock import Helm

LONG_S = 20.0


@pytest.fixture(scope="module")
def helm() -> Helm:
    return Helm()


def test_the_loops_own_thread_does_what_no_call_does(helm: Helm) -> None:
    done = threading.Event()
    helm.loop.call_soon_threadsafe(done.set)
    assert done.wait(LONG_S)
    assert helm.take()
    done.clear()
    helm.loop.call_soon(done.set)
    time.sleep(0.03)
    assert not done.is_set()  # the loop is ours
    helm.give()
    assert done.wait(LONG_S)


def test_who_waits_runs_it_until_it_is_so_or_too_late(helm: Helm) -> None:
    ran: list[int] = []

    def happens() -> None:
        ran.append(threading.get_ident())
        helm.look()

    assert helm.take()
    try:
        helm.loop.call_later(0.01, happens)
        assert helm.drive(lambda: bool(ran), LONG_S)
        assert ran == [threading.get_ident()]
        began_s = time.monotonic()
        assert not helm.drive(lambda: False, 0.02)
        assert time.monotonic() - began_s >= 0.02
    finally:
        helm.give()


def test_a_call_finds_it_taken_and_is_served_by_who_has_it(helm: Helm) -> None:
    came = threading.Event()
    assert helm.take()
    with ThreadPoolExecutor(1) as other:
        refused = other.submit(helm.take)
        assert refused.result(LONG_S) is False

        def follow() -> bool:
            with helm.following():
                helm.loop.call_soon_threadsafe(came.set)
                return came.wait(LONG_S)

        followed = other.submit(follow)
        assert not came.wait(0.02)
        assert helm.drive(came.is_set, 0.2) or came.is_set()
        helm.give()
        assert followed.result(LONG_S)


def test_threads_that_take_turns_lose_nothing(helm: Helm) -> None:
    counted = [0]

    def count(times: int) -> int:
        mine = 0
        for _ in range(times):
            if helm.take():
                before = counted[0]
                helm.turn()
                counted[0] = before + 1
                mine += 1
                helm.give(prompt=mine % 7 == 0)
        return mine

    with ThreadPoolExecutor(4) as threads:
        own = list(threads.map(count, [500] * 4))
    assert counted[0] == sum(own) >= 500


def test_who_is_interrupted_while_it_takes_the_loop_leaves_it_to_others(
    helm: Helm, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(threading.Semaphore):
        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            if blocking:
                monkeypatch.undo()
                raise KeyboardInterrupt
            return super().acquire(blocking, timeout)

    ran = threading.Event()
    helm.loop.call_soon_threadsafe(ran.set)
    assert ran.wait(LONG_S)  # its own thread runs it
    monkeypatch.setattr(helm, "_left", Interrupted(0))
    with pytest.raises(KeyboardInterrupt):
        helm.take()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(helm.take).result(LONG_S)
        ran.clear()
        helm.loop.call_soon(ran.set)
        other.submit(helm.give).result(LONG_S)
    assert ran.wait(LONG_S)


def test_a_thread_with_a_loop_of_its_own_does_not_run_this_one(helm: Helm) -> None:
    async def ask() -> bool:
        return helm.take()

    assert asyncio.run(ask()) is False
    assert helm.take()
    helm.give()
