"""Repairs: what others remove is restored, and what cannot be restored is reported."""

import asyncio
import errno
import threading

import pytest
from kit.steer_kernel import MemoryKernel
from kit.waiting import until

from cedos.host.steer.repairs import HeldSysctls, PacketFilter, Repairs

pytestmark = pytest.mark.jumping


class Repaired:
    def __init__(self):
        self.kernel = MemoryKernel()
        self.filter = PacketFilter(self.kernel)
        self.problems = {}
        self.looks = 0
        self.repairs = Repairs(
            self.filter,
            HeldSysctls(self.kernel, lambda _: None),
            self._look,
            lambda topic, text: self.problems.update({topic: text}),
        )

    def _look(self):
        self.looks += 1

    async def stand(self):
        await self.filter.stand(track=True, rescue=False, on_change=self.repairs.filter_changed)
        await self.filter.do(self.kernel.track_flows)


@pytest.fixture
async def repaired():
    made = Repaired()
    await made.stand()
    running = asyncio.create_task(made.repairs.run())
    yield made
    running.cancel()
    made.filter.close()


async def test_what_is_told_of_is_put_back(repaired):
    await repaired.filter.bar(["lte0"])
    repaired.kernel.filter, repaired.kernel.barred = False, ()
    repaired.kernel.tell_filter()
    await until(lambda: repaired.kernel.barred == ("lte0",) and repaired.kernel.filter)


async def test_a_slow_packet_filter_takes_no_newer_wall_down(repaired, monkeypatch):
    removed, go_on = [], threading.Event()

    def bar(interfaces):
        assert go_on.wait(10)

    monkeypatch.setattr(repaired.kernel, "bar", bar)
    monkeypatch.setattr(repaired.kernel, "remove_wall", lambda but: removed.append(tuple(but)))
    older = asyncio.create_task(repaired.filter.bar(["lte0"]))
    await asyncio.sleep(0)
    newer = asyncio.create_task(repaired.filter.bar(["lte0", "lte1"]))
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(older, newer)
    assert removed == [("lte0", "lte1")] * 2


async def test_what_the_daemon_takes_out_itself_is_not_put_back(repaired, monkeypatch):
    await repaired.filter.hold_answers(True)
    planned = []
    # A repair may hear of the change before the daemon has the answer to its request.
    monkeypatch.setattr(
        repaired.kernel, "hold_answers", lambda on: planned.append(repaired.filter.plan.holds)
    )
    await repaired.filter.hold_answers(False)
    assert planned == [False]

    def refuse(on):
        raise OSError(errno.EPERM, "no")

    monkeypatch.setattr(repaired.kernel, "hold_answers", refuse)
    with pytest.raises(OSError, match="no"):
        await repaired.filter.hold_answers(True)
    assert repaired.filter.plan.holds is False


async def test_without_being_told_it_is_looked_at_each_second():
    made = Repaired()
    made.kernel.tells_filter = False
    await made.stand()
    assert not made.filter.told
    running = asyncio.create_task(made.repairs.run())
    made.kernel.filter = False
    await until(lambda: made.kernel.filter)
    running.cancel()
    made.filter.close()


async def test_a_refusal_is_told_and_it_is_tried_again_until_it_works(repaired):
    repaired.kernel.filter, repaired.kernel.refuses = False, errno.EPERM
    repaired.kernel.tell_filter()
    await until(lambda: repaired.problems.get("repair"))
    assert "the packet filter cannot be put back" in (repaired.problems["repair"] or "")
    repaired.kernel.refuses = 0
    await until(lambda: repaired.kernel.filter and repaired.problems["repair"] is None)


async def test_what_goes_while_a_network_is_being_barred_is_back(repaired, monkeypatch):
    kernel, put_in = repaired.kernel, repaired.kernel.bar
    done, goes_on = threading.Event(), threading.Event()

    def bar(interfaces):
        put_in(interfaces)
        done.set()
        assert goes_on.wait(3.0)

    monkeypatch.setattr(kernel, "bar", bar)
    barring = asyncio.create_task(repaired.filter.bar(["lte0"]))
    await until(done.is_set)
    kernel.filter, kernel.barred = False, ()
    kernel.tell_filter()
    await asyncio.sleep(0.05)
    goes_on.set()
    await barring
    await until(lambda: kernel.barred == ("lte0",) and kernel.filter)


async def test_the_second_wall_does_not_wait_for_iptables(repaired):
    busy = threading.Event()
    waiting = asyncio.create_task(repaired.filter.do(lambda: busy.wait(5)))
    barring = asyncio.create_task(repaired.filter.bar(["lte0"]))
    await asyncio.sleep(0.05)
    assert repaired.kernel.walled == {"lte0"}
    busy.set()
    await asyncio.gather(waiting, barring)
    assert repaired.kernel.walled == {"lte0"}
    repaired.kernel.walled.clear()
    repaired.kernel.tell_filter()
    assert repaired.kernel.walled == {"lte0"}
    # What nobody told of is seen within a second, too.
    repaired.kernel.walled.clear()
    await until(lambda: repaired.kernel.walled == {"lte0"})


async def test_a_wall_that_cannot_be_is_a_problem_while_there_is_something_to_bar(repaired):
    repaired.kernel.no_wall = True
    await repaired.filter.bar(["lte0"])
    repaired.kernel.tell_filter()
    assert "blocked networks have one wall only" in (repaired.problems["wall"] or "")
    await repaired.filter.bar([])
    await until(lambda: repaired.problems["wall"] is None)


async def test_what_is_about_to_be_undone_is_not_put_up_again(repaired):
    await repaired.filter.bar(["lte0"])
    repaired.filter.leave()
    repaired.kernel.remove_wall(())
    repaired.kernel.tell_filter()
    assert not repaired.kernel.walled
