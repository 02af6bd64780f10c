"""A small message past all queues: only where nothing is in its way, and never lost."""

import asyncio

import pytest

from cedos.session.io.driver import Waiter
from cedos.session.protocol import schedulers
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.session import Session

URGENT, BULK = 0, 3


def pair():
    """Two sessions with one path, who have said what there is to say."""
    one, other = (Session(schedulers.scheduler(), 0.0, keep_alive_s=60) for _ in range(2))
    for each in (one, other):
        each.path_up(1, PathFacts(), 0.0)
    for _ in range(3):
        pump(one, other, 1, 0.0)
        pump(other, one, 1, 0.0)
    return one, other


def pump(one, other, path, now):
    records = 0
    while parts := one.next_record(path, 65_536, now):
        other.receive(path, b"".join(parts), now)
        records += 1
    return records


def at_once(one, data, now, rank=URGENT):
    """The record that goes at once; None where it may not."""
    path = one.fast_path.path(len(data), rank)
    made = None if path is None else one.fast_path.send(data, rank)
    if path is None or made is None:
        return None
    one.fast_path.on_sent(path, made[0], data, rank, now)
    return made[1]


def received(core):
    found = []
    while (run := core.receive_run()) is not None:
        found += run.payloads
    return found


def test_it_arrives_like_any_other_and_in_order_with_them():
    one, other = pair()
    record = at_once(one, b"first", 0.001)
    assert record is not None
    one.send(b"second", URGENT)
    pump(one, other, 1, 0.002)
    assert received(other) == []  # it waits for the first one
    other.receive(1, record, 0.003)
    assert received(other) == [b"first", b"second"]


def test_whatever_else_there_is_to_send_or_to_say_goes_first():
    one, other = pair()
    assert at_once(one, b"x" * 4_097, 0.0) is None
    assert at_once(one, b"background", 0.0, BULK) is None
    one.write(b"bulk")
    assert at_once(one, b"behind the bulk", 0.0) is None
    pump(one, other, 1, 0.0)
    one.allow(1, 0b1110, 0.0)
    assert at_once(one, b"not let onto the path", 0.0) is None
    one.allow(1, 0b1111, 0.0)
    assert at_once(one, b"behind what the path has to say", 0.0) is None
    pump(one, other, 1, 0.0)
    one.path_up(2, PathFacts(), 0.0)
    assert at_once(one, b"which path?", 0.0) is None
    one.path_lost(2, 0.0)
    pump(one, other, 1, 0.0)
    assert at_once(one, b"now", 0.0) is not None


def test_it_is_sent_again_when_its_path_is_lost_before_or_after():
    one, other = pair()
    assert at_once(one, b"on its way", 0.0) is not None
    path = one.fast_path.path(4, URGENT)
    assert path is not None
    made = one.fast_path.send(b"lost", URGENT)
    one.path_lost(1, 0.1)  # in the middle of sending it
    one.fast_path.on_sent(path, made[0], b"lost", URGENT, 0.1)
    other.path_lost(1, 0.1)
    for each in (one, other):
        each.path_up(2, PathFacts(), 0.2)
    for _ in range(3):
        pump(one, other, 2, 0.2)
        pump(other, one, 2, 0.2)
    assert received(other) == [b"on its way", b"lost"]


def test_a_ping_pong_takes_its_acknowledgements_along():
    one, other = pair()
    alone = along = 0
    for number in range(1_000):
        now = number * 0.0005
        for sender, receiver in ((one, other), (other, one)):
            record = at_once(sender, b"ball", now)
            if record is None:
                sender.send(b"ball", URGENT)
                along += pump(sender, receiver, 1, now)
            else:
                receiver.receive(1, record, now)
            assert received(receiver) == [b"ball"]
            due_at = sender.next_timer()
            if due_at is not None and due_at <= now:
                sender.tick(now)
                alone += pump(sender, receiver, 1, now)
    assert alone == 0
    assert 100 < along < 250  # both, every 5 ms, for half a second
    assert one.sender.replay.held_bytes < 200


@pytest.mark.parametrize("at_once", [True, False])
async def test_who_waits_goes_on_at_once_where_that_is_right(at_once):
    loop = asyncio.get_running_loop()
    waiter = Waiter(loop)
    went_on = []

    async def wait():
        await waiter
        went_on.append(True)

    seen = []

    def happened():
        waiter.wake(at_once=at_once)
        seen.append(bool(went_on))
        waiter.wake(at_once=at_once)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    loop.call_soon(happened)
    await task
    assert (went_on, seen) == ([True], [at_once])


async def test_who_waits_can_be_cancelled_and_can_run_out_of_time():
    waiter = Waiter(asyncio.get_running_loop())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await waiter
    waiter.wake(at_once=True)
    other = Waiter(asyncio.get_running_loop())
    other.wake(at_once=True)
    await other
    assert not other.cancel()
