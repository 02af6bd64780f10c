"""An episode that cannot be had: the others come meanwhile, and the run ends."""

import asyncio
import re
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from kit.odd_web_server import AUDIO, OddWebServer

from cedos.files import web_getting
from cedos.files.podcasts import leading_networks, retries
from cedos.files.podcasts.episode_book import EpisodeBook, EpisodeRecord, EpisodeState
from cedos.files.podcasts.fetching import EpisodeFetching
from cedos.files.podcasts.retries import Retries
from cedos.model import NetworkKind
from cedos.selector.deadlines.transfer_table import TableTransfer, TransferTable
from cedos.session.io.links import Egress
from cedos.session.sockets.own_table import OWN_TABLE

pytestmark = pytest.mark.anyio

WIFI = Egress("lo", 1, frozenset(), NetworkKind.WIFI, metered=False)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OddWebServer]:
    monkeypatch.setattr(OWN_TABLE, "table", TransferTable())  # no other test hears of these rates
    monkeypatch.setattr(web_getting, "_SILENCE_S", 0.2)
    monkeypatch.setattr("cedos.files.podcasts.fetching._LOOK_S", 0.1)
    async with OddWebServer().running() as running:
        yield running


class Listener:
    """Wants such URLs, the first the most urgent; `by_s`: from now on."""

    def __init__(self, folder: Path, *urls: str, by_s: float = 3600.0) -> None:
        self.book = EpisodeBook(folder / "book.json")
        for number, url in enumerate(urls):
            self.book.add(
                EpisodeRecord(
                    *("news", url, f"E{number}", url, 0, time.time() + by_s + 1e-3 * number),
                    str(folder / "got" / f"e{number}"),
                )
            )
        self.said: list[str] = []
        self.wrong: list[str] = []
        self.fetching = EpisodeFetching(
            self.book, folder, self.said.append, complain=self.wrong.append
        )

    async def run(self, within_s: float = 30.0) -> None:
        try:
            async with asyncio.timeout(within_s):
                await self.fetching.run()
        finally:
            self.fetching.close()

    @property
    def states(self) -> list[EpisodeState]:
        return [each.state for each in self.book.episodes]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


BAD = [
    ("closed", "the server refused the connection"),
    ("early", "the server broke off before the end"),
    ("silent", "the server does not answer"),
    ("status/503", "the server says 503 Reason"),
]


@pytest.mark.parametrize(("bad", "why"), BAD)
async def test_the_good_one_comes_in_the_pause_of_the_bad_one(
    tmp_path: Path, server: OddWebServer, bad: str, why: str
) -> None:
    url = f"http://127.0.0.1:{closed_port()}/x" if bad == "closed" else server.url(bad)
    listener = Listener(tmp_path, url, server.url("good"))
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(4.5):  # before the first pause is over
        while listener.states[1] is not EpisodeState.HERE:
            await asyncio.sleep(0.02)
    assert (tmp_path / "got" / "e1").read_bytes() == AUDIO
    assert listener.states[0] is EpisodeState.WANTED
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    tried = f"news: E0: {why}; it is tried again in 5 s"
    assert listener.said.count(tried) == 1
    assert EpisodeBook(tmp_path / "book.json").episodes[0].why == why


@pytest.mark.parametrize(("bad", "why"), BAD)
async def test_what_is_tried_in_vain_is_left_to_the_next_run(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch, bad: str, why: str
) -> None:
    monkeypatch.setattr(retries, "_PAUSE_S", 0.05)
    url = f"http://127.0.0.1:{closed_port()}/x" if bad == "closed" else server.url(bad)
    listener = Listener(tmp_path, url, server.url("good"), by_s=-1.0)
    await listener.run()
    assert listener.states == [EpisodeState.WANTED, EpisodeState.HERE]
    assert listener.fetching.missing == 1
    assert listener.wrong == [f"news: E0: {why}; tried 4 times in vain, left to the next run"]
    if bad != "closed":
        assert server.requests[bad] == 4


async def test_it_is_tried_until_its_deadline(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_PAUSE_S", 0.05)
    monkeypatch.setattr(retries, "_SOON_S", 0.1)
    listener = Listener(tmp_path, server.url("status/503"), server.url("good"), by_s=3.0)
    await listener.run()
    assert time.time() >= listener.book.episodes[0].by_unix_s
    assert listener.states == [EpisodeState.WANTED, EpisodeState.HERE]
    tried = server.requests["status/503"]
    assert tried > 5
    said = f"tried {tried} times in vain, left to the next run"
    assert listener.wrong == [f"news: E0: the server says 503 Reason; {said}"]


async def test_a_server_that_is_back_before_the_deadline_is_in_time(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_PAUSE_S", 0.05)
    monkeypatch.setattr(retries, "_LONGEST_S", 0.1)
    listener = Listener(tmp_path, server.url("status/503"))
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(20.0):
        while server.requests["status/503"] < 6:  # it was given up after four
            await asyncio.sleep(0.02)
        server.files["status/503"] = AUDIO
        await running
    assert listener.states == [EpisodeState.HERE]
    assert (listener.fetching.missing, listener.wrong) == (0, [])


@pytest.mark.parametrize("status", [404, 410])
async def test_what_is_gone_is_not_waited_for(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(web_getting, "_SILENCE_S", 10.0)  # a busy machine is no silent server
    listener = Listener(tmp_path, server.url(f"status/{status}"))
    await listener.run(10.0)
    assert listener.states == [EpisodeState.REFUSED]
    assert server.requests == {f"status/{status}": 1}
    assert listener.wrong == [f"news: E0: the server says {status} Reason"]


async def test_in_its_pause_it_is_in_the_table_and_has_no_turn(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_PAUSE_S", 1.0)
    listener = Listener(tmp_path, server.url("status/503"))
    running = asyncio.create_task(listener.run())

    def row() -> tuple[TableTransfer, tuple[str, ...]] | None:
        for each, _, _ in OWN_TABLE.table.rows(time.monotonic()):
            return each, OWN_TABLE.table.served(each.key)
        return None

    async with asyncio.timeout(10.0):
        while (found := row()) is None or found[0].again_unix_s is None:
            await asyncio.sleep(0.02)
        (of, served), now = found, time.time()
        assert of.why == "the server says 503 Reason"
        assert of.again_unix_s is not None
        assert now < of.again_unix_s < now + 1.0
        assert served == ()
        server.files["status/503"] = AUDIO
        await running
    assert time.time() > of.again_unix_s - 0.05
    assert server.requests["status/503"] == 2
    assert row() is None
    assert listener.states == [EpisodeState.HERE]


async def test_a_circle_is_refused_at_once(tmp_path: Path, server: OddWebServer) -> None:
    listener = Listener(tmp_path, server.url("circle"), server.url("good"))
    await listener.run(10.0)
    assert listener.states == [EpisodeState.REFUSED, EpisodeState.HERE]
    assert listener.wrong == ["news: E0: the server redirects in circles"]


def _egresses(monkeypatch: pytest.MonkeyPatch, found: Sequence[Egress]) -> None:
    monkeypatch.setattr(
        leading_networks.EgressReader, "egresses", lambda _self, _destination: tuple(found)
    )


async def test_an_unknown_host_is_given_up_and_no_network_is_waited_for(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there: list[Egress] = []
    _egresses(monkeypatch, there)
    monkeypatch.setattr(retries, "_PAUSE_S", 0.05)
    listener = Listener(tmp_path, "http://nobody.invalid/x", server.url("good"), by_s=4.0)
    running = asyncio.create_task(listener.run())
    await asyncio.sleep(2.5)
    assert listener.states == [EpisodeState.WANTED] * 2
    (said,) = listener.said
    assert re.fullmatch(r"2 episodes: may not be done by .*; waiting for a network", said)
    there.append(WIFI)
    await running
    assert listener.states == [EpisodeState.WANTED, EpisodeState.HERE]
    (said,) = listener.wrong
    assert "nobody.invalid" in said
    assert re.search(r"; tried [4-9] times in vain, left", said)


async def test_another_network_ends_a_pause(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = [WIFI]
    _egresses(monkeypatch, there)
    monkeypatch.setattr(retries, "_PAUSE_S", 1000.0)
    body = server.files.pop("good")
    listener = Listener(tmp_path, server.url("status/503"))
    running = asyncio.create_task(listener.run())
    while not listener.said or "tried again" not in listener.said[-1]:
        await asyncio.sleep(0.02)
    there.clear()
    await asyncio.sleep(1.5)
    server.files["status/503"] = body
    there.append(WIFI)
    await running
    assert listener.states == [EpisodeState.HERE]


async def test_more_bad_ones_than_are_followed_do_not_keep_the_others(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedos.files.podcasts.fetching._MOST_FOLLOWED", 2)
    monkeypatch.setattr(retries, "_PAUSE_S", 0.01)
    monkeypatch.setattr(retries, "_LONGEST_S", 0.02)
    bad = [f"http://127.0.0.1:{closed_port()}/{n}" for n in range(3)]
    listener = Listener(tmp_path, *bad, server.url("good"), by_s=-1.0)
    await listener.run()
    assert listener.states == [EpisodeState.WANTED] * 3 + [EpisodeState.HERE]
    assert listener.fetching.missing == 3


async def test_more_bad_ones_with_time_than_are_followed_are_tried_in_turn(
    tmp_path: Path, server: OddWebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedos.files.podcasts.fetching._MOST_FOLLOWED", 1)
    monkeypatch.setattr(retries, "_PAUSE_S", 0.01)
    monkeypatch.setattr(retries, "_LONGEST_S", 0.02)
    listener = Listener(tmp_path, *(server.url(f"status/50{n}") for n in range(3)))
    running = asyncio.create_task(listener.run())
    async with asyncio.timeout(25.0):
        while min(server.requests[f"status/50{n}"] for n in range(3)) < 6:
            await asyncio.sleep(0.02)
    assert max(server.requests.values()) <= 12
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_pauses_grow_to_an_hour_until_more_is_here() -> None:
    tried = Retries(100, time.time() + 10 * 3600.0)
    assert tried.again_unix_s is None
    pauses = [tried.failed() for _ in range(12)]
    assert pauses == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]
    assert tried.again_unix_s == pytest.approx(time.time() + 3600.0, abs=1.0)
    assert not tried.enough  # its deadline is hours away
    assert tried.rounds == 3
    tried.came(100)  # no more than ever
    assert tried.rounds == 3
    tried.came(101)
    assert tried.rounds == 0
    assert tried.failed() == 5
    tried.anew()
    assert tried.again_unix_s is None


@pytest.mark.parametrize(
    ("left_s", "pause_s"),
    [(8000.0, 3600.0), (7000.0, 3500.0), (700.0, 350.0), (500.0, 300.0), (-9e5, 300.0)],
)
def test_no_pause_takes_most_of_the_time_that_is_left(left_s: float, pause_s: float) -> None:
    tried = Retries(0, time.time() + left_s)
    pauses = [tried.failed() for _ in range(40)]
    assert pauses[-1] == pytest.approx(pause_s, abs=1.0)
    assert pauses[:3] == [5, 10, 20]
    assert tried.enough is (left_s < 0.0)


def test_who_is_late_is_tried_four_times() -> None:
    tried = Retries(0, time.time() - 1.0)
    assert [(tried.failed(), tried.enough) for _ in range(4)] == [
        *((5, False), (10, False), (20, False), (40, True))
    ]
