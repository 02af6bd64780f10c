"""The life of sessions: closing, lost state, keep-alive, and control frames between peers."""

import pytest

from cedos.errors import SessionError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import Extent, Messages, Space, StreamData, Sync
from cedos.session.protocol.life import (
    Failed,
    Finished,
    PeerClosed,
    SessionLimits,
    SessionState,
    ThunkReady,
)
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.sender import DEFERRED
from cedos.session.protocol.session import ALL, LOST_STATE
from cedos.session.protocol.unpacking import unpack


def test_both_close_and_know_it(cores):
    one, other = cores.pair()
    one.write(b"last words")
    one.send(b"and an IROB", 0)
    one.close()
    with pytest.raises(SessionError, match="closed"):
        one.write(b"more")
    cores.pump(one, other)
    assert other.events() == [PeerClosed()]
    assert bytes(other.read()) == b"last words"
    assert other.at_eof
    assert other.write(b"mine") == 4  # half open
    other.close()
    cores.pump(one, other)
    assert one.state is other.state is SessionState.FINISHED
    assert Finished() in one.events()
    assert Finished() in other.events()
    assert bytes(one.read()) == b"mine"
    assert cores.messages(other) == [(0, b"and an IROB")]


def test_a_close_whose_answer_was_lost_is_answered_again(cores):
    one, other = cores.pair()
    for each in (one, other):
        each.close()
    other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
    one.receive(1, b"".join(other.next_record(1, 70_000, 0.0)), 0.0)
    one.next_record(1, 70_000, 0.0)  # its Closed is lost with the path
    assert one.state is SessionState.FINISHED
    assert other.state is SessionState.CLOSING
    for each in (one, other):
        each.path_lost(1, 1.0)
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    assert other.state is SessionState.FINISHED


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_peer_that_is_gone_after_all_was_said_is_no_failure(cores, acknowledged):
    one, other = cores.pair()
    for each in (one, other):
        each.close()
    other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
    one.receive(1, b"".join(other.next_record(1, 70_000, 0.0)), 0.0)
    if acknowledged:
        other.receive(1, packing.ack(Space.STREAM, 0, 1, []), 0.0)
    other.peer_forgot()
    assert other.state is (SessionState.FINISHED if acknowledged else SessionState.FAILED)


def test_a_peer_that_forgot_us_is_a_failure_with_the_acknowledged_byte(cores):
    one, other = cores.pair()
    one.write(b"12345")
    cores.pump(one, other)
    other.tick(1.0)
    cores.pump(one, other)
    one.write(b"678")
    one.path_lost(1, 0.0)
    one.peer_forgot()
    failed = one.events()[-1]
    assert isinstance(failed, Failed)
    assert failed.by_peer
    assert failed.acknowledged_bytes == 5
    assert one.sender.replay.held_bytes == 0
    with pytest.raises(SessionError, match="does not know"):
        one.write(b"more")


@pytest.mark.parametrize(
    "sync",
    [
        Sync(0, 1, 4, 1), Sync(0, 1, 5, 0), Sync(9, 1, 5, 1), Sync(0, 4, 5, 1), Sync(0, 1, 99, 1),
        Sync(0, 1, 5, 9),
    ],
)  # fmt: skip
def test_lost_state_is_seen_at_the_first_word_on_a_new_path(cores, sync):
    one, other = cores.pair()
    one.write(b"12345")
    cores.pump(one, other)
    other.tick(1.0)
    cores.pump(one, other)
    one.path_lost(1, 0.0)
    cores.up(one, path=2)
    one.receive(2, packing.pack_fixed(sync), 0.0)
    assert one.failure.acknowledged_bytes == 5
    frames = cores.frames(one.next_record(2, 70_000, 0.0))
    assert frames[0].code == LOST_STATE


def test_without_a_path_a_session_waits_for_its_keep_alive_and_no_longer(cores):
    core = cores.session()
    core.tick(1e9)  # before its first path it waits for ever
    cores.up(core)
    core.tick(2e9)
    core.path_lost(1, 2e9)
    assert core.next_timer() == 2e9 + 100
    core.tick(2e9 + 99.9)
    assert core.failure is None
    core.tick(2e9 + 100)
    assert not core.failure.by_peer


def test_a_session_without_keep_alive_ends_with_its_last_path(cores):
    core = cores.session(keep_alive_s=0)
    cores.up(core)
    core.path_lost(1, 5.0)
    assert core.next_timer() == 5.0
    core.tick(5.0)
    assert core.state is SessionState.FAILED


def test_a_proposal_that_was_lost_is_made_again(cores):
    one, other = cores.pair()
    one.control.propose_keep_alive(77)
    one.next_record(1, 70_000, 0.0)
    for each in (one, other):
        each.path_lost(1, 0.0)
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    assert [each.control.terms.seconds for each in (one, other)] == [77, 77]


def test_facts_reach_the_peer(cores):
    one, other = cores.pair()
    one.path_facts(1, PathFacts(metered=True, rtt_s=0.045, rate_bps=12e6, loss=0.0015), 0.0)
    cores.pump(one, other)
    peer = other.paths[0].peer
    assert (peer.metered, peer.rtt_s, peer.rate_bps, peer.loss) == (True, 0.045, 12e6, 0.0015)


def test_the_streams_label_can_change(cores):
    one, other = cores.pair()
    one.write(b"x" * 1_000)
    one.sender.label_stream(3)
    assert one.backlog.waiting_bytes == [0, 0, 0, 0]
    one.send(b"first", 1, after=ALL)
    sent = [type(each) for each in cores.frames(one.next_record(1, 70_000, 0.0))]
    assert sent == [Messages, StreamData]
    assert other.failure is None


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


def test_an_irob_beyond_what_the_peer_takes_is_refused_at_once(cores):
    one, _ = cores.pair(limits=SessionLimits(irob_bytes=300_000))
    with pytest.raises(SessionError, match="300001"):
        one.send(bytes(300_001), 3)
    with pytest.raises(SessionError, match="wait for"):
        one.send(b"x", 0, after=(7,))


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


def test_thunks_wait_for_an_appropriate_network(cores):
    one, other = cores.pair()
    one.allow(1, 0b0111, 0.0)
    cores.pump(one, other)
    assert one.send(b"poll", 3, thunk=7) == DEFERRED
    assert one.send(b"urgent", 0, thunk=9) > 0
    assert one.events() == []
    cores.up(one, other, path=2)
    assert one.events() == [ThunkReady(7)]
    assert one.send(b"poll", 3, thunk=7) > 0
    cores.pump(one, other)
    cores.pump(one, other, path=2)
    assert [data for _, data in cores.messages(other)] == [b"urgent", b"poll"]
