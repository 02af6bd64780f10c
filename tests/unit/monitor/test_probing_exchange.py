"""Trains and transfers over loopback, with a server that serves, and with one that does not."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from cedos.errors import HostError
from cedos.model import Address, Direction
from cedos.monitor.probing import tcp_probe, train, wire
from cedos.monitor.probing.dispersion import INDICATORS
from cedos.monitor.probing.limits import Limits
from cedos.monitor.probing.result import Outcome, ProbeServer
from cedos.monitor.probing.server import ProbeServing
from cedos.monitor.probing.server_tcp import TcpSide

pytestmark = pytest.mark.anyio

HERE = ip_address("127.0.0.1")
KEY = b"k" * 32
LIMITS = (100e6, 1e9)
BOTH = list(Direction)
Received = Callable[[bytes, tuple[str, int]], list[bytes]]


@asynccontextmanager
async def serving(**limits: float) -> AsyncIterator[tuple[ProbeServing, ProbeServer]]:
    held = Limits(*LIMITS) if not limits else Limits(**limits)  # type: ignore[arg-type]
    async with ProbeServing(HERE, 0, KEY, held) as server:
        yield server, ProbeServer(HERE, server.port, KEY, packets=40, tcp_bytes=50_000)


async def measured(
    server: ProbeServer, direction: Direction = Direction.DOWN, timeout_s: float = 2.0
) -> Outcome:
    """A train; it keeps its time limit, whatever happens."""
    started_s = time.monotonic()
    outcome = await train.run(server, interface="lo", direction=direction, timeout_s=timeout_s)
    assert time.monotonic() - started_s < timeout_s + 0.5
    assert bool(outcome.problem) != bool(outcome.indicators)
    return outcome


async def test_a_free_port_is_free_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first port that UDP is given is somebody else's for TCP."""
    taken: list[socket.socket] = []
    start = TcpSide.start

    async def meet_somebody(self: TcpSide, address: Address, port: int) -> None:
        if not taken:
            taken.append(socket.create_server((str(address), port)))
        await start(self, address, port)

    monkeypatch.setattr(TcpSide, "start", meet_somebody)
    async with serving() as (running, server):
        assert running.port != taken[0].getsockname()[1]
        outcome = await measured(server)
        assert outcome.problem == ""
        with pytest.raises(HostError, match="port"):  # a certain port is not exchanged for another
            async with ProbeServing(HERE, running.port, KEY, Limits(*LIMITS)):
                pass
    taken[0].close()


@pytest.mark.parametrize("direction", BOTH)
async def test_a_train_is_measured_and_paid_for(direction: Direction) -> None:
    async with serving() as (running, server):
        outcome = await measured(server, direction)
        assert outcome.problem == ""
        assert set(outcome.indicators) == set(INDICATORS)
        assert outcome.indicators["udp_loss"] == 0
        assert 1e6 < outcome.indicators["udp_bps"] < 1e12
        carried = 40 * 1228
        bulk, rest = outcome.spent.bytes_down, outcome.spent.bytes_up
        if direction is Direction.UP:
            bulk, rest = rest, bulk
        assert carried < bulk < carried + 500
        assert 0 < rest < 1000
        assert outcome.rtt_s is not None
        assert running.counts[f"trains {direction}"] == 1


@pytest.mark.parametrize("direction", BOTH)
async def test_a_transfer_is_measured_and_paid_for(direction: Direction) -> None:
    async with serving() as (_, server):
        outcome = await tcp_probe.run(server, interface="lo", direction=direction)
        assert outcome.problem == ""
        assert outcome.indicators["tcp_bps"] > 1e6
        assert 0 <= outcome.indicators["tcp_connect_s"] < 1
        spent = outcome.spent
        bulk, rest = spent.bytes_down, spent.bytes_up
        if direction is Direction.UP:
            bulk, rest = rest, bulk
        assert 50_000 < bulk < 60_000
        assert 0 < rest < 10_000


@pytest.mark.parametrize("direction", BOTH)
async def test_another_key_gets_no_answer_and_no_figures(direction: Direction) -> None:
    async with serving() as (running, server):
        stranger = replace(server, key=b"x" * 32)
        outcome = await measured(stranger, direction, 0.4)
        assert outcome.problem == "no answer in time (greeting)"
        assert outcome.spent.bytes_down == 0
        assert running.counts["datagrams without the key"] >= 1
        tcp = await tcp_probe.run(stranger, interface="lo", direction=direction, timeout_s=1.0)
        assert tcp.problem == "the server closed the connection"
        assert tcp.indicators == {}
        assert running.counts["connections without the key"] == 1


async def test_a_server_that_is_gone() -> None:
    async with serving() as (_, server):
        pass
    outcome = await measured(server, timeout_s=0.4)
    assert "no answer" in outcome.problem or "refused" in outcome.problem
    tcp = await tcp_probe.run(server, interface="lo", timeout_s=0.4)
    assert tcp.problem == "lo: Connection refused"


async def test_an_interface_that_is_gone() -> None:
    server = ProbeServer(HERE, 9, KEY)
    assert (await train.run(server, interface="none0")).problem == "none0: No such device"
    assert (await tcp_probe.run(server, interface="none0")).problem == "none0: No such device"


async def test_limits_are_told_with_their_end() -> None:
    async with serving(source_bps=8 * 50_000, total_bps=1e9, burst_s=2.0) as (running, server):
        assert not (await measured(server)).problem
        assert not (await measured(server)).problem
        refused = await measured(server)
        assert "this source's rate limit is used up (again in" in refused.problem
        huge = await measured(replace(server, packets=200))
        assert "larger than the server allows" in huge.problem
        tcp = await tcp_probe.run(server, interface="lo")
        assert tcp.problem == "the server refuses: this source's rate limit is used up"
        assert running.counts["refused, this source's rate limit is used up"] == 2


@pytest.mark.parametrize(
    ("packets", "packet_bytes"), [(1, 1200), (201, 1200), (60_000, 64), (50, 63), (50, 1453)]
)
async def test_absurd_trains_are_refused(packets: int, packet_bytes: int) -> None:
    async with serving() as (_, server):
        absurd = replace(server, packets=packets, packet_bytes=packet_bytes)
        assert "larger than the server allows" in (await measured(absurd)).problem


@pytest.fixture
async def talk() -> AsyncIterator[Callable[..., "Talker"]]:
    talkers: list[Talker] = []

    def make(port: int, bound: str = "127.0.0.1") -> Talker:
        talkers.append(Talker(port, bound))
        return talkers[-1]

    yield make
    for talker in talkers:
        talker.socket.close()


class Talker:
    """A client without manners: says what it is told, and keeps what it hears."""

    def __init__(self, port: int, bound: str = "127.0.0.1") -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind((bound, 0))
        self.socket.connect(("127.0.0.1", port))

    async def say(self, data: bytes, wait_s: float = 0.15) -> list[bytes]:
        """Everything that comes within some time; the port stays its own."""
        self.socket.send(data)
        await asyncio.sleep(wait_s)
        heard = []
        while True:
            try:
                heard.append(self.socket.recv(2048))
            except BlockingIOError:
                return heard


async def test_nothing_begins_without_the_round_trip_and_nothing_begins_twice(
    talk: Callable[..., Talker],
) -> None:
    async with serving() as (running, server):
        session = b"s" * 16
        talker = talk(server.port)
        forged = wire.Ask(session, b"c" * 16, Direction.DOWN, 40, 1200)
        assert await talker.say(wire.encode(forged, KEY)) == []
        (answer,) = await talker.say(wire.encode(wire.Hello(session), KEY))
        cookie = wire.decode(answer, KEY)
        assert isinstance(cookie, wire.Cookie)
        ask = wire.encode(replace(forged, cookie=cookie.cookie), KEY)
        # From another port or host it is worth nothing.
        assert await talk(server.port).say(ask) == []
        assert await talk(server.port, "127.0.0.2").say(ask) == []
        assert len(await talker.say(ask)) == 40
        assert await talker.say(ask) == []
        assert running.counts["trains down"] == 1
        assert running.counts["stale or foreign cookies"] == 3


async def test_what_a_server_says_cannot_be_thrown_back_at_it(
    talk: Callable[..., Talker],
) -> None:
    async with serving() as (running, server):
        talker = talk(server.port)
        (cookie,) = await talker.say(wire.encode(wire.Hello(b"s" * 16), KEY))
        assert await talker.say(cookie) == []
        train_down = wire.encode(wire.TrainDown(b"s" * 16, 0, 40), KEY, 1200)
        assert await talker.say(train_down) == []
        assert await talker.say(wire.encode(wire.Done(b"s" * 16), KEY)) == []
        assert running.counts["reports about nothing"] == 1


@asynccontextmanager
async def liar(answer: Received) -> AsyncIterator[ProbeServer]:
    """A server that answers each datagram with what `answer` makes of it."""

    class Protocol(asyncio.DatagramProtocol):
        def connection_made(self, transport: Any) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, source: tuple[str, int]) -> None:
            for each in answer(data, source):
                self.transport.sendto(each, source)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
    try:
        port = transport.get_extra_info("sockname")[1]
        yield ProbeServer(HERE, port, KEY, packets=10, packet_bytes=200)
    finally:
        transport.close()


def lying(train_of: Callable[[wire.Ask], list[bytes]], key: bytes = KEY) -> Received:
    """Greets as it should; then answers an ASK by `train_of`."""

    def answer(data: bytes, source: tuple[str, int]) -> list[bytes]:
        message = wire.decode(data, KEY)
        if isinstance(message, wire.Hello):
            return [wire.encode(wire.Cookie(message.session, b"c" * 16), key)]
        if isinstance(message, wire.Ask):
            return train_of(message)
        if isinstance(message, wire.Done):
            return train_of(wire.Ask(message.session, b"", Direction.UP, 10, 200))
        return []

    return answer


def packets(session: bytes, count: int = 10, size: int = 200, key: bytes = KEY) -> list[bytes]:
    return [
        wire.encode(wire.TrainDown(session, n, count), key, size) for n in range(min(count, 50))
    ]


LIES: dict[str, tuple[Received, str]] = {
    "wrong key": (lying(lambda ask: [], key=b"x" * 32), "not signed with this key (greeting)"),
    "an echo": (lambda data, source: [data], "no answer in time (greeting)"),
    "nothing after the greeting": (lying(lambda ask: []), "no answer in time (train)"),
    "packets with a wrong key": (
        lying(lambda ask: packets(ask.session, key=b"x" * 32)),
        "not signed with this key (train)",
    ),
    "an earlier train": (lying(lambda ask: packets(b"r" * 16)), "not signed with this key (train)"),
    "another count": (lying(lambda ask: packets(ask.session, 60_000)), "not signed"),
    "another size": (lying(lambda ask: packets(ask.session, size=100)), "not signed"),
    "truncated": (lying(lambda ask: [p[:150] for p in packets(ask.session)]), "not signed"),
    "one packet, many times": (
        lying(lambda ask: packets(ask.session)[:1] * 30),
        "fewer than two of the train's packets arrived",
    ),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_train_that_is_a_lie_ends_as_a_problem(lie: str) -> None:
    answer, said = LIES[lie]
    async with liar(answer) as server:
        outcome = await measured(server, timeout_s=0.5)
        assert said in outcome.problem


def reporting(make: Callable[[bytes], wire.Report]) -> Received:
    """READY for an ASK, and a report for a DONE."""
    return lying(
        lambda ask: [wire.encode(wire.Ready(ask.session) if ask.cookie else make(ask.session), KEY)]
    )


REPORTS: dict[str, Callable[[bytes], wire.Report]] = {
    "more packets than were sent": lambda session: wire.Report(
        session, 2200, 0.001, tuple((n, n / 1e6) for n in range(11))
    ),
    "more bytes than packets": lambda session: wire.Report(
        session, 20_000, 0.001, tuple((n, n / 1e6) for n in range(10))
    ),
    "longer than it took": lambda session: wire.Report(
        session, 2000, 99.0, tuple((n, float(n)) for n in range(10))
    ),
    "nothing came": lambda session: wire.Report(session, 0, 0.0, ()),
    "all at once": lambda session: wire.Report(
        session, 2000, 0.001, tuple((n, 0.0) for n in range(10))
    ),
}


@pytest.mark.parametrize("lie", REPORTS)
async def test_a_report_that_is_a_lie_ends_as_a_problem(lie: str) -> None:
    async with liar(reporting(REPORTS[lie])) as server:
        outcome = await measured(server, Direction.UP, 0.5)
        assert "cannot be" in outcome.problem or "fewer than two" in outcome.problem


@pytest.mark.parametrize("slowly_s", [0.0, 0.1])
async def test_a_server_that_reports_a_thousand_times_the_rate_is_not_believed(
    slowly_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every packet within a microsecond: what this end saw of it is the bound, with some room."""
    send = train._Exchange._send

    async def slow(self: Any, message: wire.Message, size_bytes: int = 0) -> None:
        await send(self, message, size_bytes)
        if size_bytes:
            await asyncio.sleep(slowly_s / 10)

    monkeypatch.setattr(train._Exchange, "_send", slow)
    lie = reporting(
        lambda session: wire.Report(session, 2000, 0.001, tuple((n, n / 1e6) for n in range(10)))
    )
    began_s = time.monotonic()
    async with liar(lie) as server:
        outcome = await measured(server, Direction.UP, 5.0)
    took_s = time.monotonic() - began_s
    assert outcome.problem == ""
    bits = 10 * 8 * 228
    said_bps = 8 * 228 / 1e-6
    told = outcome.indicators
    assert told["udp_bps"] <= 4 * bits / max(slowly_s, 1e-9)
    assert told["udp_bps"] == told["udp_max_bps"] < said_bps
    assert told["udp_bps"] >= 4 * bits / took_s, "nor less than could be"


async def test_a_slow_server_is_measured_as_far_as_it_came() -> None:
    async with liar(lying(lambda ask: packets(ask.session)[:5])) as server:
        outcome = await measured(server, timeout_s=0.5)
        assert outcome.indicators["udp_loss"] == 0.5
        # The four packets after the first in nearly half a second, not in the instant that they took.
        assert outcome.indicators["udp_bps"] < 4 * 8 * 228 / 0.3


async def test_a_clock_that_is_set_meanwhile_spoils_the_train(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(train.Datagrams, "clock_moved_s", 0.5)
    async with serving() as (_, server):
        assert (await measured(server)).problem == "the host's clock was set during the train"


TCP_LIES: dict[str, tuple[Callable[[wire.Request], bytes], str]] = {
    "a grant with a wrong key": (
        lambda request: wire.encode(wire.Grant(request.session), b"x" * 32),
        "not signed with this key",
    ),
    "a grant of another session": (
        lambda request: wire.encode(wire.Grant(b"r" * 16), KEY),
        "not signed with this key",
    ),
    "the end too soon": (
        lambda request: wire.encode(wire.Grant(request.session), KEY) + bytes(100),
        "closed 900 bytes before the end",
    ),
    "another end": (
        lambda request: (
            wire.encode(wire.Grant(request.session), KEY)
            + bytes(1000)
            + wire.encode(wire.End(request.session, 999), KEY)
        ),
        "does not vouch for all of the bytes",
    ),
    "no end": (
        lambda request: wire.encode(wire.Grant(request.session), KEY) + bytes(1000),
        "closed the connection",
    ),
}


@pytest.mark.parametrize("lie", [*TCP_LIES, "silence"])
async def test_a_transfer_that_is_a_lie_ends_as_a_problem(lie: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if lie != "silence":
            writer.write(wire.encode(wire.Challenge(b"n" * 16), b""))
            request = wire.decode(await reader.readexactly(wire.REQUEST_BYTES), KEY)
            assert isinstance(request, wire.Request)
            writer.write(TCP_LIES[lie][0](request))
        else:
            await reader.read()
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        server = ProbeServer(HERE, port, KEY, tcp_bytes=1000)
        outcome = await tcp_probe.run(server, interface="lo", timeout_s=0.5)
        said = "not done within 0.5 s" if lie == "silence" else TCP_LIES[lie][1]
        assert said in outcome.problem
        assert outcome.indicators == {}
        await asyncio.sleep(0.05)
