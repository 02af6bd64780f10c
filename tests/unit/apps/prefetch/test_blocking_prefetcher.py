"""The prefetcher for threads."""

import threading
import time
from typing import Any

import pytest

from cedos.apps.prefetch.blocking import BlockingPrefetcher
from cedos.apps.prefetch.turn import FetchError, Turn
from cedos.errors import CedosError

Application = Any


class BoomError(Exception):
    pass


class TestThreads:
    def test_the_same_for_threads(self, app: Application) -> None:
        class Blocks:
            def fetch(self, turn: Turn) -> str:
                turn.received(5, 10)
                turn.turn_blocking()
                return threading.current_thread().name

        with BlockingPrefetcher(app.world("wlan0"), every_s=0.02) as mine:
            future = mine.prefetch(Blocks(), size=10, cls="c")
            assert future.get(timeout_s=5) == "prefetch"
            assert future.ready
            assert not future.cancel()

    def test_time_outs_errors_and_cancelling(self, app: Application) -> None:
        async def boom(turn: Turn) -> None:
            raise BoomError("boom")

        with BlockingPrefetcher(app.world(), every_s=0.02) as mine:
            slow = mine.prefetch(app.item(app.for_ever))
            with pytest.raises(TimeoutError):
                slow.get(timeout_s=0.05)
            assert slow.cancel() is False  # it was being fetched on demand
            with pytest.raises(FetchError):
                slow.get()
            with pytest.raises(BoomError):
                mine.prefetch(app.item(boom)).get(timeout_s=5)
        with pytest.raises(CedosError):
            mine.prefetch(app.item())

    def test_many_threads_at_once(self, app: Application) -> None:
        with BlockingPrefetcher(app.world("wlan0"), every_s=0.02) as mine:
            results: list[str] = []

            def ask(number: int) -> None:
                results.append(mine.prefetch(app.item(value=str(number))).get(timeout_s=10))

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(20)
            assert sorted(results, key=int) == [str(number) for number in range(20)]

    def test_closing_wakes_who_waits(self, app: Application) -> None:
        mine = BlockingPrefetcher(app.world(), every_s=0.02)
        raised: list[BaseException] = []
        with mine:
            future = mine.prefetch(app.item(app.for_ever))

            def ask() -> None:
                try:
                    future.get()
                except FetchError as error:
                    raised.append(error)

            thread = threading.Thread(target=ask)
            thread.start()
            time.sleep(0.1)
        thread.join(5)
        assert not thread.is_alive()
        assert len(raised) == 1
        mine.close()
