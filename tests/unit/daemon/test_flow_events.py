"""Events of flows, as the daemon tells them to the controller and the profiler."""

from dataclasses import replace
from ipaddress import ip_address
from types import SimpleNamespace

from kit.controller import KEY, SERVER, TOKEN, Script, ScriptedDriver

from cedos.controller.commands import ForgetFlow, RecordFlow
from cedos.controller.events import FlowClosed, FlowOpened, SizesKnown, SubflowJoined
from cedos.daemon import flows
from cedos.daemon.flows import FlowEvents
from cedos.host.profiler.profiler import Profiler
from cedos.model import Direction, FlowKey


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


async def test_an_opening_is_told_with_whose_it_is_and_what_is_known_of_its_destination(
    monkeypatch,
):
    host = Host()
    own = replace(KEY, local_port=4002)
    monkeypatch.setattr(flows, "is_own", lambda key: key == own)
    host.profiler.history.learn(str(SERVER), 80, Direction.DOWN, 4_000_000)
    await host.tells(FlowOpened(own, 9.0, 100.0), FlowOpened(KEY, 9.0, 100.0))
    opened = [each for each in host.driver.posted if isinstance(each, FlowOpened)]
    assert [(each.key, each.own, each.mark) for each in opened] == [
        (own, True, None),
        (KEY, False, None),
    ]
    sizes = [each for each in host.driver.posted if isinstance(each, SizesKnown)]
    assert {(each.remote, each.port, *each.sizes) for each in sizes} == {
        (SERVER, 80, Direction.DOWN)
    }


async def test_nobody_remembers_a_connection_of_two_subflows_that_has_ended():
    """Of the second one the profiler kept what it had begun to: 2 kB each, 7 MB after an hour."""
    host = Host()
    second = replace(KEY, local=ip_address("10.1.0.2"))
    for key in (KEY, second):
        await host.tells(FlowOpened(key, 9.0, 100.0))
        host.driver.post(SubflowJoined(TOKEN, key, False))
    assert len(host.profiler) == 2
    await host.tells(*(FlowClosed(key, 102.0, 5_000, 500, at_s=9.5) for key in (second, KEY)))
    assert (len(host.script.controller.flows), len(host.profiler)) == (0, 0)
    assert host.read_before_s == [9.5, 9.5], "the flow's last message may still wait"


async def test_a_flow_that_was_none_is_forgotten_by_the_profiler():
    host = Host()
    key = FlowKey(KEY.local, 4000, SERVER, 443, "udp")
    await host.tells(FlowOpened(key, 9.0, 100.0))
    host._events = [FlowClosed(key, 102.0, 0, 500, at_s=40.0)]
    await host.subject.follow_flows()
    for command in host.driver.commands(ForgetFlow):
        host.subject.forget(command.key)
    assert len(host.profiler) == 0
