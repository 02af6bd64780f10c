"""Flows and packets on their way from the kernel to the controller."""

import asyncio
import math
from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from kit.controller import KEY, SERVER, TOKEN, Script, ScriptedDriver, size_of

from cedos.controller import events as on
from cedos.controller.commands import ForgetFlow, MoveConnection, RecordFlow
from cedos.daemon.flows import FlowEvents, PacketHandler
from cedos.host.profiler.profiler import Profiler
from cedos.model import Direction, FlowKey, FlowSample


class Host:
    """A monitor that tells what a test says, and who is told of it."""

    def __init__(self):
        self.script = Script()
        self.driver = ScriptedDriver(self.script)
        self.profiler = Profiler()
        self.read_before_s = []
        self.marks = {}
        self._events = []
        self.subject = FlowEvents(
            driver=self.driver,
            monitor=self,
            steering=None,
            observer=None,
            profiler=self.profiler,
            packets=SimpleNamespace(read_before=self.read_before_s.append),
            history=None,
        )

    async def tells(self, *events):
        self._events = list(events)
        await self.subject.follow_flows()
        for command in self.driver.commands(RecordFlow):
            self.subject.keep(command.record)

    async def events(self):
        for event in self._events:
            yield event

    async def mark(self, key):
        return self.marks.get(key)


async def test_the_first_opening_to_a_destination_is_told_with_what_is_known_of_that():
    host = Host()
    host.profiler.history.learn(str(SERVER), 80, Direction.DOWN, 4_000_000)
    further = replace(KEY, local_port=4002)
    await host.tells(on.FlowOpened(KEY, 9.0, 100.0), on.FlowOpened(further, 9.0, 100.0))
    opened = [each for each in host.driver.posted if isinstance(each, on.FlowOpened)]
    assert [(each.key, each.mark) for each in opened] == [(KEY, None), (further, None)]
    sizes = [each for each in host.driver.posted if isinstance(each, on.SizesKnown)]
    assert [(each.remote, each.port, *each.sizes) for each in sizes] == [
        (SERVER, 80, Direction.DOWN)
    ]


async def test_nobody_remembers_a_connection_of_two_subflows_that_has_ended():
    """Of the second one the profiler kept what it had begun to: 2 kB each, 7 MB after an hour."""
    host = Host()
    second = replace(KEY, local=ip_address("10.1.0.2"))
    for key in (KEY, second):
        await host.tells(on.FlowOpened(key, 9.0, 100.0))
        host.driver.post(on.SubflowJoined(TOKEN, key, False))
    assert len(host.profiler) == 2
    await host.tells(*(on.FlowClosed(key, 102.0, 5_000, 500, at_s=9.5) for key in (second, KEY)))
    assert (len(host.script.controller.flows), len(host.profiler)) == (0, 0)
    assert host.read_before_s == [9.5, 9.5], "the flow's last message may still wait"


async def test_a_flow_that_was_none_is_forgotten_by_the_profiler():
    host = Host()
    key = FlowKey(KEY.local, 4000, SERVER, 443, "udp")
    await host.tells(on.FlowOpened(key, 9.0, 100.0))
    host._events = [on.FlowClosed(key, 102.0, 0, 500, at_s=40.0)]
    await host.subject.follow_flows()
    for command in host.driver.commands(ForgetFlow):
        host.profiler.forget(command.key)
    assert len(host.profiler) == 0


SAMPLE = FlowSample(KEY, 10.0, 1, None, 0.02, 0.02, None, 50_000, 300, 0, 0.01, 0, idle_ack_s=0.1)


class Sockets:
    """The kernel's sockets, and the profiler that is told of them."""

    def __init__(self):
        self.script = Script(rescue=False)
        self.driver = ScriptedDriver(self.script)
        self.samples = [SAMPLE]
        self.fails = False
        self.pinged = {}
        self.snapshots = 0
        self.prober = self
        self.subject = FlowEvents(
            driver=self.driver,
            monitor=self,
            steering=None,
            observer=self,
            profiler=self,
            packets=None,
            history=None,
        )

    async def looks(self):
        """A look that the controller asks for; its event."""
        before = len(self.driver.posted)
        self.subject.look()
        for _ in range(10):
            await asyncio.sleep(0)
        event = self.driver.posted[before]
        assert isinstance(event, on.FlowsSampled)
        return event

    async def snapshot(self):
        self.snapshots += 1
        if self.fails:
            raise OSError("no buffer space")
        return self.samples

    def asked_at_s(self):
        return self.pinged

    def follow_heard(self):
        assert self.driver.posted, "the controller heard it first"

    def on_progress(self, key, down, up):
        return [on.SizeLearned(key, Direction.DOWN, size_of(2 * down, "progress"))]


@pytest.fixture
async def sockets():
    made = Sockets()
    running = asyncio.create_task(made.subject.follow_looks())
    yield made
    running.cancel()


async def test_where_nothing_lives_no_socket_is_looked_at(sockets):
    assert not (await sockets.looks()).looked
    assert sockets.snapshots == 0
    # A pending ping is waited for where pings were ever answered.
    sockets.pinged = {"wlan0": 9.0}
    assert not (await sockets.looks()).looked
    sockets.script.tell(on.PingEnded("wlan0", 0.02, 8.5, 8.52))
    event = await sockets.looks()
    assert event.looked
    assert event.asked_at_s == {"wlan0": 9.0}


async def test_a_look_is_told_to_all_and_what_carried_more_has_another_size(sockets):
    sockets.script.tell(on.FlowOpened(KEY, 9.0, 1.0), at_s=9.0)
    event = await sockets.looks()
    assert event.samples == (SAMPLE,)
    learned = sockets.driver.posted[-1]
    assert learned == on.SizeLearned(
        KEY, Direction.DOWN, size_of(100_000, "progress"), progressed=True
    )


async def test_a_look_that_fails_is_none_and_the_next_one_comes(sockets):
    sockets.script.tell(on.FlowOpened(KEY, 9.0, 1.0), at_s=9.0)
    sockets.fails = True
    assert not (await sockets.looks()).looked
    assert sockets.script.controller.next_timer_s() is not None
    sockets.fails = False
    assert (await sockets.looks()).looked


HOME, FAR = KEY.local, KEY.remote
PLAIN, FIXED, MOVABLE = (FlowKey(HOME, port, FAR, 443) for port in (4000, 4001, 4002))


class Packet(NamedTuple):
    key: FlowKey
    outgoing: bool = False
    interface: str = "wlan0"


class Wire:
    """A capture whose packets each reveal 5 MB, and the profiler that sees them."""

    def __init__(self, **learned):
        self.script = Script()
        self.packets = []
        self.seen = []
        self._learned = learned
        self.driver = ScriptedDriver(self.script)
        me = self
        self.handler = PacketHandler(me, me, self.driver)

    def brings(self, *packets):
        self.packets = list(packets)
        self.handler.read_before(math.inf)

    def read(self, limit):
        packets, self.packets = self.packets, []
        return packets

    def observe(self, packet, now_s):
        self.seen.append(packet)
        return [on.SizeLearned(packet.key, Direction.DOWN, size_of(5_000_000), **self._learned)]

    def has_seen(self, key):
        return False


def test_only_connections_that_can_move_are_decided_on_again():
    wire = Wire()
    wire.script.tell(on.FlowOpened(PLAIN, 9.0, 101.0), at_s=9.0)
    wire.script.connection(FIXED, token=7)
    wire.script.connection(MOVABLE, token=8, movable=True)
    wire.brings(*(Packet(key) for key in (PLAIN, FIXED, MOVABLE)))
    assert [each.token for each in wire.driver.commands(MoveConnection)] == [8]
    for key in (PLAIN, FIXED, MOVABLE):  # what was learned is known of all of them
        transfer = wire.script.flow(key).transfer
        assert transfer.size == size_of(5_000_000)


def test_answers_that_nobody_asked_for_teach_nothing():
    wire = Wire()
    # An answer may come a moment before its flow is told of: it is kept.
    wire.brings(
        *(Packet(FlowKey(HOME, port, FAR, 80)) for port in range(1000, 1200)), Packet(PLAIN)
    )
    assert wire.seen == []
    wire.script.tell(on.FlowOpened(PLAIN, 9.0, 101.0))
    wire.brings(Packet(FIXED))
    assert wire.seen == [Packet(PLAIN)]


def test_a_message_on_any_subflow_is_of_the_connection():
    wire = Wire()
    wire.script.connection(PLAIN)
    wire.script.connection(FIXED)
    wire.brings(Packet(FIXED))
    assert wire.seen == [Packet(PLAIN)]


def test_what_goes_over_loopback_is_not_followed():
    """Two flows stayed of each request to a proxy of this host, up to 8192 (16 MB)."""
    wire = Wire()
    far = Packet(PLAIN, outgoing=True)
    wire.brings(Packet(FlowKey(HOME, 4004, HOME, 1080), outgoing=True, interface="lo"), far)
    assert wire.seen == [far]


@pytest.mark.parametrize(("after_s", "named"), [(0.02, True), (3.0, False)])
def test_a_hello_that_is_read_before_its_flow_is_told_of_names_it(after_s, named):
    """Openings are gathered for 20 ms: a request within them showed as "SERVER -"."""
    wire = Wire(server_name="a.example", tls=True)
    wire.brings(Packet(PLAIN, outgoing=True))
    opened_s = wire.script.now_s + after_s
    wire.script.tell(on.FlowOpened(PLAIN, opened_s, 101.0), at_s=opened_s)
    flow = wire.script.flow(PLAIN)
    assert (flow.server_name, flow.tls) == (("a.example", True) if named else (None, False))
