"""The core played like a script: what a peer may not do, and what two honest ones do."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from cedos.errors import ProtocolError, SessionError
from cedos.session import wire
from cedos.session.application import ALL
from cedos.session.core import LOST_STATE, Session
from cedos.session.credit import IROB_COST
from cedos.session.events import (
    Failed,
    Finished,
    KeepAliveAgreed,
    PeerClosed,
    PeerWishes,
    Ponged,
    ThunkReady,
    Writable,
)
from cedos.session.frames import Messages, Order, Space, StreamData, Sync
from cedos.session.life import State
from cedos.session.memory import Memory
from cedos.session.receiver import MAX_ID_GAPS
from cedos.session.scheduling import Backlog, Facts, Grant, PathState
from cedos.session.sender import ID_SPAN, NO_ROOM
from cedos.session.shares import Limits
from cedos.session.thunks import DEFERRED
from cedos.session.unpack import unpack


class Plain:
    """The most urgent first, all of it; `grants` come before."""

    name = "plain"

    def __init__(self, *grants: Grant | None, copies: bool = False) -> None:
        self.grants = list(grants)
        self.copies = copies
        self.needs: set[int] = set()  # ranks without an appropriate network

    def choose(
        self,
        path: PathState,
        paths: Sequence[PathState],
        backlog: Backlog,
        room_bytes: int,
        now: float,
    ) -> Grant | None:
        if self.grants:
            return self.grants.pop(0)
        for rank, waiting in enumerate(backlog.waiting_bytes):
            if waiting and path.allowed >> rank & 1:
                return Grant(rank, room_bytes)
        if self.copies:
            for rank, waiting in enumerate(backlog.copyable_bytes):
                if waiting:
                    return Grant(rank, room_bytes, copy=True)
        return None

    def appropriate(self, rank: int, paths: Sequence[PathState], now: float) -> bool:
        return bool(paths) and rank not in self.needs

    def next_look_s(self, paths: Sequence[PathState], now: float) -> float | None:
        return None


def session(scheduler: Plain | None = None, **options: object) -> Session:
    return Session(scheduler or Plain(), 0.0, **({"keep_alive_s": 100} | options))  # type: ignore[arg-type]


def up(*sessions: Session, path: int = 1) -> None:
    for each in sessions:
        each.path_up(path, Facts(), 0.0)


def pump(one: Session, other: Session, path: int = 1, now: float = 0.0) -> int:
    """Everything both have to say on a path; how many records."""
    count, moved = 0, True
    while moved:
        moved = False
        for here, there in ((one, other), (other, one)):
            while parts := here.next_record(path, 70_000, now):
                there.receive(path, b"".join(parts), now)
                count += 1
                moved = True
    return count


def pair(**options: object) -> tuple[Session, Session]:
    one, other = session(**options), session(**options)
    up(one, other)
    pump(one, other)
    return one, other


def frames(parts: Sequence[bytes | memoryview]) -> list[object]:
    return list(unpack(b"".join(parts))) if parts else []


def messages(core: Session) -> list[tuple[int, bytes]]:
    got = []
    while (run := core.receive_run()) is not None:
        got += [(run.rank, each) for each in run.payloads]
    return got


# What a peer may not do

BIG = b"x" * 60_000
HOSTILE = {
    "beyond the stream's window": [wire.stream_header(262_144, 1, False) + b"x"],
    "an absurd offset": [wire.stream_header(1 << 61, 1, False) + b"x"],
    "beyond the stream's end": [
        wire.stream_header(0, 1, True) + b"x",
        wire.stream_header(1, 1, False) + b"x",
    ],
    "another end": [wire.stream_header(0, 1, True) + b"x", wire.stream_header(2, 0, True)],
    "an end before what came": [
        wire.stream_header(5, 1, False) + b"x",
        wire.stream_header(2, 0, True),
    ],
    "too many holes": [
        b"".join(wire.stream_header(at, 1, False) + b"x" for at in range(first, first + 8_000, 2))
        for first in range(1, 100_000, 8_000)
    ],
    "IROBs with too many holes together": [
        b"".join(
            wire.extent_header(irob, 3, Order.FREE, (), at, 1, False) + b"x"
            for at in range(1, 2_000, 2)
        )
        for irob in range(1, 40)
    ],
    "an absurd IROB": [wire.messages_header(ID_SPAN + 1, 0, Order.FREE, (), [1]) + b"x"],
    "an IROB larger than any": [
        wire.extent_header(1, 0, Order.FREE, (), 1 << 22, 1, False) + b"x",
    ],
    "more IROBs than credit": [
        wire.extent_header(irob, 3, Order.FREE, (), 0, len(BIG), False) + BIG
        for irob in range(1, 300)
    ],
    "more small IROBs than credit": [
        wire.messages_header(first, 0, Order.FREE, (), [0] * 8_000)
        for first in range(1, 80_001, 8_000)
    ],
    "an IROB with two labels": [
        wire.extent_header(1, 2, Order.FREE, (), 0, 1, False) + b"x",
        wire.extent_header(1, 3, Order.FREE, (), 1, 1, False) + b"x",
    ],
    "an IROB with two orders": [
        wire.extent_header(3, 2, Order.LISTED, (1,), 0, 1, False) + b"x",
        wire.extent_header(3, 2, Order.LISTED, (2,), 1, 1, False) + b"x",
    ],
    "an IROB that is large and small": [
        wire.extent_header(1, 2, Order.FREE, (), 0, 1, False) + b"x",
        wire.messages_header(1, 2, Order.FREE, (), [1]) + b"x",
    ],
    "absurd abandonment": [wire.abandon(1, ID_SPAN + 1)],
    "abandonment in too many parts": [
        b"".join(wire.abandon(irob, 1) for irob in range(first, first + 8_000, 2))
        for first in range(2, 2 * MAX_ID_GAPS + 16_000, 8_000)
    ],
    "an acknowledgement of what was not sent": [wire.ack(Space.STREAM, 0, 1, [])],
    "an acknowledged range that was not sent": [wire.ack(Space.STREAM, 0, 0, [(5, 6)])],
    "an acknowledged IROB that was not begun": [wire.ack(Space.IROBS, 0, 2, [])],
    "an answer to a Close never said": [wire.closed()],
    "two different Closes": [wire.close(5, 1), wire.close(6, 1)],
    "more than was closed": [
        wire.close(0, 1) + wire.stream_header(0, 1, True) + b"x",
    ],
}


def take_all(core: Session, records: list[bytes]) -> None:
    for record in records:
        core.receive(1, record, 0.0)


@pytest.mark.parametrize("records", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_peer_that_claims_too_much_is_refused(records: list[bytes]) -> None:
    core = session(limits=Limits(stream_window=262_144))
    up(core)
    core.next_record(1, 70_000, 0.0)
    with pytest.raises(ProtocolError) as refused:
        take_all(core, records)
    assert len(str(refused.value)) > 20
    core.abort(1, str(refused.value))
    assert core.state is State.FAILED
    assert frames(core.next_record(1, 70_000, 0.0))[-1].code == 1  # type: ignore[attr-defined]
    assert core.next_record(1, 70_000, 0.0) == []
    assert core.over(0.0)


def test_an_answer_above_what_was_proposed_is_refused() -> None:
    core = session()
    up(core)
    core.keep_alive(50)
    with pytest.raises(ProtocolError, match="51"):
        core.receive(1, wire.keep_alive(True, 1, 51), 0.0)


def test_windows_only_grow_and_old_acknowledgements_change_nothing() -> None:
    one, other = pair()
    limit, credit = one.sender.stream.limit, one.sender.credit.credit
    one.receive(1, wire.window(5, 5, 5), 0.0)
    assert (one.sender.stream.limit, one.sender.credit.credit) == (limit, credit)
    one.write(b"x" * 100)
    pump(one, other)
    other.tick(1.0)
    pump(one, other)
    assert one.acknowledged_bytes == 100
    one.receive(1, wire.ack(Space.STREAM, 0, 40, []), 0.0)
    assert one.acknowledged_bytes == 100


def test_pings_without_end_get_a_bounded_number_of_answers() -> None:
    core = session()
    up(core)
    core.receive(1, b"".join(wire.ping(number) for number in range(1_000)), 0.0)
    pongs = [
        each for each in frames(core.next_record(1, 70_000, 0.0)) if type(each).__name__ == "Pong"
    ]
    assert 1 < len(pongs) <= 64


# Paths


def test_a_lost_path_sends_again_only_what_the_peer_has_not() -> None:
    one, other = pair()
    one.write(bytes(200_000))
    first = b"".join(one.next_record(1, 70_000, 0.0))
    for _ in range(3):
        one.next_record(1, 70_000, 0.0)
    other.receive(1, first, 0.0)
    for each in (one, other):
        each.path_lost(1, 1.0)
    up(one, other, path=2)
    # The statement goes at once, the data waits for the other one's.
    assert not [
        each for each in frames(one.next_record(2, 70_000, 1.0)) if type(each) is StreamData
    ]
    pump(one, other, path=2)
    assert other.readable_bytes == 200_000
    assert one.paths[0].sent_bytes < 200_000 - 60_000 + 500


def test_small_foreground_messages_do_not_wait_when_another_path_is_up() -> None:
    one, other = pair()
    up(one, other, path=2)
    pump(one, other, path=2)
    one.send(b"urgent", 0)
    one.send(b"later", 2)
    while one.next_record(1, 70_000, 0.0):
        pass  # lost
    one.path_lost(1, 0.0)
    record = b"".join(one.next_record(2, 70_000, 0.0))
    other.receive(2, record, 0.0)
    sent = frames([record])
    assert [each.payloads for each in sent if type(each) is Messages] == [[b"urgent"]]
    other.path_lost(1, 0.0)
    pump(one, other, path=2)
    assert messages(other) == [(0, b"urgent"), (2, b"later")]


def test_a_scheduler_may_leave_the_next_bytes_to_another_path() -> None:
    """SWTC's order: what this slow path gets is what will be needed when it arrives."""
    one, other = session(Plain(Grant(0, 5_000, 10_000), None)), session()
    for path in (1, 2):
        up(one, other, path=path)
    one.write(bytes(20_000))
    late = [each for each in frames(one.next_record(1, 70_000, 0.0)) if type(each) is StreamData]
    assert [(each.offset, len(each.payload)) for each in late] == [(10_000, 5_000)]
    rest = []
    while parts := one.next_record(2, 70_000, 0.0):
        rest += [each for each in frames(parts) if type(each) is StreamData]
    assert rest[0].offset == 0
    covered = sorted((each.offset, each.offset + len(each.payload)) for each in rest + late)
    assert covered[0][0] == 0
    assert covered[-1][1] == 20_000
    assert all(left[1] == right[0] for left, right in pairwise(covered))


def test_redundancy_sends_each_byte_on_both_paths_and_the_first_copy_counts() -> None:
    one, other = session(Plain(copies=True)), session()
    for path in (1, 2):
        up(one, other, path=path)
    one.write(bytes(100_000))
    one.send(b"m", 1)
    for path in (1, 2):
        got = []
        while parts := one.next_record(path, 70_000, 0.0):
            got += frames(parts)
            other.receive(path, b"".join(parts), 0.0)
        assert sum(len(each.payload) for each in got if type(each) is StreamData) == 100_000
        assert [each.payloads for each in got if type(each) is Messages] == [[b"m"]]
    assert other.readable_bytes == 100_000
    assert messages(other) == [(1, b"m")]


def test_what_is_on_the_way_elsewhere_is_not_sent_again_when_a_path_is_lost() -> None:
    one, other = session(Plain(copies=True)), session()
    for path in (1, 2):
        up(one, other, path=path)
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


def test_what_is_acknowledged_while_it_waits_to_be_sent_again_is_left_out() -> None:
    one, _ = pair()
    for _ in range(3):
        one.write(b"c" * 1_000)
    one.next_record(1, 70_000, 0.0)
    one.path_lost(1, 0.0)
    up(one, path=2)
    one.receive(2, wire.sync(Sync(0, 1, 0, 1)), 0.0)
    one.receive(2, wire.ack(Space.STREAM, 0, 1_500, []), 0.0)  # the old path's last bytes
    sent = [each for each in frames(one.next_record(2, 70_000, 0.0)) if type(each) is StreamData]
    assert [(each.offset, len(each.payload)) for each in sent] == [(1_500, 1_500)]


def test_single_bytes_do_not_cost_an_object_each() -> None:
    one, other = pair()
    for _ in range(5_000):
        one.write(b"x")
        other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
    assert len(other.receiver.stream.ready) <= 5
    assert b"".join(iter(other.read, b"")) == b"x" * 5_000


def test_a_path_that_stalls_gives_its_bytes_to_others_too() -> None:
    one, other = pair()
    up(one, other, path=2)
    pump(one, other, path=2)
    one.write(b"x" * 30_000)
    stuck = b"".join(one.next_record(1, 70_000, 0.0))
    one.requeue(1, 0.0)
    pump(one, other, path=2)
    assert other.readable_bytes == 30_000
    other.receive(1, stuck, 0.0)  # it was alive after all
    assert other.readable_bytes == 30_000


def test_labels_that_a_path_is_forbidden_stay_away_from_it_at_both_ends() -> None:
    one, other = pair()
    other.allow(1, 0b0011, 0.0)
    pump(one, other)
    one.send(b"background", 2, after=())
    one.send(b"foreground", 0, after=())
    pump(one, other)
    assert messages(other) == [(0, b"foreground")]
    other.allow(1, 0b1111, 0.0)
    pump(one, other)
    assert messages(other) == [(2, b"background")]


def test_an_unknown_path_is_named() -> None:
    core = session()
    with pytest.raises(SessionError, match="no path 5"):
        core.path_lost(5, 0.0)
    up(core)
    with pytest.raises(SessionError, match="up already"):
        up(core)


# IROBs


def test_delivery_prefers_labels_and_respects_orders() -> None:
    one, other = pair()
    first = one.send(b"bulk", 3, after=())
    one.send(b"after bulk", 0, after=(first,))
    one.send(b"free", 1, after=())
    one.send(b"plain", 0)
    pump(one, other)
    assert [data for _, data in messages(other)] == [b"free", b"bulk", b"after bulk", b"plain"]


def test_an_open_irob_is_delivered_when_it_ends_and_not_when_it_is_abandoned() -> None:
    one, other = pair()
    kept, dropped = one.begin(2, after=()), one.begin(2, after=())
    for irob in (kept, dropped):
        assert one.append(irob, b"a" * 10_000) == 10_000
    waiting = one.send(b"w", 0, after=(kept, dropped))
    assert waiting > dropped
    pump(one, other)
    assert messages(other) == []
    one.abandon(dropped)
    one.end(kept)
    pump(one, other)
    assert messages(other) == [(2, b"a" * 10_000), (0, b"w")]
    other.tick(1.0)
    pump(one, other)
    assert one.sender.held_bytes == 0
    assert one.sender.credit.reserved == 10_000 + 1 + 2 * IROB_COST
    with pytest.raises(SessionError, match="not open"):
        one.append(kept, b"more")


def test_irobs_that_wait_for_each_other_never_lock_up() -> None:
    """Later ones fill the window but for the spare, which is for the one they all wait for."""
    limits = Limits(irob_window=655_360, irob_bytes=262_144)
    one, other = pair(limits=limits)
    lowest = one.begin(3, after=())
    count = 0
    while one.send(b"y" * 4_000, 0) != NO_ROOM:
        count += 1
    assert count > 50
    pump(one, other)
    assert messages(other) == []
    assert one.append(lowest, b"z" * 262_144) == 262_144
    one.end(lowest)
    pump(one, other)
    assert len(messages(other)) == count + 1
    pump(one, other)
    assert Writable() in one.events()
    assert one.send(b"again", 0) > 0


def test_an_irob_beyond_what_the_peer_takes_is_refused_at_once() -> None:
    one, _ = pair(limits=Limits(irob_bytes=300_000))
    with pytest.raises(SessionError, match="300001"):
        one.send(bytes(300_001), 3)
    irob = one.begin(3)
    with pytest.raises(SessionError, match="beyond"):
        one.append(irob, bytes(300_001))
    with pytest.raises(SessionError, match="wait for"):
        one.send(b"x", 0, after=(irob + 7,))


def test_thunks_wait_for_an_appropriate_network_and_can_be_cancelled() -> None:
    scheduler = Plain()
    scheduler.needs = {3}
    one, other = session(scheduler), session()
    up(one, other)
    pump(one, other)
    assert one.send(b"poll", 3, thunk=7) == DEFERRED
    assert one.begin(3, thunk=8) == DEFERRED
    assert one.send(b"urgent", 0, thunk=9) > 0
    assert one.cancel_thunk(8)
    assert not one.cancel_thunk(8)
    assert one.events() == []
    scheduler.needs = set()
    up(one, other, path=2)
    assert one.events() == [ThunkReady(7, 3)]
    assert one.send(b"poll", 3, thunk=7) > 0
    pump(one, other)
    assert [data for _, data in messages(other)] == [b"urgent", b"poll"]


# Memory and flow control


def test_one_limit_for_all_sessions_and_who_waited_is_told() -> None:
    memory = Memory(1_000_000)
    limits = Limits(send_bytes=1_000_000)
    many = [session(limits=limits, memory=memory) for _ in range(40)]
    taken = sum(core.write(bytes(100_000)) for core in many)
    assert taken == memory.used_bytes <= 1_000_000
    assert many[-1].write(bytes(100_000)) < 100_000
    for core in many[:20]:
        core.abort(1, "enough")
    assert memory.used_bytes < 1_000_000
    assert set(memory.woken()) <= set(many)


@pytest.mark.parametrize("limits", [Limits(send_bytes=1_000_000), Limits(irob_window=600_000)])
def test_background_data_leaves_room_for_what_is_urgent(limits: Limits) -> None:
    one, _ = pair(limits=limits)
    while one.send(bytes(100_000), 3, after=()):
        pass
    while one.send(bytes(3_000), 3, after=()):
        pass
    assert all(one.send(bytes(3_000), 0, after=()) for _ in range(10))


def test_a_stream_stops_at_the_window_and_goes_on_when_it_is_read() -> None:
    limits = Limits(stream_window=262_144)
    one, other = pair(limits=limits)
    one.path_lost(1, 0.0)
    assert one.write(bytes(1_000_000)) == 1_000_000
    other.path_lost(1, 0.0)
    up(one, other, path=2)
    pump(one, other, path=2)
    assert other.readable_bytes == 262_144
    total = 0
    while chunk := other.read(50_000):
        total += len(chunk)
        pump(one, other, path=2)
    assert total == 1_000_000


def test_what_a_stream_may_hold_grows_with_what_the_peer_has() -> None:
    one, other = pair()
    held = []
    for now in range(6):
        while one.write(bytes(65_536)):
            pass
        held.append(one.sender.held_bytes)
        while pump(one, other, now=now):
            other.read(1 << 20)
        other.tick(now + 0.5)
        pump(one, other, now=now)
    assert held == [262_144 << number for number in range(6)]


def test_a_source_keeps_nothing_and_is_asked_again() -> None:
    one, other = pair()
    asked: list[tuple[int, int]] = []

    def fetch(offset: int, count: int) -> bytes:
        asked.append((offset, count))
        return bytes(range(offset % 256, offset % 256 + 1)) * count

    one.write_source(fetch, 50_000)
    assert one.sender.held_bytes == 0
    one.next_record(1, 70_000, 0.0)
    for each in (one, other):
        each.path_lost(1, 0.0)
    up(one, other, path=2)
    pump(one, other, path=2)
    assert other.readable_bytes == 50_000
    assert asked == [(0, 50_000)] * 2


def test_acknowledgements_wait_for_company_but_not_long() -> None:
    one, other = pair()
    one.write(b"x")
    pump(one, other)
    assert one.acknowledged_bytes == 0
    assert other.next_timer() == pytest.approx(0.025)
    other.tick(0.025)
    assert pump(one, other) == 1
    assert one.acknowledged_bytes == 1


# Life


def test_both_close_and_know_it() -> None:
    one, other = pair()
    one.write(b"last words")
    one.send(b"and an IROB", 0)
    one.close()
    with pytest.raises(SessionError, match="closed"):
        one.write(b"more")
    pump(one, other)
    assert other.events() == [PeerClosed()]
    assert bytes(other.read()) == b"last words"
    assert other.at_eof
    assert other.write(b"mine") == 4  # half open
    other.close()
    pump(one, other)
    assert one.state is other.state is State.FINISHED
    assert Finished() in one.events()
    assert Finished() in other.events()
    assert bytes(one.read()) == b"mine"
    assert messages(other) == [(0, b"and an IROB")]
    assert not one.over(9.9)
    assert one.over(10.0)


def test_a_close_whose_answer_was_lost_is_answered_again() -> None:
    one, other = pair()
    for each in (one, other):
        each.close()
    other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
    one.receive(1, b"".join(other.next_record(1, 70_000, 0.0)), 0.0)
    one.next_record(1, 70_000, 0.0)  # its Closed is lost with the path
    assert one.state is State.FINISHED
    assert other.state is State.CLOSING
    for each in (one, other):
        each.path_lost(1, 1.0)
    up(one, other, path=2)
    pump(one, other, path=2)
    assert other.state is State.FINISHED


@pytest.mark.parametrize("acknowledged", [True, False])
def test_a_peer_that_is_gone_after_all_was_said_is_no_failure(acknowledged: bool) -> None:
    one, other = pair()
    for each in (one, other):
        each.close()
    other.receive(1, b"".join(one.next_record(1, 70_000, 0.0)), 0.0)
    one.receive(1, b"".join(other.next_record(1, 70_000, 0.0)), 0.0)
    if acknowledged:
        other.receive(1, wire.ack(Space.STREAM, 0, 1, []), 0.0)
    other.peer_forgot()
    assert other.state is (State.FINISHED if acknowledged else State.FAILED)


def test_a_peer_that_forgot_us_is_a_failure_with_the_acknowledged_byte() -> None:
    one, other = pair()
    one.write(b"12345")
    pump(one, other)
    other.tick(1.0)
    pump(one, other)
    one.write(b"678")
    one.path_lost(1, 0.0)
    one.peer_forgot()
    failed = one.events()[-1]
    assert isinstance(failed, Failed)
    assert failed.by_peer
    assert failed.acknowledged_bytes == 5
    assert one.sender.held_bytes == 0
    with pytest.raises(SessionError, match="does not know"):
        one.write(b"more")


@pytest.mark.parametrize(
    "sync",
    [
        Sync(0, 1, 4, 1),
        Sync(0, 1, 5, 0),
        Sync(9, 1, 5, 1),
        Sync(0, 4, 5, 1),
        Sync(0, 1, 99, 1),
        Sync(0, 1, 5, 9),
    ],
)
def test_lost_state_is_seen_at_the_first_word_on_a_new_path(sync: Sync) -> None:
    one, other = pair()
    one.write(b"12345")
    pump(one, other)
    other.tick(1.0)
    pump(one, other)
    one.path_lost(1, 0.0)
    up(one, path=2)
    one.receive(2, wire.sync(sync), 0.0)
    assert one.failure is not None
    assert one.failure.acknowledged_bytes == 5
    said = frames(one.next_record(2, 70_000, 0.0))
    assert said[0].code == LOST_STATE  # type: ignore[attr-defined]


def test_without_a_path_a_session_waits_for_its_keep_alive_and_no_longer() -> None:
    core = session()
    core.tick(1e9)  # before its first path it waits for ever
    up(core)
    core.tick(2e9)
    core.path_lost(1, 2e9)
    assert core.next_timer() == 2e9 + 100
    core.tick(2e9 + 99.9)
    assert core.failure is None
    core.tick(2e9 + 100)
    assert core.failure is not None
    assert not core.failure.by_peer


def test_a_session_without_keep_alive_ends_with_its_last_path() -> None:
    core = session(keep_alive_s=0)
    up(core)
    core.path_lost(1, 5.0)
    assert core.next_timer() == 5.0
    core.tick(5.0)
    assert core.state is State.FAILED


def test_keep_alive_is_agreed_by_the_smaller_number() -> None:
    one, other = session(limits=Limits(keep_alive_s=1_000)), session()
    up(one, other)
    other.keep_alive(5_000)
    pump(one, other)
    assert other.events() == [KeepAliveAgreed(1_000)]
    assert one.events() == [KeepAliveAgreed(1_000)]
    one.keep_alive(50)
    pump(one, other)
    assert [each.control.terms.seconds for each in (one, other)] == [50, 50]


def test_a_proposal_that_was_lost_is_made_again() -> None:
    one, other = pair()
    one.keep_alive(77)
    one.next_record(1, 70_000, 0.0)
    for each in (one, other):
        each.path_lost(1, 0.0)
    up(one, other, path=2)
    pump(one, other, path=2)
    assert [each.control.terms.seconds for each in (one, other)] == [77, 77]


def test_wishes_and_facts_reach_the_peer() -> None:
    one, other = pair()
    one.wish(250_000_000, 300.0, now=100.0)
    pump(one, other, now=1_000.0)
    (wish,) = other.events()
    assert isinstance(wish, PeerWishes)
    assert wish.expected_bytes == 250_000_000
    assert wish.deadline_at_s == pytest.approx(1_200.0)
    one.path_facts(1, Facts(metered=True, rtt_s=0.045, rate_bps=12e6, loss=0.0015), 0.0)
    pump(one, other)
    peer = other.paths[0].peer
    assert peer is not None
    assert (peer.metered, peer.rtt_s, peer.rate_bps, peer.loss) == (True, 0.045, 12e6, 0.0015)


def test_a_ping_measures_its_round_trip() -> None:
    one, other = pair()
    one.ping(1, 99, 500, 10.0)
    other.receive(1, b"".join(one.next_record(1, 70_000, 10.0)), 10.2)
    one.receive(1, b"".join(other.next_record(1, 70_000, 10.2)), 10.5)
    assert one.events() == [Ponged(1, 99, 0.5)]


def test_the_streams_label_can_change() -> None:
    one, other = pair()
    one.write(b"x" * 1_000)
    one.sender.label_stream(3)
    assert one.backlog.waiting_bytes == [0, 0, 0, 0]
    one.send(b"first", 1, after=ALL)
    sent = [type(each) for each in frames(one.next_record(1, 70_000, 0.0))]
    assert sent == [Messages, StreamData]
    assert other.failure is None
