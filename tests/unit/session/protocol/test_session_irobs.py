"""IROBs of two cores: labels, orders, abandonment, and thunks."""

import pytest

from cedos.errors import SessionError
from cedos.session.protocol.frames import Extent
from cedos.session.protocol.life import SessionLimits, ThunkReady
from cedos.session.protocol.room import IROB_COST
from cedos.session.protocol.sender import DEFERRED, NO_ROOM
from cedos.session.protocol.unpacking import unpack


def test_delivery_prefers_labels_and_respects_orders(cores):
    one, other = cores.pair()
    first = one.send(b"bulk", 3, after=())
    one.send(b"after bulk", 0, after=(first,))
    one.send(b"free", 1, after=())
    one.send(b"plain", 0)
    cores.pump(one, other)
    assert [data for _, data in cores.messages(other)] == [
        b"free",
        b"bulk",
        b"after bulk",
        b"plain",
    ]


def test_an_open_irob_is_delivered_when_it_ends_and_not_when_it_is_abandoned(cores):
    one, other = cores.pair()
    kept, dropped = one.begin(2, after=()), one.begin(2, after=())
    for irob in (kept, dropped):
        assert one.append(irob, b"a" * 10_000) == 10_000
    waiting = one.send(b"w", 0, after=(kept, dropped))
    assert waiting > dropped
    cores.pump(one, other)
    assert cores.messages(other) == []
    one.abandon(dropped)
    one.end(kept)
    cores.pump(one, other)
    assert cores.messages(other) == [(2, b"a" * 10_000), (0, b"w")]
    other.tick(1.0)
    cores.pump(one, other)
    assert one.sender.replay.held_bytes == 0
    assert one.sender.credit.reserved == 10_000 + 1 + 2 * IROB_COST
    with pytest.raises(SessionError, match="not open"):
        one.append(kept, b"more")


def test_irobs_that_wait_for_each_other_never_lock_up(cores):
    """Later ones fill the window but for the spare, which is for the one they all wait for."""
    limits = SessionLimits(irob_window=655_360, irob_bytes=262_144)
    one, other = cores.pair(limits=limits)
    lowest = one.begin(3, after=())
    count = 0
    while one.send(b"y" * 4_000, 0) != NO_ROOM:
        count += 1
    assert count > 50
    cores.pump(one, other)
    assert cores.messages(other) == []
    assert one.append(lowest, b"z" * 262_144) == 262_144
    one.end(lowest)
    cores.pump(one, other)
    assert len(cores.messages(other)) == count + 1
    cores.pump(one, other)
    assert one.send(b"again", 0) > 0


def test_an_irob_beyond_what_the_peer_takes_is_refused_at_once(cores):
    one, _ = cores.pair(limits=SessionLimits(irob_bytes=300_000))
    with pytest.raises(SessionError, match="300001"):
        one.send(bytes(300_001), 3)
    irob = one.begin(3)
    with pytest.raises(SessionError, match="beyond"):
        one.append(irob, bytes(300_001))
    with pytest.raises(SessionError, match="wait for"):
        one.send(b"x", 0, after=(irob + 7,))


def test_what_nearly_fills_a_record_is_neither_cut_nor_copied(cores):
    limits = SessionLimits(irob_window=655_360, irob_bytes=262_144)
    one, other = cores.pair(limits=limits)
    sent = [bytes([number]) * 66_000 for number in range(5)]
    for data in sent:
        assert one.send(memoryview(data), 1, after=(), head=b"head ")
    for data in sent:
        record = b"".join(one.next_record(1, 70_000, 0.0))
        (extent,) = [each for each in unpack(record) if isinstance(each, Extent)]
        assert (extent.offset, extent.end, len(extent.payload)) == (0, True, 66_005)
        other.receive(1, record, 0.0)
        run = other.receive_run()
        assert run.payloads == [b"head " + data]
        assert run.payloads[0].obj is record
    cores.pump(one, other)
    other.tick(1.0)
    cores.pump(one, other)
    assert one.sender.replay.held_bytes == other.held_bytes == 0


def test_thunks_wait_for_an_appropriate_network_and_can_be_cancelled(cores):
    one, other = cores.pair()
    one.allow(1, 0b0111, 0.0)
    cores.pump(one, other)
    assert one.send(b"poll", 3, thunk=7) == DEFERRED
    assert one.begin(3, thunk=8) == DEFERRED
    assert one.send(b"urgent", 0, thunk=9) > 0
    assert one.cancel_thunk(8)
    assert not one.cancel_thunk(8)
    assert one.events() == []
    cores.up(one, other, path=2)
    assert one.events() == [ThunkReady(7)]
    assert one.send(b"poll", 3, thunk=7) > 0
    cores.pump(one, other)
    cores.pump(one, other, path=2)
    assert [data for _, data in cores.messages(other)] == [b"urgent", b"poll"]
