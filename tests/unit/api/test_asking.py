"""Programs that ask the daemon beside their data: choices, routes and transfers with deadlines."""

import asyncio
import socket
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import web
from kit.waiting import until

from cedos.api import asking
from cedos.api.asking import DaemonChooser, DaemonRoutes, FollowedTransfer, forget
from cedos.api.transfers import TransferReport, TurnMessage
from cedos.errors import DaemonUnreachableError
from cedos.model import Bulk, Label, NetworkKind, Strategy, StrategyKind, Urgency
from cedos.selector.deadlines.transfer_table import TransferTable
from cedos.session.io.advice import KnownNetwork, Question
from cedos.session.sockets.metered_gate import OWN_TABLE

URGENT = Question(Label(Urgency.FOREGROUND, Bulk.SMALL), 4_000)
BULK = Question(Label(Urgency.BACKGROUND, Bulk.LARGE), 64_000)


class Client:
    """A control socket that answers slowly, and counts."""

    def __init__(self, *, there=True):
        self.asked = []
        self.named = 0
        self._there = there

    def choose(self, request):
        self.asked.append(request)
        time.sleep(0.02)
        if not self._there:
            raise DaemonUnreachableError("no daemon")
        return SimpleNamespace(
            number=len(self.asked),
            evaluations=[object()],
            choice=Strategy(StrategyKind.SINGLE, ("home",)),
        )

    def networks(self):
        self.named += 1
        if not self._there:
            raise DaemonUnreachableError("no daemon")
        return [SimpleNamespace(name="home", egress="wlan0", kind=NetworkKind.WIFI, metered=True)]


def chooser(client):
    return DaemonChooser(Path("/nowhere"), lambda *_: client)


async def test_the_daemon_tells_of_changes(control, fake_daemon):
    following = asking.changes(control)
    async with asyncio.timeout(10):
        for _ in range(3):
            await anext(following)
            fake_daemon.number += 1
    await following.aclose()


async def test_a_daemon_that_tells_of_no_changes_is_left(tmp_path):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 404 Not Found\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "earlier"):
        assert [None async for _ in asking.changes(tmp_path / "earlier")] == []
    with pytest.raises(OSError, match="No such file"):
        await anext(asking.changes(tmp_path / "none"))


async def test_what_was_known_before_networks_changed_is_asked_anew():
    client = Client()
    asked = chooser(client)
    await asked.choose(BULK)
    asked.forget()
    await asyncio.sleep(0.001)
    await asked.choose(BULK)
    await asked.choose(BULK)
    assert (len(client.asked), client.named) == (2, 2)
    await asked.learn()
    assert client.named == 2, "it has just been told"
    asked.forget()
    await asyncio.sleep(0.001)
    await asked.learn()
    assert client.named == 3


async def test_alike_questions_of_many_sessions_are_one():
    client = Client()
    made = chooser(client)
    found = await asyncio.gather(*[made.choose(each) for each in (URGENT, BULK) * 10])
    assert set(found) == {Strategy(StrategyKind.SINGLE, ("wlan0",))}
    assert sorted(each.size_bytes for each in client.asked) == [4_000, 64_000]
    assert {each.size_bytes: each.redundant for each in client.asked} == {
        4_000: True,
        64_000: False,
    }
    assert client.named == 1


async def test_without_a_daemon_the_first_question_speaks_for_all():
    client = Client(there=False)
    made = chooser(client)
    assert await asyncio.gather(*[made.choose(each) for each in (URGENT, BULK) * 10]) == [None] * 20
    assert await made.choose(URGENT) is None
    assert len(client.asked) == 1


async def test_a_question_about_what_was_sent_already_is_passed_on():
    client = Client()
    made = chooser(client)
    await made.choose(URGENT)
    await made.choose(replace(URGENT, sent_over="wlan0", waited_s=0.1))
    assert [(each.sent_over, each.waited_s) for each in client.asked] == [
        (None, 0.0),
        ("wlan0", 0.1),
    ]


async def test_a_helper_and_its_link_are_two_networks(monkeypatch):
    client = Client()
    egress = "wlan0/169.254.1.5"
    helper = SimpleNamespace(name="helper-1", egress=egress, kind=NetworkKind.HELPER, metered=True)
    chosen = SimpleNamespace(
        number=1, evaluations=[object()],
        choice=Strategy(StrategyKind.MPTCP, ("home", "helper-1")),
    )  # fmt: skip
    own = client.networks()
    monkeypatch.setattr(client, "networks", lambda: [*own, helper])
    monkeypatch.setattr(client, "choose", lambda _: chosen)
    made = chooser(client)
    assert await made.choose(BULK) == Strategy(StrategyKind.MPTCP, ("wlan0", egress))
    assert made.network(egress) == KnownNetwork(NetworkKind.HELPER, metered=True)
    assert made.network("wlan0") == KnownNetwork(NetworkKind.WIFI, metered=True)
    # The next neighbour has the name of the one that left.
    helper.egress = "wlan0/169.254.1.6"
    await asyncio.sleep(1.1)
    found = await made.choose(URGENT)
    assert found.networks == ("wlan0", "wlan0/169.254.1.6")


async def test_networks_are_what_the_daemon_says():
    client = Client()
    made = chooser(client)
    assert made.network("wlan0") is None
    for _ in range(2):
        await made.learn()
    assert made.network("wlan0") == KnownNetwork(NetworkKind.WIFI, metered=True)
    assert made.network("lte0") is None
    assert client.named == 1, "it has just been asked"
    alone = chooser(Client(there=False))
    await alone.learn()
    assert alone.network("wlan0") is None


async def test_a_decision_that_counts_no_more_is_not_found(monkeypatch):
    made = chooser(Client())
    await made.choose(BULK)
    later_s = asyncio.get_running_loop().time() + 7.0
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later_s)
    assert made.last_decision(BULK.label) is None


async def told(routes, port):
    await until(lambda: port in routes._answers)


async def test_the_first_connection_does_not_wait_and_the_next_one_knows(
    fake_daemon, control, monkeypatch
):
    fake_daemon.direct = True
    routes = DaemonRoutes(control)
    try:
        assert not routes.direct(443, None), "a way that nobody measured is not judged"
        assert not routes.direct(443, 0.03)
        assert not routes.direct(443, 0.03)
        await told(routes, 443)
        assert routes.direct(443, 0.03)
        (asked,) = fake_daemon.choices
        assert (asked.detour.rtt_s, asked.detour.port) == (0.03, 443)
        monkeypatch.setattr(asking, "ROUTE_VALID_S", -1.0)
        assert not routes.direct(443, 0.03)
    finally:
        await routes.close()


async def test_without_a_daemon_the_gateway_is_taken(tmp_path):
    routes = DaemonRoutes(tmp_path / "none")
    assert not routes.direct(443, 0.5)
    await asyncio.gather(*routes._asking.values())
    assert not routes.direct(443, 0.5)
    assert not routes._asking, "it is left in peace for a while"


KEY = "0" * 32


@pytest.fixture
def free_socket():
    """A short path: a socket's has 108 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "control.sock"


@asynccontextmanager
async def daemon(path, heard, waits_s=0.0):
    """`waits_s`: the first answer is to wait, the next one comes so much later."""

    async def transfers(request):
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


def followed(path):
    def report():
        return TransferReport(key=KEY, name="song", server="s", deadline_unix_s=time.time() + 99.0)

    return FollowedTransfer(path, report, lambda: {"wlan0": False}, lambda: None)


async def test_the_end_is_told_to_a_daemon_that_begins_anew(free_socket):
    heard = []
    transfer = followed(free_socket)
    async with daemon(free_socket, heard):
        following = asyncio.create_task(transfer.run())
        async with asyncio.timeout(10.0):
            await transfer.mine()
    following.cancel()
    ending = asyncio.create_task(transfer.end())
    await asyncio.sleep(0.3)
    assert not ending.done()
    async with daemon(free_socket, heard):
        async with asyncio.timeout(10.0):
            assert await ending
    assert heard[-1].ended
    assert heard[-1].key == KEY


@pytest.mark.parametrize("has_daemon", [True, False])
async def test_its_pause_and_the_end_of_that_are_told_at_once(
    free_socket, monkeypatch, *, has_daemon
):
    monkeypatch.setattr(OWN_TABLE, "table", TransferTable())  # no other test's are in it
    again_unix_s = None
    reports = []
    heard = []

    def report():
        deadline_unix_s = time.time() + 99.0
        now = TransferReport(
            key=KEY, name="song", server="s", deadline_unix_s=deadline_unix_s,
            why="it is away", again_unix_s=again_unix_s,
        )  # fmt: skip
        reports.append(now)
        return now

    async def told(again):
        async with asyncio.timeout(0.9):
            while reports[-1].again_unix_s != again:
                await asyncio.sleep(0.01)

    transfer = FollowedTransfer(free_socket, report, lambda: {"wlan0": False}, lambda: None)
    async with AsyncExitStack() as stack:
        if has_daemon:
            await stack.enter_async_context(daemon(free_socket, heard))
        following = asyncio.create_task(transfer.run())
        async with asyncio.timeout(10.0):
            await transfer.mine()
        for number in range(2):
            again_unix_s = time.time() + 50.0
            transfer.tell_soon()
            await told(again_unix_s)
            await asyncio.sleep(0.1)
            assert transfer.turn is None  # what was said before is no turn of now
            if not has_daemon:
                assert OWN_TABLE.table.networks_of(KEY) == ()
                assert len(OWN_TABLE.table) == 1
            if number == 0:
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


async def test_a_key_is_forgotten_where_there_is_a_daemon(free_socket):
    heard = []
    assert not forget(free_socket, KEY)
    async with daemon(free_socket, heard):
        assert await asyncio.to_thread(forget, free_socket, KEY)
    assert [(each.key, each.ended) for each in heard] == [(KEY, True)]
