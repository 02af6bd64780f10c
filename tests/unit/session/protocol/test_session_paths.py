"""Paths that come, stall and go: nothing is lost, and little is sent twice."""

from itertools import pairwise

import pytest

from cedos.errors import SessionError
from cedos.session.protocol import packing
from cedos.session.protocol.frames import Extent, Messages, Ping, Space, StreamData, Sync
from cedos.session.protocol.path_watch import FREE, PathVoice
from cedos.session.protocol.schedulers import scheduler
from cedos.session.protocol.schedulers.interface import PathDoubt, SendGrant


def test_small_foreground_messages_do_not_wait_when_another_path_is_up(cores):
    one, other = cores.pair()
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    one.send(b"urgent", 0)
    one.send(b"later", 2)
    while one.next_record(1, 70_000, 0.0):
        pass  # lost
    one.path_lost(1, 0.0)
    record = b"".join(one.next_record(2, 70_000, 0.0))
    other.receive(2, record, 0.0)
    sent = cores.frames([record])
    assert [each.payloads for each in sent if type(each) is Messages] == [[b"urgent"]]
    other.path_lost(1, 0.0)
    cores.pump(one, other, path=2)
    assert cores.messages(other) == [(0, b"urgent"), (2, b"later")]


def test_a_rest_that_is_shorter_than_the_names_of_those_before_it_goes_too(cores):
    """SWTC grants what waits, piece by piece; the rest of a message with an order may be four bytes."""

    class Pieces(type(cores.scheduler())):
        def choose(self, *_):
            return SendGrant(0, 4)

    one, other = cores.session(Pieces()), cores.session()
    cores.up(one, other)
    first = one.send(b"first", 0)
    one.send(bytes(100_000), 0, after=(first,))
    cores.pump(one, other)
    assert [len(data) for _, data in cores.messages(other)] == [5, 100_000]


def test_a_scheduler_may_leave_the_next_bytes_to_another_path(cores):
    """SWTC's order: what this slow path gets is what will be needed when it arrives."""
    one, other = cores.session(cores.scheduler(SendGrant(0, 5_000, 10_000), None)), cores.session()
    for path in (1, 2):
        cores.up(one, other, path=path)
    one.write(bytes(20_000))
    late = [
        each for each in cores.frames(one.next_record(1, 70_000, 0.0)) if type(each) is StreamData
    ]
    assert [(each.offset, len(each.payload)) for each in late] == [(10_000, 5_000)]
    rest = []
    while parts := one.next_record(2, 70_000, 0.0):
        rest += [each for each in cores.frames(parts) if type(each) is StreamData]
    assert rest[0].offset == 0
    covered = sorted((each.offset, each.offset + len(each.payload)) for each in rest + late)
    assert covered[0][0] == 0
    assert covered[-1][1] == 20_000
    assert all(left[1] == right[0] for left, right in pairwise(covered))


def test_redundancy_sends_each_byte_on_both_paths_and_the_first_copy_counts(cores):
    one, other = cores.session(cores.scheduler(copies=True)), cores.session()
    for path in (1, 2):
        cores.up(one, other, path=path)
    one.write(bytes(100_000))
    one.send(b"m", 1)
    for path in (1, 2):
        got = []
        while parts := one.next_record(path, 70_000, 0.0):
            got += cores.frames(parts)
            other.receive(path, b"".join(parts), 0.0)
        assert sum(len(each.payload) for each in got if type(each) is StreamData) == 100_000
        assert [each.payloads for each in got if type(each) is Messages] == [[b"m"]]
    assert other.readable_bytes == 100_000
    assert cores.messages(other) == [(1, b"m")]


def test_what_is_on_the_way_elsewhere_is_not_sent_again_when_a_path_is_lost(cores):
    one, other = cores.session(cores.scheduler(copies=True)), cores.session()
    for path in (1, 2):
        cores.up(one, other, path=path)
    one.write(bytes(100_000))
    slow = []
    for path in (1, 2):
        while parts := one.next_record(path, 70_000, 0.0):
            if path == 2:
                slow.append(b"".join(parts))
    sent = one.paths[1].sent_bytes
    for each in (one, other):
        each.path_lost(1, 0.0)
    other.receive(2, slow.pop(0), 0.0)  # with the statement
    one.receive(2, b"".join(other.next_record(2, 70_000, 0.0)), 0.0)
    while parts := one.next_record(2, 70_000, 0.0):
        slow.append(b"".join(parts))
    assert one.paths[0].sent_bytes == sent
    for record in slow:
        other.receive(2, record, 0.0)
    assert other.readable_bytes == 100_000


def test_what_is_acknowledged_while_it_waits_to_be_sent_again_is_left_out(cores):
    one, _ = cores.pair()
    for _ in range(3):
        one.write(b"c" * 1_000)
    one.next_record(1, 70_000, 0.0)
    one.path_lost(1, 0.0)
    cores.up(one, path=2)
    one.receive(2, packing.pack_fixed(Sync(0, 1, 0, 1)), 0.0)
    one.receive(2, packing.ack(Space.STREAM, 0, 1_500, []), 0.0)  # the old path's last bytes
    sent = [
        each for each in cores.frames(one.next_record(2, 70_000, 0.0)) if type(each) is StreamData
    ]
    assert [(each.offset, len(each.payload)) for each in sent] == [(1_500, 1_500)]


def test_single_bytes_do_not_cost_an_object_each(cores):
    one, other = cores.pair()
    for _ in range(5_000):
        one.write(b"x")
        other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
    assert len(other.receiver.stream.ready) <= 5
    assert b"".join(iter(other.read, b"")) == b"x" * 5_000


def test_a_path_that_stalls_gives_its_bytes_to_others_too(cores):
    one, other = cores.pair()
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    one.write(b"x" * 30_000)
    stuck = b"".join(one.next_record(1, 70_000, 0.0))
    one.path_voice(1, PathVoice.SILENT, 0.0)
    cores.pump(one, other, path=2)
    assert other.readable_bytes == 30_000
    other.receive(1, stuck, 0.0)  # it was alive after all
    assert other.readable_bytes == 30_000


def test_small_foreground_data_leaves_the_only_path_meant_for_it_while_that_crawls(cores):
    one, other = cores.session(scheduler("swtc")), cores.session()
    for path in (1, 2):
        cores.up(one, other, path=path)
        cores.pump(one, other, path=path)
    one.allow(2, 0, 0.0)
    one.send(bytes(60_000), 1, after=())
    one.send(b"urgent", 0, after=())
    while one.next_record(1, 70_000, 0.0):
        pass  # on its way, behind much
    assert one.path_voice(1, PathVoice.CRAWLS, 0.1)
    assert one.paths[0].facts.doubt is PathDoubt.CRAWLS
    one.send(b"new", 0, after=())
    cores.pump(one, other, path=2)
    assert cores.messages(other) == [(0, b"urgent"), (0, b"new")]
    # The large data is not meant for the other path, and the crawling one has it already.
    assert not [
        each for each in cores.frames(one.next_record(1, 70_000, 0.2)) if type(each) is Extent
    ]
    one.path_voice(1, PathVoice.SPEAKS, 0.3)
    one.send(b"back", 0, after=())
    cores.pump(one, other, path=2)
    assert cores.messages(other) == []


def test_all_data_of_a_crawling_path_goes_over_another_one_that_is_meant_for_it(cores):
    one, other = cores.session(scheduler("swtc")), cores.session()
    for path in (1, 2):
        cores.up(one, other, path=path)
        cores.pump(one, other, path=path)
    one.send(bytes(60_000), 1, after=())
    while one.next_record(1, 70_000, 0.0):
        pass
    one.path_voice(1, PathVoice.CRAWLS, 0.1)
    cores.pump(one, other, path=2)
    assert cores.messages(other) == [(1, bytes(60_000))]
    one.path_voice(1, PathVoice.CRAWLS, 0.2)
    assert not one.next_record(2, 70_000, 0.2), "once is enough"


def test_what_was_said_on_a_path_that_pauses_is_said_on_another_one(cores):
    one, other = cores.pair()
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    block = bytes(100_000)
    written = one.write(block)
    while written < 400_000:  # until it may hold no more without an acknowledgement
        other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
        while other.read():
            pass
        more = one.write(block)
        written += more
        if not more and not one.wants(1):
            break
    assert not one.write(block)
    while other.next_record(1, 70_000, 0.0):
        pass  # the path dies with what the peer said
    assert not other.next_record(2, 70_000, 0.0)
    other.path_voice(1, PathVoice.PAUSES, 0.1)
    one.receive(2, b"".join(other.next_record(2, 70_000, 0.1)), 0.1)
    assert one.write(block)
    other.path_voice(1, PathVoice.PAUSES, 0.2)
    assert not other.next_record(2, 70_000, 0.2), "once is enough"


def test_what_lies_on_a_path_that_pauses_does_not_keep_the_others_from_going_on(cores):
    one, other = cores.pair()
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    while one.write(bytes(100_000)):
        while one.next_record(1, 70_000, 0.0):
            pass  # lost
    assert not one.next_record(2, 70_000, 0.0)
    one.path_voice(1, PathVoice.PAUSES, 0.1)
    assert one.write(bytes(100_000)) == 100_000
    one.path_voice(1, PathVoice.SPEAKS, 0.2)
    assert not one.write(bytes(100_000)), "no more is kept than before"


def test_a_silent_path_owes_nothing_once_it_speaks(cores):
    one, _ = cores.pair()
    cores.up(one, path=2)
    facts = one.paths[0].facts
    assert one.path_voice(1, PathVoice.SILENT, 1.0)
    assert facts.doubt is PathDoubt.STALLED
    assert not one.path_voice(1, PathVoice.SILENT, 1.1)
    assert not one.path_voice(1, PathVoice.PAUSES, 1.2)  # its silence is not over
    assert one.path_voice(1, PathVoice.SPEAKS, 1.3)
    assert facts.doubt is PathDoubt.NONE


def test_a_path_that_flaps_is_left_alone_until_it_has_stood_and_answered(cores):
    one, other = cores.pair()
    cores.up(one, other, path=2)
    cores.pump(one, other, path=2)
    facts = one.paths[0].facts
    for k in range(3):
        one.path_voice(1, PathVoice.SILENT, float(k))
        one.path_voice(1, PathVoice.SPEAKS, k + 0.5)
    assert facts.doubt is PathDoubt.FLAPS  # twice is bad luck, three times is a habit
    held_until_s = 2.5 + 1.0
    one.tick(held_until_s - 0.01)
    assert one.next_timer() == held_until_s
    cores.pump(one, other, path=2, now=held_until_s - 0.01)
    one.tick(held_until_s)
    asked = b"".join(one.next_record(1, 70_000, held_until_s))
    assert any(type(each) is Ping for each in cores.frames([asked]))
    assert facts.doubt is PathDoubt.FLAPS
    other.receive(1, asked, held_until_s)
    cores.pump(one, other, path=1, now=held_until_s + 0.02)
    assert facts.doubt is PathDoubt.NONE


def test_a_silence_at_whose_end_the_path_is_lost_is_one_fall(cores):
    one, other = cores.pair()
    cores.up(one, other, path=2)
    now = 0.0
    for path in range(3, 3 + FREE):
        one.path_voice(path - 1, PathVoice.SILENT, now)
        one.path_voice(path - 1, PathVoice.SILENT, now + 1.0)
        one.path_lost(path - 1, now + 1.0)
        now += 2.0
        cores.up(one, other, path=path)
        assert one.paths[-1].facts.doubt is PathDoubt.NONE
    one.path_lost(2 + FREE, now)
    cores.up(one, path=9)
    assert one.paths[-1].facts.doubt is PathDoubt.FLAPS


def test_labels_that_a_path_is_forbidden_stay_away_from_it_at_both_ends(cores):
    one, other = cores.pair()
    other.allow(1, 0b0011, 0.0)
    cores.pump(one, other)
    one.send(b"background", 2, after=())
    one.send(b"foreground", 0, after=())
    cores.pump(one, other)
    assert cores.messages(other) == [(0, b"foreground")]
    other.allow(1, 0b1111, 0.0)
    cores.pump(one, other)
    assert cores.messages(other) == [(2, b"background")]


def test_an_unknown_path_is_named(cores):
    core = cores.session()
    with pytest.raises(SessionError, match="no path 5"):
        core.path_lost(5, 0.0)
    cores.up(core)
    with pytest.raises(SessionError, match="up already"):
        cores.up(core)
