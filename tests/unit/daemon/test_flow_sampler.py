"""The flow sampler: when it looks at sockets, and whom it tells."""

import asyncio

import pytest
from kit.controller import KEY, Script, ScriptedDriver, size_of

from cedos.controller.events import FlowOpened, FlowSample, FlowsSampled, PingEnded, SizeLearned
from cedos.daemon.flows import FlowSampler
from cedos.model import Direction

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
        part = self
        self.subject = FlowSampler(part, self.driver, part, part)

    async def looks(self):
        """A look that the controller asks for; its event."""
        before = len(self.driver.posted)
        self.subject.look()
        for _ in range(10):
            await asyncio.sleep(0)
        event = self.driver.posted[before]
        assert isinstance(event, FlowsSampled)
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

    def progressed(self, key, down, up):
        return [SizeLearned(key, Direction.DOWN, size_of(2 * down, "progress"))]


@pytest.fixture
async def sockets():
    made = Sockets()
    running = asyncio.create_task(made.subject.run())
    yield made
    running.cancel()


async def test_where_nothing_lives_no_socket_is_looked_at(sockets):
    assert not (await sockets.looks()).looked
    assert sockets.snapshots == 0
    # A pending ping is waited for where pings were ever answered.
    sockets.pinged = {"wlan0": 9.0}
    assert not (await sockets.looks()).looked
    sockets.script.tell(PingEnded("wlan0", 0.02, 8.5, 8.52))
    event = await sockets.looks()
    assert event.looked
    assert event.asked_at_s == {"wlan0": 9.0}


async def test_a_look_is_told_to_all_and_what_carried_more_has_another_size(sockets):
    sockets.script.tell(FlowOpened(KEY, 9.0, 1.0), at_s=9.0)
    event = await sockets.looks()
    assert event.samples == (SAMPLE,)
    learned = sockets.driver.posted[-1]
    assert learned == SizeLearned(
        KEY, Direction.DOWN, size_of(100_000, "progress"), progressed=True
    )


async def test_a_look_that_fails_is_none_and_the_next_one_comes(sockets):
    sockets.script.tell(FlowOpened(KEY, 9.0, 1.0), at_s=9.0)
    sockets.fails = True
    assert not (await sockets.looks()).looked
    assert sockets.script.controller.next_timer_s() is not None
    sockets.fails = False
    assert (await sockets.looks()).looked
