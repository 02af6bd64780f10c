"""Messages that a peer must not send, and records of a program that lost its state."""

import gc
import math
import random
import time
import tracemalloc

import pytest

from cedos.errors import ProtocolError
from cedos.session.protocol import packing, receiver
from cedos.session.protocol.frames import (
    Ack,
    Ask,
    Close,
    Closed,
    KeepAlive,
    Messages,
    Order,
    Pong,
    Space,
    StreamData,
    Sync,
    Window,
)
from cedos.session.protocol.idle_record import pack, unpack_session
from cedos.session.protocol.intervals import CumulativeSet
from cedos.session.protocol.life import SessionLimits, SessionState
from cedos.session.protocol.receiver import MAX_ID_GAPS, Receiver
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.send_queues import ByteQueue
from cedos.session.protocol.sender import ID_SPAN
from cedos.session.protocol.session import Session
from tests.unit.session.protocol.conftest import Plain

BIG = b"x" * 60_000


HOSTILE = {
    "beyond the stream's window": [packing.stream_header(262_144, 1, False) + b"x"],
    "an absurd offset": [packing.stream_header(1 << 61, 1, False) + b"x"],
    "beyond the stream's end": [
        packing.stream_header(0, 1, True) + b"x",
        packing.stream_header(1, 1, False) + b"x",
    ],
    "another end": [packing.stream_header(0, 1, True) + b"x", packing.stream_header(2, 0, True)],
    "an end before what came": [
        packing.stream_header(5, 1, False) + b"x",
        packing.stream_header(2, 0, True),
    ],
    "too many holes": [
        b"".join(
            packing.stream_header(at, 1, False) + b"x" for at in range(first, first + 8_000, 2)
        )
        for first in range(1, 100_000, 8_000)
    ],
    "IROBs with too many holes together": [
        b"".join(
            packing.extent_header(irob, 3, Order.FREE, (), at, 1, False) + b"x"
            for at in range(1, 2_000, 2)
        )
        for irob in range(1, 40)
    ],
    "an absurd IROB": [packing.messages_header(ID_SPAN + 1, 0, Order.FREE, (), [1]) + b"x"],
    "an IROB larger than any": [
        packing.extent_header(1, 0, Order.FREE, (), 1 << 22, 1, False) + b"x"
    ],
    "more IROBs than credit": [
        packing.extent_header(irob, 3, Order.FREE, (), 0, len(BIG), False) + BIG
        for irob in range(1, 300)
    ],
    "more small IROBs than credit": [
        packing.messages_header(first, 0, Order.FREE, (), [0] * 8_000)
        for first in range(1, 80_001, 8_000)
    ],
    "an IROB with two labels": [
        packing.extent_header(1, 2, Order.FREE, (), 0, 1, False) + b"x",
        packing.extent_header(1, 3, Order.FREE, (), 1, 1, False) + b"x",
    ],
    "an IROB with two orders": [
        packing.extent_header(3, 2, Order.LISTED, (1,), 0, 1, False) + b"x",
        packing.extent_header(3, 2, Order.LISTED, (2,), 1, 1, False) + b"x",
    ],
    "an IROB that is large and small": [
        packing.extent_header(1, 2, Order.FREE, (), 0, 1, False) + b"x",
        packing.messages_header(1, 2, Order.FREE, (), [1]) + b"x",
    ],
    "IROBs in too many parts": [
        b"".join(
            packing.messages_header(irob, 0, Order.FREE, (), [0])
            for irob in range(first, first + 8_000, 2)
        )
        for first in range(2, 2 * MAX_ID_GAPS + 16_000, 8_000)
    ],
    "an acknowledgement of what was not sent": [packing.ack(Space.STREAM, 0, 1, [])],
    "an acknowledged range that was not sent": [packing.ack(Space.STREAM, 0, 0, [(5, 6)])],
    "an acknowledged IROB that was not begun": [packing.ack(Space.IROBS, 0, 2, [])],
    "an answer to a Close never said": [packing.pack_fixed(Closed())],
    "two different Closes": [packing.pack_fixed(Close(5, 1)), packing.pack_fixed(Close(6, 1))],
    "more than was closed": [
        packing.pack_fixed(Close(0, 1)) + packing.stream_header(0, 1, True) + b"x"
    ],
}


def take_all(core, records):
    for record in records:
        core.receive(1, record, 0.0)


@pytest.mark.parametrize("records", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_peer_that_claims_too_much_is_refused(cores, records):
    core = cores.session(limits=SessionLimits(stream_window=262_144))
    cores.up(core)
    core.next_record(1, 70_000, 0.0)
    with pytest.raises(ProtocolError) as refused:
        take_all(core, records)
    assert len(str(refused.value)) > 20
    core.abort(1, str(refused.value))
    assert core.state is SessionState.FAILED
    assert cores.frames(core.next_record(1, 70_000, 0.0))[-1].code == 1
    assert core.next_record(1, 70_000, 0.0) == []


def test_an_answer_above_what_was_proposed_is_refused(cores):
    core = cores.session()
    cores.up(core)
    core.control.propose_keep_alive(50)
    with pytest.raises(ProtocolError, match="51"):
        core.receive(1, packing.pack_fixed(KeepAlive(True, 1, 51)), 0.0)


def test_windows_only_grow_and_old_acknowledgements_change_nothing(cores):
    one, other = cores.pair()
    limit, credit = one.sender.stream.limit, one.sender.credit.credit
    one.receive(1, packing.pack_fixed(Window(5, 5, 5)), 0.0)
    assert (one.sender.stream.limit, one.sender.credit.credit) == (limit, credit)
    one.write(b"x" * 100)
    cores.pump(one, other)
    other.tick(1.0)
    cores.pump(one, other)
    assert one.acknowledged_bytes == 100
    one.receive(1, packing.ack(Space.STREAM, 0, 40, []), 0.0)
    assert one.acknowledged_bytes == 100


def test_pings_without_end_get_a_bounded_number_of_answers(cores):
    core = cores.session()
    cores.up(core)
    core.receive(1, b"".join(packing.ping(number) for number in range(1_000)), 0.0)
    pongs = [
        each
        for each in cores.frames(core.next_record(1, 70_000, 0.0))
        if type(each).__name__ == "Pong"
    ]
    assert 1 < len(pongs) <= 64


def test_a_peer_that_asks_and_hardly_reads_fills_no_memory(cores):
    """Ask for statements of many IROBs that came in part: each took 0.4 s, and 4 MB that never went."""
    core = begun(cores, 20_000)
    while core.next_record(1, 70_000, 0.0):
        pass
    for _ in range(10):
        core.receive(1, packing.pack_fixed(Ask()), 0.0)
        record = core.next_record(1, 70_000, 0.0)
        assert 0 < len(core.in_flight.paths[1].control) + len(cores.frames(record)) < 1_200


def test_paths_that_come_and_go_fill_no_memory(cores):
    """Lose path after path beside one that does not read: each left a question there, for ever."""
    core = cores.session()
    cores.up(core)
    for path in range(2, 1_000):
        cores.up(core, path=path)
        core.path_lost(path, 0.0)
    assert len(core.in_flight.paths[1].control) <= 64


@pytest.mark.parametrize(
    ("frame", "most"), [(packing.pack_fixed(Ask()), 146), (packing.pack_fixed(Pong(1)), 16_384)]
)
def test_a_record_has_a_bounded_number_of_frames(cores, frame, most):
    """Ask in each byte, 32 records a read: 1.2 MB/s made other requests take 6 s each."""
    core = cores.session()
    cores.up(core)
    core.receive(1, frame * most, 0.0)
    with pytest.raises(ProtocolError, match=f"more than {most} frames"):
        core.receive(1, frame * (most + 1), 0.0)


def begun(cores, count):
    """A session with so many IROBs of which a byte has come, behind one that is missing."""
    core = cores.session(limits=SessionLimits())
    cores.up(core)
    for first in range(2, count + 2, 1_000):
        core.receive(
            1,
            b"".join(
                packing.extent_header(irob, 3, Order.FREE, (), 0, 1, False) + b"x"
                for irob in range(first, min(first + 1_000, count + 2))
            ),
            0.0,
        )
    return core


def test_single_ids_cost_the_same_however_many_irobs_have_come_in_part(cores):
    """Each looked through all parts: a record of 256 KiB kept all sessions waiting for 77 s."""

    def took_s(parts):
        core, best_s = begun(cores, parts), math.inf
        for first in range(40_000, 44_000, 1_000):
            frames = (
                packing.messages_header(irob, 0, Order.FREE, (), [0])
                for irob in range(first, first + 1_000)
            )
            record, began_s = b"".join(frames), time.perf_counter()
            core.receive(1, record, 0.0)
            best_s = min(best_s, time.perf_counter() - began_s)
        return best_s

    assert took_s(20_000) < 10 * took_s(10)


def test_ids_that_are_waited_for_cost_the_same_however_many_there_are(cores):
    """Wait for ids in any order: 256 KiB kept all sessions waiting for 23 s, once there were many."""

    def took_s(known):
        core, best_s = cores.session(limits=SessionLimits()), math.inf
        cores.up(core)
        ids = list(range(2, known + 8_194))
        random.Random(1).shuffle(ids)
        for at in range(0, len(ids), 4_096):
            record = b"".join(
                packing.messages_header(
                    900_000 + first // 256, 3, Order.LISTED, ids[first : first + 256], [0]
                )
                for first in range(at, at + 4_096, 256)
            )
            began_s = time.process_time()
            core.receive(1, record, 0.0)
            if at >= known:
                best_s = min(best_s, time.process_time() - began_s)
        return best_s

    gc.collect()
    gc.disable()
    try:
        assert took_s(131_072) < 6 * took_s(0)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["parts", "whole"])
def test_lists_of_others_have_a_limit_of_memory_at_both_ends(cores, kind, monkeypatch):
    """A server of 65 MB made a client hold 750 MB; an accepting end looks once a second."""
    monkeypatch.setattr(receiver, "MOST_EXTRA_BYTES", 8 << 20)
    core = cores.session(limits=SessionLimits(stream_window=1 << 18, irob_window=1 << 24))
    cores.up(core)

    def wait(irob):
        after = tuple(range(irob - 256, irob))
        if kind == "parts":
            return packing.extent_header(irob, 3, Order.LISTED, after, 0, 1, False) + b"x"
        return packing.messages_header(irob, 3, Order.LISTED, after, [0])

    def flood():
        for irob in range(300, 65_000):
            core.receive(1, wait(irob), 0.0)

    with pytest.raises(ProtocolError, match="wait for others hold more"):
        flood()
    assert 8 << 20 < core.unread_bytes < 48 << 20


def test_what_lies_in_parts_or_waits_for_others_counts_with_its_real_memory(cores):
    assert begun(cores, 10_000).held_bytes > 10_000 * 1_500
    core = cores.session(limits=SessionLimits())
    cores.up(core)
    for irob in range(1_000, 2_000):
        after = tuple(range(irob - 256, irob))
        core.receive(1, packing.messages_header(irob, 0, Order.LISTED, after, [0]), 0.0)
    before = core.held_bytes
    assert before > 1_000 * (256 + 256 * 8)
    core.receive(1, packing.messages_header(1, 0, Order.FREE, (), [0] * 999), 0.0)
    while core.receive_run() is not None:
        pass
    assert core.held_bytes == 0


NOW, UNIX = 0.0, 1e9
BULK = bytes(200_000)


def noted(core):
    found = pack(core, NOW, UNIX)
    assert found is not None
    return found


def again(record):
    return unpack_session(record, Plain(), NOW, UNIX, limits=SessionLimits())


def meet(cores, client, server):
    """The client's path to the dead server is lost; both meet on a new one."""
    if client.in_flight.paths:
        client.path_lost(1, NOW)
    client.path_up(2, PathFacts(), NOW, client.positions())
    server.path_up(2, PathFacts(), NOW)


def test_nothing_new_is_sent_before_the_peer_has_said_what_it_has(cores):
    client, server = cores.pair()
    restored = again(noted(server))
    restored.write(b"too early")
    restored.send(b"too early as well", 0)
    meet(cores, client, restored)
    first = cores.frames(restored.next_record(2, 70_000, NOW))
    assert first
    assert not [each for each in first if isinstance(each, StreamData | Messages)]
    assert not restored.wants(2)
    cores.pump(client, restored, 2)
    assert bytes(client.read()) == b"too early"
    assert cores.messages(client) == [(0, b"too early as well")]


@pytest.mark.parametrize("what", ["stream", "message", "large message"])
def test_what_an_older_life_had_sent_is_not_continued_by_other_bytes(cores, what):
    """The peer has a part of it, out of order, so that its positions are those of the record."""
    client, server = cores.pair(limits=SessionLimits())
    record = noted(server)
    if what == "stream":
        server.write(BULK)
    elif what == "message":
        server.send(b"lost", 0)
        server.send(b"came", 0, after=())
    else:
        server.send(BULK, 3)
    records = [b"".join(server.next_record(1, 2_000, NOW)) for _ in range(30)]
    if what == "message":
        records = [packing.one_message(2, 0, 0, b"came")]
    else:
        records = [each for each in records[1:] if each]
    for each in records:
        client.receive(1, each, NOW)
    restored = again(record)
    if what == "stream":
        restored.write(b"\xff" * len(BULK))
    else:
        restored.send(b"\xff" * len(BULK), 3)
    meet(cores, client, restored)
    with pytest.raises(ProtocolError, match="acknowledges"):
        cores.pump(client, restored, 2)
    assert client.readable_bytes == 0
    assert b"\xff" not in b"".join(data for _, data in cores.messages(client))


def test_a_record_that_is_behind_is_told_by_both(cores):
    client, server = cores.pair()
    record = noted(server)
    client.write(b"asked")
    cores.pump(client, server)
    server.tick(1.0)
    cores.pump(client, server, now=1.0)
    assert client.acknowledged_bytes == 5
    restored = again(record)
    meet(cores, client, restored)
    cores.pump(client, restored, 2)
    assert client.state is restored.state is SessionState.FAILED


def test_an_acknowledgement_of_a_part_that_was_never_sent_is_refused(cores):
    _, server = cores.pair()
    part = CumulativeSet(0)
    part.add(0, 10)
    with pytest.raises(ProtocolError, match="never begun"):
        server.sender.acknowledge(Ack(Space.EXTENTS, 7, part.floor, ()))


def test_a_new_byte_among_old_ones_does_not_keep_them_all():
    """A record repeats 200 kB and has one new byte: each kept the whole record, 20,000 times."""
    receiver = Receiver(8 << 20, 1 << 20, 1 << 20)
    receiver.window()
    tracemalloc.start()
    for number in range(200):
        data = bytes(200_000 + number)
        receiver.on_stream(StreamData(1, False, memoryview(data)), data)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 200_199 < receiver.held_bytes < 300_000
    assert used < 1e6


def test_pieces_behind_gaps_count_with_their_memory():
    receiver = Receiver(8 << 20, 1 << 20, 1 << 20)
    tracemalloc.start()
    for number in range(10_000):
        receiver.on_stream(StreamData(1 + 2 * number, False, memoryview(b"x")), b"x")
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert receiver.held_bytes > 0.8 * used


def test_small_answers_without_acknowledgment_take_little_more_than_their_bytes():
    """Acknowledge none of many refusals: each took five times its bytes, which alone were counted."""
    queue = ByteQueue(0, 0)
    tracemalloc.start()
    for number in range(10_000):
        queue.write(b"%95d" % number)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 1.3 * queue.held_bytes
    assert b"".join(queue.slices(950_000 - 95 - 3, 950_000)) == b"998" + b"%95d" % 9_999
    assert 0 <= 500_000 - queue.acknowledge(0, 500_000) < 4_096
    assert b"".join(queue.slices(500_000, 950_000))[-4:] == b"9999"


def test_parts_that_wait_for_many_others_count_with_what_they_wait_for(cores):
    """Begin IROBs that wait for 256 others each: they took six times the memory that was counted."""
    core = cores.session(limits=SessionLimits())
    cores.up(core)
    tracemalloc.start()
    for irob in range(300, 2_300):
        head = packing.extent_header(irob, 3, Order.LISTED, range(irob - 256, irob), 0, 1, False)
        core.receive(1, head + b"x", 0.0)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert core.held_bytes > 0.8 * used
    end = packing.extent_header(300, 3, Order.LISTED, range(44, 300), 1, 0, True)
    core.receive(1, end + packing.messages_header(1, 3, Order.FREE, (), [0] * 299), 0.0)
    for irob in range(301, 2_300):
        head = packing.extent_header(irob, 3, Order.LISTED, range(irob - 256, irob), 1, 0, True)
        core.receive(1, head, 0.0)
    while core.receive_run() is not None:
        pass
    assert core.held_bytes == 0


def every_other(first, count):
    return tuple((each, each + 1) for each in range(first, first + 2 * count, 2))


@pytest.mark.parametrize("space", [Space.STREAM, Space.IROBS])
def test_acknowledgements_with_gaps_without_end_take_little_memory(space):
    """Acknowledge every other byte of a large file: the sender kept 80 bytes for 16 received."""
    core = Session(Plain(), 0.0)
    core.write_source(lambda _offset, count: bytes(count), 1 << 30)
    core.sender.stream.fresh, core.sender.next_irob = 1 << 20, ID_SPAN
    tracemalloc.start()
    for first in range(2, 1 << 19, 2_048):
        core.sender.acknowledge(Ack(space, 0, 1, every_other(first, 1_024)))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used < 200_000
    # What was left out is acknowledged with all before it.
    core.sender.acknowledge(Ack(space, 0, 1 << 19, ()))
    assert core.sender.gaps == 0


def test_gaps_in_many_irobs_are_bounded_together():
    core = Session(Plain(), 0.0, limits=SessionLimits(send_bytes=64 << 20))
    core.path_up(1, PathFacts(), 0.0)
    core.receive(1, packing.pack_fixed(Window(1 << 30, 1 << 30, 1 << 20)), 0.0)
    irobs = [core.send(b"x" * 60_000, 3, after=()) for _ in range(100)]
    while core.next_record(1, 70_000, 0.0):
        pass
    for irob in irobs:
        core.receive(1, packing.ack(Space.EXTENTS, irob, 0, every_other(1, 1_000)), 0.0)
    assert core.sender.gaps == 1_024
    core.receive(1, packing.ack(Space.IROBS, 0, irobs[-1] + 1, ()), 0.0)
    assert core.sender.gaps == core.held_bytes == 0
    assert core.sender.everything_acknowledged()
    assert core.in_flight.idle


def test_gaps_in_acknowledgements_and_a_lost_path_leave_few_pieces(cores):
    """Acknowledge every other byte, and lose the path: each gap became a piece, 4.6 MB a session."""
    core = cores.session()
    cores.up(core)
    core.write_source(lambda _offset, count: bytes(count), 1 << 30)
    assert core.next_record(1, 70_000, 0.0)
    gc.collect()
    tracemalloc.start()
    # Fill the gaps of the round before, and leave others.
    for path in range(1, 12):
        floor = 3_000 * path
        for first in range(floor + 1, 40_000, 2_000):
            ack = packing.ack(Space.STREAM, 0, floor, every_other(first, 1_000))
            core.receive(path, ack, 0.0)
        core.path_lost(path, 0.0)
        cores.up(core, path=path + 1)
        core.receive(path + 1, packing.pack_fixed(Sync(0, 1, floor, 1)), 0.0)
        used, _ = tracemalloc.get_traced_memory()
        assert used < 600_000
        assert core.held_bytes > 0.6 * used
        assert core.next_record(path + 1, 4_096, 0.0)
    tracemalloc.stop()


def test_all_arrives_where_the_peer_leaves_more_gaps_than_are_kept(cores):
    """Lose every other of 3,000 small messages, and of as many pieces of the stream."""
    one, other = cores.pair()
    cores.up(one, other, path=2)
    for _ in range(2):
        cores.pump(one, other)
        cores.pump(one, other, path=2)
    data, messages = random.Random(5).randbytes(400_000), [b"%d" % each for each in range(3_000)]
    sent, told = 0, 0
    for number, message in enumerate(messages):
        told += bool(one.send(message, 3, after=()))
        sent += one.write(data[sent : sent + 70])
        # The first path takes what it is given, and none of it arrives.
        record = b"".join(one.next_record(1 + number % 2, 70_000, 0.0))
        if number % 2 and record:
            other.receive(2, record, 0.0)
    assert told > 2_500
    assert len(other.receiver.stream.received.beyond) > 1_024
    one.receive(2, b"".join(other.receiver.acknowledgements(everything=True)), 0.0)
    assert one.sender.gaps == 1_024
    one.path_lost(1, 0.0)
    other.path_lost(1, 0.0)
    cores.pump(one, other, path=2)
    got = b""
    while chunk := other.read():
        got += chunk
    assert got == data[:sent]
    assert sorted(payload for _, payload in cores.messages(other)) == sorted(messages[:told])
