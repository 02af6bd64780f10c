"""A transfer that ends while its daemon begins anew: no table lists it as waiting for good."""

import asyncio
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from cedos.api.asking.followed_transfer import FollowedTransfer, forget
from cedos.api.transfers import TransferReport, TurnMessage
from cedos.selector.deadlines.transfer_table import TransferTable
from cedos.session.sockets.own_table import OWN_TABLE

KEY = "0" * 32


@pytest.fixture
def control() -> Iterator[Path]:
    """A short path: a socket's has 108 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "control.sock"


@asynccontextmanager
async def daemon(
    path: Path, heard: list[TransferReport], waits_s: float = 0.0
) -> AsyncIterator[None]:
    """`waits_s`: the first answer is to wait, the next one comes so much later."""

    async def transfers(request: web.Request) -> web.Response:
        heard.append(msgspec.json.decode(await request.read(), type=TransferReport))
        turn = TurnMessage(networks=("wlan0",))
        if waits_s and len(heard) == 1:
            turn = TurnMessage()
        elif waits_s and len(heard) == 2:
            await asyncio.sleep(waits_s)
        return web.Response(body=msgspec.json.encode(turn), content_type="application/json")

    app = web.Application()
    app.router.add_post("/v1/transfers", transfers)
    runner = web.AppRunner(app)
    await runner.setup()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        await web.SockSite(runner, listening).start()
        try:
            yield
        finally:
            await runner.cleanup()
            path.unlink()


def followed(path: Path) -> FollowedTransfer:
    def report() -> TransferReport:
        return TransferReport(key=KEY, name="song", server="s", deadline_unix_s=time.time() + 99.0)

    return FollowedTransfer(path, report, lambda: {"wlan0": False}, lambda: None)


@pytest.mark.anyio
async def test_the_end_is_told_to_a_daemon_that_begins_anew(control: Path) -> None:
    heard: list[TransferReport] = []
    transfer = followed(control)
    async with daemon(control, heard):
        following = asyncio.create_task(transfer.run())
        async with asyncio.timeout(10.0):
            await transfer.mine()
    following.cancel()
    ending = asyncio.create_task(transfer.end())
    await asyncio.sleep(0.3)
    assert not ending.done()
    async with daemon(control, heard):
        async with asyncio.timeout(10.0):
            assert await ending
    assert heard[-1].ended
    assert heard[-1].key == KEY


@pytest.mark.anyio
async def test_the_time_that_it_waited_is_none_in_which_something_could_come(control: Path) -> None:
    """It counted as such, and a network that it had waited for began with a tenth of its rate."""
    heard: list[TransferReport] = []
    async with daemon(control, heard, waits_s=3.0):
        following = asyncio.create_task(followed(control).run())
        async with asyncio.timeout(20.0):
            while len(heard) < 3:
                await asyncio.sleep(0.05)
        following.cancel()
    assert heard[1].wait_s > 0.0
    assert 0.9 < heard[2].lasted_s < 3.0


@pytest.mark.anyio
@pytest.mark.parametrize("has_daemon", [True, False])
async def test_its_pause_and_the_end_of_that_are_told_at_once(
    control: Path, monkeypatch: pytest.MonkeyPatch, *, has_daemon: bool
) -> None:
    monkeypatch.setattr(OWN_TABLE, "table", TransferTable())  # no other test's are in it
    again_unix_s: float | None = None
    reports: list[TransferReport] = []
    heard: list[TransferReport] = []

    def report() -> TransferReport:
        deadline_unix_s = time.time() + 99.0
        now = TransferReport(
            key=KEY, name="song", server="s", deadline_unix_s=deadline_unix_s,
            why="it is away", again_unix_s=again_unix_s,
        )  # fmt: skip
        reports.append(now)
        return now

    async def told(again: float | None) -> None:
        async with asyncio.timeout(0.9):
            while reports[-1].again_unix_s != again:
                await asyncio.sleep(0.01)

    transfer = FollowedTransfer(control, report, lambda: {"wlan0": False}, lambda: None)
    async with AsyncExitStack() as stack:
        if has_daemon:
            await stack.enter_async_context(daemon(control, heard))
        following = asyncio.create_task(transfer.run())
        async with asyncio.timeout(10.0):
            await transfer.mine()
        for _ in range(2):
            again_unix_s = time.time() + 50.0
            transfer.tell_soon()
            await told(again_unix_s)
            await asyncio.sleep(0.1)
            assert transfer.turn is None  # what was said before is no turn of now
            if not has_daemon:
                assert OWN_TABLE.table.served(KEY) == ()
                assert len(OWN_TABLE.table) == 1
            n_reports = len(reports)
            await asyncio.sleep(1.2)
            assert len(reports) == n_reports  # nothing changes in a pause
            again_unix_s = None
            transfer.tell_soon()
            await told(None)
            async with asyncio.timeout(1.0):
                await transfer.mine()
            assert transfer.may_use("wlan0")
        following.cancel()
        await transfer.end()
    if has_daemon:
        assert {each.why for each in heard} == {"it is away"}
        assert all(each.wait_s == 0.0 for each in heard if each.again_unix_s is not None)


@pytest.mark.anyio
async def test_who_never_met_a_daemon_waits_for_none(control: Path) -> None:
    began_s = time.monotonic()
    assert not await followed(control).end()
    assert time.monotonic() - began_s < 1.0


@pytest.mark.anyio
async def test_a_key_is_forgotten_where_there_is_a_daemon(control: Path) -> None:
    heard: list[TransferReport] = []
    assert not forget(control, KEY)
    async with daemon(control, heard):
        assert await asyncio.to_thread(forget, control, KEY)
    assert [(each.key, each.ended) for each in heard] == [(KEY, True)]
