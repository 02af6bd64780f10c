"""The proxy tells the daemon each second; without one it goes on."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kit.waiting import until

from cedos.api.carried import MOST_TOLD, CarriedReport
from cedos.errors import DaemonUnreachableError
from cedos.proxy.local.carried import carried_teller
from cedos.proxy.local.carried.carried_connections import CarriedConnections
from cedos.proxy.local.carried.carried_teller import CarriedTeller

pytestmark = pytest.mark.anyio

Ends = Any


class Nowhere:
    """A session that has carried nothing."""

    def paths(self) -> list[Any]:
        return []

    def received_by_network(self) -> dict[str, int]:
        return {}

    sent_by_network = received_by_network


class Endless:
    """A stream to a server with the longest name that is no name."""

    server, port = "\x1b" * 400, 443
    received_bytes = sent_bytes = 10**12
    gone = lossy = False


class Daemon:
    def __init__(self) -> None:
        self.reports: list[CarriedReport] = []
        self.there = True

    def tell_carried(self, report: CarriedReport) -> None:
        if not self.there:
            raise DaemonUnreachableError("no daemon")
        self.reports.append(report)


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Daemon:
    daemon = Daemon()
    monkeypatch.setattr(carried_teller, "ControlClient", lambda *_: daemon)
    for name in ("_LOOK_S", "_AGAIN_S", "_SELDOM_S"):
        monkeypatch.setattr(carried_teller, name, 0.02)
    monkeypatch.setattr(carried_teller, "_ABSENT_S", 0.2)
    return daemon


async def sink(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    got = len(await reader.read())
    writer.write(b"%d" % got)
    await writer.drain()


async def test_a_connection_is_told_of_while_it_lives_and_once_it_is_over(
    ends: Ends, daemon: Daemon
) -> None:
    await ends.start()
    teller = asyncio.create_task(CarriedTeller(Path("/nowhere"), ends.carried, "gw").run())
    port = await ends.origin(sink)
    reader, writer = await ends.forward(port)
    writer.write(bytes(100_000))
    await until(
        lambda: bool(daemon.reports) and daemon.reports[-1].connections[0].bytes_up == 10**5
    )
    writer.write_eof()
    assert await reader.read() == b"100000"
    writer.close()
    await until(lambda: daemon.reports[-1].connections[0].ended)
    last = daemon.reports[-1]
    assert (last.gateway, last.addresses) == ("gw", ("127.0.0.1",))
    (one,) = last.connections
    assert (one.server, one.port, one.bytes_down, one.bytes_up) == ("127.0.0.1", port, 6, 100_000)
    assert one.bytes_by_network == {"lo": 100_006}
    reports = len(daemon.reports)
    await asyncio.sleep(0.2)
    assert len(daemon.reports) == reports  # nothing is left to be told
    teller.cancel()


async def test_without_a_daemon_nothing_piles_up_and_a_later_one_hears_what_lives(
    ends: Ends, daemon: Daemon
) -> None:
    await ends.start()
    daemon.there = False
    teller = asyncio.create_task(CarriedTeller(Path("/nowhere"), ends.carried, "gw").run())
    port = await ends.origin(sink)
    _, stays = await ends.forward(port)
    stays.write(b"abc")
    reader, writer = await ends.forward(port)
    writer.write_eof()
    assert await reader.read() == b"0"
    writer.close()
    await until(lambda: len(ends.carried) == 1)
    daemon.there = True
    await until(lambda: bool(daemon.reports))
    assert [each.bytes_up for each in daemon.reports[0].connections] == [3]
    stays.write(b"d")
    await until(lambda: daemon.reports[-1].connections[0].bytes_up == 4)
    stays.close()
    teller.cancel()


async def test_a_report_is_no_larger_than_a_daemon_takes(daemon: Daemon) -> None:
    carried = CarriedConnections(asyncio.get_running_loop().time)
    for _ in range(MOST_TOLD):
        carried.began(Nowhere(), Endless(), lambda _label: None)
    teller = asyncio.create_task(CarriedTeller(Path("/nowhere"), carried, "gw").run())

    def told() -> set[int]:
        return {each.number for report in daemon.reports for each in report.connections}

    await until(lambda: told() == set(range(MOST_TOLD)))  # each has its turn
    teller.cancel()
    assert max(len(msgspec.json.encode(each)) for each in daemon.reports) < 64 * 1024


async def test_what_ended_while_the_daemon_was_busy_is_told_afterwards(
    ends: Ends, daemon: Daemon
) -> None:
    await ends.start()
    daemon.there = False
    teller = asyncio.create_task(CarriedTeller(Path("/nowhere"), ends.carried, "gw").run())
    reader, writer = await ends.forward(await ends.origin(sink))
    writer.write_eof()
    assert await reader.read() == b"0"
    writer.close()
    await asyncio.sleep(0.06)
    daemon.there = True
    await until(lambda: bool(daemon.reports))
    assert [each.ended for each in daemon.reports[0].connections] == [True]
    teller.cancel()


async def test_the_last_second_is_told_at_the_end(ends: Ends, daemon: Daemon) -> None:
    """`ssh` by way of `cedos forward -W` may be over before anybody has looked."""
    await ends.start()
    teller = CarriedTeller(Path("/nowhere"), ends.carried, "gw")
    await teller.last()
    assert daemon.reports == []
    reader, writer = await ends.forward(await ends.origin(sink))
    writer.write(b"abc")
    writer.write_eof()
    assert await reader.read() == b"3"
    writer.close()
    await teller.last()
    [report] = daemon.reports
    [one] = report.connections
    assert (one.bytes_up, one.bytes_down) == (3, 1)
