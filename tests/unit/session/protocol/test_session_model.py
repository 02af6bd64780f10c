"""Two cores under random cuts, sends, deliveries and naps, against a model that only knows the promises.

The model: a stream's bytes come in order, each once; an IROB comes once, whole, and not before those it
waits for; nothing is lost once a path stays up long enough; and replay memory is empty then.
"""

import random
from collections import deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from cedos.session.protocol.idle_record import IdleRecord, pack, unpack_session
from cedos.session.protocol.life import SessionLimits, SessionState
from cedos.session.protocol.path_watch import PathVoice
from cedos.session.protocol.room import ReplayMemory
from cedos.session.protocol.schedulers.interface import PathFacts, SendGrant
from cedos.session.protocol.session import ALL, Session

BYTES = random.Random(5).randbytes(1 << 19) * 2  # position p of a stream has BYTES[p % 2**19]
LIMITS = SessionLimits(
    send_bytes=600_000,
    stream_window=262_144,
    irob_window=655_360,
    irob_bytes=262_144,
    acknowledge_bytes=20_000,
    keep_alive_s=10_000,
)
SIDES = st.integers(0, 1)
RANKS = st.integers(0, 3)


class Whimsical:
    """A scheduler that does anything the protocol of schedulers allows, drawn from a seed."""

    name = "whimsical"
    prompt = True

    def __init__(self, seed, copies):
        self._random = random.Random(seed)
        self.copies = copies

    def choose(self, path, paths, backlog, room_bytes, now):
        draw = self._random
        if draw.random() < 0.15:
            return None
        rank = draw.randrange(4)
        if self.copies and backlog.copyable_bytes[rank] and draw.random() < 0.5:
            return SendGrant(rank, room_bytes, copy=True)
        ranks = [each for each in range(4) if backlog.waiting_bytes[each]]
        if not ranks:
            return None
        skip = draw.choice([0, 0, 1, 700, 20_000])
        return SendGrant(draw.choice(ranks), draw.choice([1, 3000, room_bytes]), skip)

    def next_check_s(self, paths, now):
        return None


@dataclass
class End:
    """An end as the model sees it."""

    core: Session
    written: int = 0  # bytes of its stream handed in
    read: int = 0  # bytes of the other one's stream read
    irobs: dict[int, bytes] = field(default_factory=dict)  # handed in whole
    after: dict[int, tuple[int, ...] | None] = field(default_factory=dict)
    rank: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)  # delivered to the other end


@dataclass
class Wire:
    """A path: the records on their way in each direction, and the ends that still hold it."""

    way: tuple[deque[bytes], deque[bytes]] = field(default_factory=lambda: (deque(), deque()))
    up: list[bool] = field(default_factory=lambda: [True, True])


class Sessions(RuleBasedStateMachine):
    @initialize(
        seed=st.integers(0, 1 << 30), copies=st.booleans(), quiet_rounds=st.sampled_from([0, 0, 2])
    )
    def begin(self, seed, copies, quiet_rounds):
        self.quiet_rounds = quiet_rounds
        self.now = 100.0
        self.random = random.Random(seed)
        self.memory = ReplayMemory(1 << 30)
        self.scheduler = Whimsical(seed, copies)
        self.ends = [End(self._core()), End(self._core())]
        self.wires = {}
        self.next_path = 1
        self.come_up()

    def _core(self):
        return Session(
            self.scheduler, self.now, limits=LIMITS, memory=self.memory, keep_alive_s=10_000
        )

    # The network

    @precondition(lambda self: len(self.wires) < 3)
    @rule()
    def come_up(self):
        self.wires[self.next_path] = Wire()
        for end in self.ends:
            end.core.path_up(self.next_path, PathFacts(), self.now)
        self.next_path += 1

    def _lose(self, path, side):
        wire = self.wires[path]
        if wire.up[side]:
            wire.up[side] = False
            self.ends[side].core.path_lost(path, self.now)
            wire.way[1 - side].clear()
        if not any(wire.up):
            del self.wires[path]

    def _break_all(self):
        for path in sorted(self.wires):
            for side in (0, 1):
                if path in self.wires:
                    self._lose(path, side)

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), sides=st.sampled_from([(0,), (1,), (0, 1)]), keep=st.integers(0, 3))
    def cut(self, data, sides, keep):
        """A path breaks; of what was on the way some may still arrive, if the other end waits for it."""
        path = data.draw(st.sampled_from(sorted(self.wires)))
        for way in self.wires[path].way:
            while len(way) > keep:
                way.pop()
        for side in sides:
            if path in self.wires:
                self._lose(path, side)

    @precondition(lambda self: self.wires)
    @rule(
        data=st.data(), side=SIDES, room=st.sampled_from([1, 500, 5_000, 40_000, 70_000, 300_000])
    )
    def send_records(self, data, side, room):
        path = data.draw(st.sampled_from(sorted(self.wires)))
        self._send(path, side, room, data.draw(st.integers(1, 8)))

    def _send(self, path, side, room, count):
        wire, sent = self.wires[path], False
        for _ in range(count if wire.up[side] else 0):
            parts = self.ends[side].core.next_record(path, room, self.now)
            if not parts:
                break
            record = b"".join(parts)
            assert 0 < len(record) <= 262_144
            sent = True
            if wire.up[1 - side]:
                wire.way[side].append(record)
        return sent

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), side=SIDES, count=st.integers(1, 10), owned=st.booleans())
    def deliver(self, data, side, count, owned):
        self._deliver(data.draw(st.sampled_from(sorted(self.wires))), side, count, owned)

    def _deliver(self, path, side, count, owned=True):
        way = self.wires[path].way[side]
        for done in range(count):
            if not way:
                return done > 0
            record = way.popleft()
            if owned:
                self.ends[1 - side].core.receive(path, record, self.now)
            else:
                shared = bytearray(record)
                self.ends[1 - side].core.receive(path, memoryview(shared), self.now)
                shared[:] = bytes(len(shared))  # the driver's buffer is used again
        return True

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), side=SIDES)
    def stall(self, data, side):
        path = data.draw(st.sampled_from(sorted(self.wires)))
        if self.wires[path].up[side]:
            self.ends[side].core.requeue(path, self.now)

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), side=SIDES, voice=st.sampled_from(PathVoice))
    def hear(self, data, side, voice):
        path = data.draw(st.sampled_from(sorted(self.wires)))
        if self.wires[path].up[side]:
            self.ends[side].core.path_voice(path, voice, self.now)

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), side=SIDES, mask=st.integers(0, 15))
    def allow(self, data, side, mask):
        path = data.draw(st.sampled_from(sorted(self.wires)))
        if self.wires[path].up[side]:
            self.ends[side].core.allow(path, mask, self.now)

    @rule(seconds=st.sampled_from([0.001, 0.03, 1.0]))
    def wait(self, seconds):
        self.now += seconds
        for end in self.ends:
            end.core.tick(self.now)

    @rule(side=SIDES)
    def nap(self, side):
        """An idle session becomes a record; its core is forgotten and made again."""
        end = self.ends[side]
        if any(wire.up[side] for wire in self.wires.values()):
            return
        idle = pack(end.core, self.now, self.now + 5e8)
        if idle is None:
            return
        end.core = unpack_session(
            IdleRecord.from_bytes(idle.to_bytes()),
            self.scheduler,
            self.now,
            self.now + 5e8,
            limits=LIMITS,
            memory=self.memory,
        )

    @precondition(lambda self: self.quiet_rounds)
    @rule(side=SIDES)
    def settle(self, side):
        """Everything arrives, then all paths break: what naps need. Only in some runs."""
        self.quiet_rounds -= 1
        for busy in (0, 1):
            self.write(busy, 50)
            self.send(busy, 3, 5_000, "all")
            self.send_several(busy, 0, 3, True)
        self._break_all()
        self.come_up()
        self._settle()
        self._break_all()
        for each in self.ends:
            each.core.events()
        self.nap(side)

    # The applications

    @rule(side=SIDES, size=st.sampled_from([1, 50, 3_000, 90_000]))
    def write(self, side, size):
        end = self.ends[side]
        start = end.written % (1 << 19)
        end.written += end.core.write(BYTES[start : start + size])

    @rule(side=SIDES, size=st.sampled_from([5, 70_000]))
    def write_source(self, side, size):
        end = self.ends[side]
        start = end.written
        if start % (1 << 19) + size < 1 << 19:
            end.core.write_source(
                lambda offset, count: BYTES[(start + offset) % (1 << 19) :][:count], size
            )
            end.written += size

    @rule(
        side=SIDES,
        rank=RANKS,
        size=st.sampled_from([0, 10, 4_096, 4_097, 100_000]),
        kind=st.sampled_from(["all", "free", "list"]),
    )
    def send(self, side, rank, size, kind):
        end = self.ends[side]
        after = self._after(end, kind)
        data = BYTES[:size]
        irob = self._express(side, rank, data) if after is ALL else 0
        irob = irob or end.core.send(data, rank, after=after)
        if irob:
            end.irobs[irob], end.after[irob], end.rank[irob] = data, after, rank

    def _express(self, side, rank, data):
        """Past all queues, where a session may; the path may be lost in sending it."""
        core = self.ends[side].core
        path = core.fast_path.path(len(data), rank)
        made = None if path is None else core.fast_path.send(data, rank)
        if path is None or made is None:
            return 0
        irob, record = made
        wire = self.wires[path.state.path_id]
        if self.random.random() < 0.1:
            self._lose(path.state.path_id, side)
        elif wire.up[1 - side]:
            wire.way[side].append(record)
        core.fast_path.on_sent(path, irob, data, rank, self.now)
        return irob

    def _after(self, end, kind):
        if kind == "all":
            return ALL
        newest = end.core.sender.next_irob
        if kind == "free" or newest == 1:
            return ()
        return tuple({self.random.randrange(max(1, newest - 8), newest) for _ in range(3)})

    @rule(side=SIDES, rank=RANKS, count=st.integers(1, 40), ordered=st.booleans())
    def send_several(self, side, rank, count, ordered):
        end, after = self.ends[side], ALL if ordered else ()
        for at in range(count):
            data = BYTES[at : at + at % 90]
            if irob := end.core.send(data, rank, after=after):
                end.irobs[irob], end.after[irob], end.rank[irob] = data, after, rank

    @rule(side=SIDES, limit=st.sampled_from([1, 1000, 1 << 30]))
    def read(self, side, limit):
        self._read(side, limit)

    def _read(self, side, limit):
        end = self.ends[side]
        chunk = bytes(end.core.read(limit))
        for offset in range(0, len(chunk), 1 << 16):
            part = chunk[offset : offset + (1 << 16)]
            start = (end.read + offset) % (1 << 19)
            assert part == BYTES[start : start + len(part)], "other bytes than written"
        end.read += len(chunk)
        assert end.read <= self.ends[1 - side].written
        return bool(chunk)

    @rule(side=SIDES, limit=st.sampled_from([1, 3, 1 << 30]))
    def receive(self, side, limit):
        self._receive(side, limit)

    def _receive(self, side, limit):
        run = self.ends[side].core.receive_run(limit)
        if run is None:
            return False
        assert 0 < len(run.payloads) <= limit
        sender = self.ends[1 - side]
        for irob, payload in enumerate(run.payloads, run.first):
            assert irob not in sender.gone, "delivered twice"
            assert sender.irobs[irob] == payload
            assert sender.rank[irob] == run.rank
            after = sender.after[irob]
            waits = range(1, irob) if after is ALL else after
            assert all(each in sender.gone for each in waits), "before those it waits for"
            sender.gone.add(irob)
        return True

    @invariant()
    def nobody_has_failed(self):
        for end in getattr(self, "ends", []):
            assert end.core.failure is None
            assert 0 <= end.core.sender.replay.held_bytes <= LIMITS.send_bytes
            assert all(queue.waiting_bytes >= 0 for queue in end.core.sender.send_queues)
            assert all(path.in_flight_bytes >= 0 for path in end.core.paths)

    # In the end everything arrives

    def teardown(self):
        if not hasattr(self, "ends"):
            return
        self._break_all()
        self.scheduler.copies = False
        self.come_up()
        self._settle()
        for end, other in (self.ends, self.ends[::-1]):
            assert other.read == end.written
            assert end.gone == set(range(1, end.core.sender.next_irob))
            assert end.core.sender.everything_acknowledged()
            assert end.core.sender.replay.held_bytes == 0
            assert end.core.in_flight.idle
            assert end.core.receiver.idle
            assert [queue.waiting_bytes for queue in end.core.sender.send_queues] == [0, 0, 0, 0]
        assert self.memory.used_bytes == 0
        for end in self.ends:
            end.core.close()
        self._settle()
        assert [end.core.state for end in self.ends] == [SessionState.FINISHED] * 2
        assert self.ends[0].core.at_eof

    def _settle(self):
        path = self.next_path - 1
        quiet = 0
        # The scheduler often says no, or grants less than a message has.
        while quiet < (1_000 if any(end.core.sender.waits for end in self.ends) else 40):
            moved = False
            for side in (0, 1):
                moved |= self._send(path, side, 70_000, 50)
                moved |= self._deliver(path, side, 1000)
                while self._read(1 - side, 1 << 30) or self._receive(1 - side, 1 << 30):
                    moved = True
            quiet = 0 if moved else quiet + 1
            self.wait(0.03)


TestSessions = Sessions.TestCase
TestSessions.settings = settings(stateful_step_count=40)
