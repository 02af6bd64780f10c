"""What the prefetcher has learned, on a disk that may be full, broken or gone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

Application = Any


pytestmark = pytest.mark.anyio


async def test_what_was_learned_is_there_after_a_restart(app: Application, tmp_path: Path) -> None:
    file = tmp_path / "state" / "app.json"
    world = app.world("wlan0")
    async with app.prefetcher(world, state_file=file) as mine:
        for _ in range(5):
            future = mine.prefetch(app.item(), cls="read")
            await future.get()
            mine.prefetch(app.item(), cls="skipped").cancel()
        await asyncio.sleep(0.1)
    async with app.prefetcher(world, state_file=file) as mine:
        assert mine.queue.accuracy.of("read") > 0.7
        assert mine.queue.accuracy.of("skipped") < 0.3
        assert mine.rates.outlook.to_state()["wlan0"]["seconds"] > 0


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"accuracy": 3}', b'{"outlook": {"a": {"x": "y"}}}']
)
async def test_a_broken_file_is_no_reason_not_to_start(
    app: Application, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "app.json"
    file.write_bytes(content)
    async with app.prefetcher(app.world("wlan0"), state_file=file) as mine:
        assert await mine.prefetch(app.item()).get() == "value"


async def test_a_disk_that_refuses_loses_nothing_but_what_was_learned(
    app: Application, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    async with app.prefetcher(app.world(), state_file=tmp_path / "file" / "app.json") as mine:
        assert await mine.prefetch(app.item()).get() == "value"
