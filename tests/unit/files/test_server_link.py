"""What somebody who waits for a server is told."""

import asyncio
from typing import Any

import pytest

from cedos.commands.console.progress import ProgressLine
from cedos.files.progress import Progress
from cedos.files.server_link import ServerLink

pytestmark = pytest.mark.anyio


async def test_a_server_that_does_not_answer_is_what_the_line_waits_for() -> None:
    progress, answers = Progress(), asyncio.Event()
    line = ProgressLine("song", progress, quiet=True)

    class Connection:
        def paths(self) -> list[Any]:
            return []

    async def connect() -> Any:
        await answers.wait()
        return Connection()

    seen = []

    async def over(connection: Any) -> bool:
        seen.append(line.text(1.0))
        return True

    done = asyncio.create_task(ServerLink(connect).until_done(over, progress, 5.0))
    await asyncio.sleep(0)
    assert line.text(0.0) == "song: 0 B, no answer from the server yet"
    answers.set()
    await done
    assert seen == ["song: 0 B, waiting for a network"]
    assert progress.state == ""
