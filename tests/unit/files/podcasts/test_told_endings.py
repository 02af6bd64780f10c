"""An episode that came while no daemon was there: the next daemon hears that nobody waits for it."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cedos.files.podcasts import fetching
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState


def episode(title: str, state: EpisodeState, by_unix_s: float) -> EpisodeRecord:
    return EpisodeRecord("news", title, title, "http://a/b", 10, by_unix_s, f"/x/{title}", state)


@pytest.mark.anyio
async def test_the_daemon_hears_of_it_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    began_s = time.monotonic()

    def forget(record: EpisodeRecord) -> bool:
        asked.append((record.title, time.monotonic()))
        return time.monotonic() > began_s + 0.3  # the daemon begins then

    monkeypatch.setattr(fetching, "forget", forget)
    monkeypatch.setattr(fetching, "_TELL_S", 0.1)
    monkeypatch.setattr(fetching, "_LOOK_S", 0.05)
    book = EpisodeBook(tmp_path / "book.json")
    now = time.time()
    book.add(episode("long ago", EpisodeState.HERE, now - 30 * 86_400.0))
    book.add(episode("lately", EpisodeState.HERE, now - 100.0))
    book.add(episode("none", EpisodeState.REFUSED, now + 100.0))
    one = fetching.EpisodeFetching(book, tmp_path, lambda _: None)
    running = asyncio.create_task(one.run(stay=True))
    await asyncio.sleep(0.8)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    one.close()
    assert {title for title, _ in asked} == {"lately", "none"}
    heard = [title for title, at_s in asked if at_s > began_s + 0.3]
    assert sorted(heard) == ["lately", "none"]
