"""The packet handler: sizes in captured packets go to the controller, for flows of this host alone."""

import math
from typing import NamedTuple

import pytest
from kit.controller import KEY, Script, ScriptedDriver, size_of

from cedos.controller.commands import MoveConnection
from cedos.controller.events import FlowOpened, SizeLearned
from cedos.daemon.flows import PacketHandler
from cedos.model import Direction, FlowKey

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
        return [SizeLearned(packet.key, Direction.DOWN, size_of(5_000_000), **self._learned)]

    def knows(self, key):
        return False


def test_only_connections_that_can_move_are_decided_on_again():
    wire = Wire()
    wire.script.tell(FlowOpened(PLAIN, 9.0, 101.0), at_s=9.0)
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
    wire.script.tell(FlowOpened(PLAIN, 9.0, 101.0))
    wire.brings(Packet(FIXED))
    assert wire.seen == [Packet(PLAIN)]


def test_a_message_on_any_subflow_is_of_the_connection():
    wire = Wire()
    wire.script.connection(PLAIN)
    wire.script.connection(FIXED)
    wire.brings(Packet(FIXED))
    assert wire.seen == [Packet(PLAIN)]


def test_what_goes_over_loopback_is_not_followed():
    """Each request to a proxy of this host left two flows, until 8192 stood there (16 MB)."""
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
    wire.script.tell(FlowOpened(PLAIN, opened_s, 101.0), at_s=opened_s)
    flow = wire.script.flow(PLAIN)
    assert (flow.server_name, flow.tls) == (("a.example", True) if named else (None, False))
