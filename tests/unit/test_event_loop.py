"""The watch that each unit test runs under (`kit.loop_watch`) sees what blocks an event loop."""

import asyncio
import os

from kit import loop_watch

from emu import ROOT


async def test_a_call_that_waits_for_the_disk_is_seen_in_the_loop_alone(tmp_path):
    code = compile("def wait(number): os.fsync(number)", str(ROOT / "cedos/made_up.py"), "exec")
    ours = {"os": os}
    exec(code, ours)
    with (tmp_path / "a").open("wb") as file:
        await asyncio.to_thread(ours["wait"], file.fileno())
        assert loop_watch.unknown() == {}
        ours["wait"](file.fileno())
    assert loop_watch.unknown() == {"made_up.py:wait": "os.fsync"}


def test_what_may_block_is_still_there():
    assert loop_watch.places_that_are_gone() == []
