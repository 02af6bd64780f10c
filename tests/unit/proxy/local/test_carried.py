"""Connections through the gateway: bytes by network, and their report to the daemon each second."""

import asyncio
import weakref
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.waiting import until

from cedos.api.messages import MOST_TOLD
from cedos.errors import DaemonUnreachableError
from cedos.model import Bulk
from cedos.proxy.local import carried
from cedos.proxy.local.carried import CarriedConnections, CarriedTeller
from cedos.session.sockets.message import PathReport


@dataclass
class Stream:
    received_bytes: int = 0
    sent_bytes: int = 0
    gone: bool = False
    lossy: bool = False
    server: str = "example.org"
    port: int = 443


@dataclass(eq=False)
class Session:
    down: dict[str, int] = field(default_factory=dict)
    up: dict[str, int] = field(default_factory=dict)

    def paths(self):
        return [PathReport("wlan0", "192.0.2.1", None, stalled=False)]

    def received_by_network(self):
        return dict(self.down)

    def sent_by_network(self):
        return dict(self.up)


class Case:
    """A session whose connections begin when a test asks for them."""

    def __init__(self):
        self.now_s = 100.0
        self.session = Session()
        self.decisions = {}
        self.names = {}
        self.carried = CarriedConnections(lambda: self.now_s, self.names.get)

    def begin(self, host="example.org", session=None):
        stream = Stream(server=host)
        self.carried.watch(session or self.session, stream, self._decided)
        return stream

    def _decided(self, label):
        return self.decisions.get(label.bulk)


@pytest.fixture
def case():
    return Case()


def test_bytes_are_spread_as_the_session_was_in_that_second(case):
    large, small = case.begin(), case.begin("api.example")
    case.session.down = {"wlan0": 1_000}
    large.received_bytes = 900
    case.carried.look()
    case.session.down = {"wlan0": 1_300, "lte0": 900}
    case.session.up = {"lte0": 50}
    large.received_bytes += 800
    small.received_bytes, small.sent_bytes = 400, 40
    case.carried.look()
    first, second = case.carried.news()
    assert first.bytes_by_network == {"wlan0": 900 + 200, "lte0": 600}
    assert second.bytes_by_network == {"wlan0": 100, "lte0": 300 + 40}
    assert (second.bytes_down, second.bytes_up) == (400, 40)


def test_what_a_session_carried_before_is_not_its_next_connections(case):
    """After a walk: a gigabyte over Wi-Fi, a rest, and then something over the phone."""
    first = case.begin()
    case.session.down = {"wlan0": 10**9}
    first.received_bytes, first.gone = 10**9, True
    case.carried.look()
    case.carried.on_reported(case.carried.news())
    case.carried.look()
    case.session.down = {"wlan0": 10**9 + 500}  # keep-alives
    alone = case.begin("lone.example")
    case.session.down = {"wlan0": 10**9 + 500, "lte0": 5_100_000}
    alone.received_bytes = 5_000_000
    case.carried.look()
    assert case.carried.news()[0].bytes_by_network == {"lte0": 5_000_000}


def test_a_server_gets_its_name_when_the_first_words_have_it(case):
    stream = case.begin("192.0.2.7")
    case.carried.look()
    case.carried.on_reported(case.carried.news())
    stream.server, stream.sent_bytes = "shop.example", 300
    case.carried.look()
    assert case.carried.news()[0].server == "shop.example"


@given(
    st.lists(
        st.tuples(
            st.integers(0, 10**7),
            st.dictionaries(st.sampled_from(["a", "b", "c"]), st.integers(0, 10**7)),
        ),
        max_size=8,
    )
)
def test_no_byte_is_lost_or_counted_twice(seconds):
    case = Case()
    stream = case.begin()
    for moved, shares in [*seconds, (0, {"a": 1})]:
        stream.received_bytes += moved
        for network, size in shares.items():
            case.session.down[network] = case.session.down.get(network, 0) + size
        case.carried.look()
    assert sum(case.carried.news()[0].bytes_by_network.values()) == stream.received_bytes


def test_a_decision_is_that_of_its_kind_of_data_while_it_lived(case):
    stream = case.begin()
    case.decisions = {Bulk.SMALL: 3, Bulk.LARGE: 4}
    case.carried.look()
    assert case.carried.news()[0].decision == 3
    stream.received_bytes = 100_000
    case.carried.look()
    case.decisions = {}
    case.carried.look()
    assert case.carried.news()[0].decision == 4, "none counts now, that was the last"
    stream.gone = True
    case.carried.look()
    case.decisions = {Bulk.LARGE: 9}
    case.carried.look()
    assert case.carried.news()[0].decision == 4


def test_of_more_than_fit_those_that_changed_go_first_and_others_in_turn(case):
    streams = [case.begin(f"{number}.example") for number in range(MOST_TOLD + 10)]
    first = case.carried.news()
    assert len(first) == MOST_TOLD
    case.carried.on_reported(first)
    streams[3].received_bytes = 7
    case.carried.look()
    servers = [each.server for each in case.carried.news()]
    late = [f"{MOST_TOLD + number}.example" for number in range(10)]
    assert sorted(servers[:11]) == sorted(["3.example", *late])
    assert servers[11:14] == ["0.example", "1.example", "2.example"]
    assert len(servers) == 11 + 16, "a daemon that is new hears of all of them in the end"


def test_of_endlessly_many_only_so_many_are_kept(case, monkeypatch):
    monkeypatch.setattr(carried, "_MOST", 3)
    for _ in range(5):
        case.begin()
    assert len(case.carried) == 3


class Endless:
    """A stream to a server with the longest name that is no name."""

    server, port = "\x1b" * 400, 443
    received_bytes = sent_bytes = 10**12
    gone = lossy = False


class Daemon:
    def __init__(self):
        self.reports = []
        self.refused = 0
        self.there = True

    def report_carried(self, report):
        if not self.there:
            self.refused += 1
            raise DaemonUnreachableError("no daemon")
        self.reports.append(report)


@pytest.fixture
def daemon(monkeypatch):
    daemon = Daemon()
    monkeypatch.setattr(carried, "ControlClient", lambda *_: daemon)
    for name in ("_LOOK_S", "_AGAIN_S", "_SELDOM_S"):
        monkeypatch.setattr(carried, name, 0.02)
    monkeypatch.setattr(carried, "_ABSENT_S", 0.2)
    return daemon


async def sink(reader, writer):
    got = len(await reader.read())
    writer.write(b"%d" % got)
    await writer.drain()


async def test_a_connection_is_told_of_while_it_lives_and_once_it_is_over(ends, daemon):
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
    await until(lambda: daemon.reports[-1].connections[0].ended_unix_s is not None)
    last = daemon.reports[-1]
    assert (last.gateway, last.addresses) == ("gw", ("127.0.0.1",))
    (one,) = last.connections
    assert (one.server, one.port, one.bytes_down, one.bytes_up) == ("127.0.0.1", port, 6, 100_000)
    assert one.bytes_by_network == {"lo": 100_006}
    reports = len(daemon.reports)
    await asyncio.sleep(0.2)
    assert len(daemon.reports) == reports  # nothing is left to be told
    teller.cancel()


async def test_without_a_daemon_nothing_piles_up_and_a_later_one_hears_what_lives(ends, daemon):
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


async def test_an_ended_session_is_let_go_before_the_next_report(daemon, monkeypatch):
    """Keep none for a report: a gateway that ends each had 30 s of them kept, of a megabyte each."""
    monkeypatch.setattr(carried, "_AGAIN_S", 1000.0)
    monkeypatch.setattr(carried, "_ABSENT_S", 10_000.0)
    daemon.there, connections = False, CarriedConnections(asyncio.get_running_loop().time)
    stream, session = Stream(), Session()
    kept = weakref.ref(session)
    connections.watch(session, stream, lambda _label: None)
    teller = asyncio.create_task(CarriedTeller(Path("/nowhere"), connections, "gw").run())
    await until(lambda: daemon.refused == 1)  # then no report for a long time
    stream.gone = True
    del session
    await until(lambda: kept() is None)
    assert len(connections) == 1, "its connection is still to be told of"
    teller.cancel()


async def test_a_report_is_no_larger_than_a_daemon_takes(daemon):
    endless = CarriedConnections(asyncio.get_running_loop().time)
    for _ in range(MOST_TOLD):
        endless.watch(Session(), Endless(), lambda _label: None)
    teller = asyncio.create_task(CarriedTeller(Path("/nowhere"), endless, "gw").run())

    def told():
        return {each.number for report in daemon.reports for each in report.connections}

    await until(lambda: told() == set(range(MOST_TOLD)))  # each has its turn
    teller.cancel()
    assert max(len(msgspec.json.encode(each)) for each in daemon.reports) < 64 * 1024


async def test_the_last_second_is_told_at_the_end(ends, daemon):
    """Tell of a connection that was over before the daemon had looked."""
    await ends.start()
    teller = CarriedTeller(Path("/nowhere"), ends.carried, "gw")
    await teller.report_last()
    assert daemon.reports == []
    reader, writer = await ends.forward(await ends.origin(sink))
    writer.write(b"abc")
    writer.write_eof()
    assert await reader.read() == b"3"
    writer.close()
    await teller.report_last()
    [report] = daemon.reports
    [one] = report.connections
    assert (one.bytes_up, one.bytes_down) == (3, 1)
