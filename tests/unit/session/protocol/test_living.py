"""A living session goes on in another process: nothing is lost, nothing comes twice or too early."""

import random
from typing import Any

import pytest

from cedos.session.protocol.living import pack_living, unpack_living
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.session import Session
from cedos.session.protocol.session_limits import SessionLimits

Cores = Any
LIMITS = SessionLimits(irob_window=700_000, acknowledge_bytes=20_000)


class Pair:
    """Both ends, what was sent, what came; each end has paths that come and go."""

    def __init__(self, cores: Cores, seed: int) -> None:
        self.cores, self.draw = cores, random.Random(seed)
        self.ends = [cores.session(limits=LIMITS) for _ in range(2)]
        self.sent: list[dict[int, tuple[bytes, tuple[int, ...]]]] = [{}, {}]
        self.came: list[list[tuple[int, bytes]]] = [[], []]
        self.last: dict[tuple[int, int], int] = {}
        self.paths: list[int] = []
        self.numbers = iter(range(1, 1000))
        self.up()

    def up(self) -> None:
        path = next(self.numbers)
        self.paths.append(path)
        for each in self.ends:
            each.path_up(path, PathFacts(network=f"net{path % 2}"), 0.0)

    def send(self, side: int) -> None:
        draw = self.draw
        data = draw.randbytes(draw.choice([0, 5, 300, 4_000, 5_000, 16_000, 90_000]))
        chain = draw.randrange(4)
        after = (self.last[side, chain],) if chain and (side, chain) in self.last else ()
        irob = self.ends[side].send(data, draw.randrange(4), after=after)
        if irob:
            self.sent[side][irob] = data, after
            self.last[side, chain] = irob

    def carry(self, side: int) -> bool:
        path = self.draw.choice(self.paths)
        parts = self.ends[side].next_record(path, self.draw.choice([2_000, 70_000]), 0.0)
        if parts:
            self.ends[1 - side].receive(path, b"".join(parts), 0.0)
        return bool(parts)

    def take(self, side: int) -> None:
        while (run := self.ends[side].receive_run(1)) is not None:
            self.came[side] += [(run.first, run.payloads[0])]

    def hand_over(self, side: int) -> None:
        for path in self.paths:
            for each in self.ends:
                each.path_lost(path, 0.0)
        self.paths.clear()
        packed = pack_living(self.ends[side])
        assert packed is not None
        before = self.ends[side].held_bytes
        self.ends[side] = unpack_living(packed, self.cores.scheduler(), 0.0, limits=LIMITS)
        assert self.ends[side].held_bytes <= before
        self.up()

    def settle(self) -> None:
        idle = 0
        while idle < 200:
            for each in self.ends:
                each.tick(1.0)  # acknowledgements are late on purpose
            idle = 0 if any([self.carry(0), self.carry(1)]) else idle + 1
            for side in (0, 1):
                self.take(side)


@pytest.mark.parametrize("seed", range(40))
def test_handed_over_at_any_moment(cores: Cores, seed: int) -> None:
    pair = Pair(cores, seed)
    for _ in range(300):
        what = pair.draw.random()
        side = pair.draw.randrange(2)
        if what < 0.35:
            pair.send(side)
        elif what < 0.85:
            pair.carry(side)
        elif what < 0.93:
            pair.take(side)
        elif what < 0.95 and len(pair.paths) < 3:
            pair.up()
        elif what > 0.97:
            pair.hand_over(side)
    pair.settle()
    for side in (0, 1):
        got = pair.came[1 - side]
        assert dict(got) == {irob: data for irob, (data, _) in pair.sent[side].items()}
        assert len(got) == len(dict(got)), "one came twice"
        place = {irob: at for at, (irob, _) in enumerate(got)}
        for irob, (_, after) in pair.sent[side].items():
            assert all(place[each] < place[irob] for each in after)
        end = pair.ends[side]
        assert end.sender.everything_acknowledged()
        assert end.sender.replay.held_bytes == 0
        assert end.held_bytes == 0


def test_windows_and_credit_are_the_same_after_it(cores: Cores) -> None:
    """Thousands of bytes more than the first windows go through, with a hand-over every few messages."""
    one, other = cores.pair()
    for number in range(60):
        irob = one.send(bytes(50_000), 0, after=())
        assert irob
        path = 2 * number + 2
        cores.up(one, other, path=path)
        cores.pump(one, other, path=path)
        assert [len(data) for _, data in cores.messages(other)] == [50_000]
        if number % 3 == 0:
            packed = pack_living(one)
            assert packed is not None
            for each in list(one.in_flight.paths):
                other.path_lost(each, 0.0)
            one = unpack_living(packed, cores.scheduler(), 0.0, limits=SessionLimits())


def _busy_stream(session: Session) -> None:
    session.write(b"x")


def _closing(session: Session) -> None:
    session.close()


def _open_message(session: Session) -> None:
    session.begin(0)


@pytest.mark.parametrize("make", [_busy_stream, _closing, _open_message])
def test_what_cannot_be_handed_over_is_said_so(cores: Cores, make: Any) -> None:
    one, _ = cores.pair()
    make(one)
    assert pack_living(one) is None


@pytest.mark.parametrize("data", [b"", b"\x90", b"nonsense", bytes(300)])
def test_what_no_session_was_packed_into_is_refused(cores: Cores, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"MessagePack|array|Expected|truncated"):
        unpack_living(data, cores.scheduler(), 0.0, limits=LIMITS)
