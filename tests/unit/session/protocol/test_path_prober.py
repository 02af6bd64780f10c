"""When a resting path is probed, what is sent then, and what the answers tell."""

from typing import Any

import pytest

from cedos.session.io.path_estimator import PathEstimator
from cedos.session.protocol import path_watch as p
from cedos.session.protocol.frames import Ping, Pong
from cedos.session.protocol.life import Probed, SessionLimits
from cedos.session.protocol.schedulers import scheduler
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.session import Session
from cedos.session.protocol.unpacking import unpack

ONE, TWO = 1, 2


class Ends:
    """A session over two paths whose every record arrives when the test says."""

    def __init__(self, *, probes: bool = True, both: bool = True, **facts: Any) -> None:
        self.near, self.far = (
            Session(scheduler("labels"), 0.0, limits=SessionLimits(probes=wanted), keep_alive_s=100)
            for wanted in (probes, False)
        )
        self.facts = PathFacts(network="two", **facts)
        for path_id in (ONE, TWO) if both else (TWO,):
            facts_there = PathFacts(network="one") if path_id == ONE else self.facts
            self.near.path_up(path_id, facts_there, 0.0, self.near.positions())
            self.far.path_up(path_id, PathFacts(), 0.0)
        self.carry(0.0)

    def carry(self, now: float) -> None:
        """Everything both have to say, at once."""
        moved = True
        while moved:
            moved = False
            for here, there in ((self.near, self.far), (self.far, self.near)):
                for state in here.paths:
                    while parts := here.next_record(state.path_id, 70_000, now):
                        there.receive(state.path_id, b"".join(parts), now)
                        moved = True

    def sent(self, path_id: int, now: float) -> list[bytes]:
        """The near end's records after its timer."""
        self.near.tick(now)
        records = []
        while parts := self.near.next_record(path_id, 70_000, now):
            records.append(b"".join(parts))
        return records

    def answered(self, records: list[bytes], at: list[float]) -> list[object]:
        """What happened once the answer to each record had come at its time."""
        for record, now in zip(records, at, strict=True):
            self.far.receive(TWO, record, now)
            self.near.receive(TWO, b"".join(self.far.next_record(TWO, 70_000, now)), now)
        return [each for each in self.near.events() if isinstance(each, Probed)]

    def used(self, now: float, count: int) -> None:
        """The first path carries so many bytes."""
        state = self.near.paths[0]
        state.sent_bytes += count
        state.last_sent_at_s = now

    def asks(self, now: float) -> bool:
        return bool(self.sent(TWO, now))


def test_two_pings_in_records_of_their_own_and_short_answers() -> None:
    ends = Ends()
    assert ends.near.next_timer() == p.REST_S
    assert not ends.asks(p.REST_S - 0.01)
    records = ends.sent(TWO, p.REST_S)
    (short,), (padded,) = (list(unpack(record)) for record in records)
    assert isinstance(short, Ping)
    assert isinstance(padded, Ping)
    assert (short.pad_bytes, padded.pad_bytes) == (0, p.PAD_BYTES)
    for record in records:
        ends.far.receive(TWO, record, 1.0)
    answer = b"".join(ends.far.next_record(TWO, 70_000, 1.0))
    assert [type(each) for each in unpack(answer)] == [Pong, Pong]
    assert len(answer) < len(records[0]) * 2
    assert not ends.asks(1e6)  # one for each path, while it carries nothing


def test_the_rate_is_what_came_between_the_answers() -> None:
    ends = Ends()
    spread_s = 8 * (p.PAD_BYTES - p.FIRST_SEGMENT_BYTES) / 4e6
    (event,) = ends.answered(ends.sent(TWO, 1.0), [1.05, 1.05 + spread_s])
    assert isinstance(event, Probed)
    assert (event.path_id, event.at_least) == (TWO, False)
    assert event.rate_bps == pytest.approx(4e6)
    assert event.round_trip_s == pytest.approx(0.05)


def test_answers_that_come_together_give_only_a_lower_bound() -> None:
    ends = Ends()
    (event,) = ends.answered(ends.sent(TWO, 1.0), [1.05, 1.0501])
    assert isinstance(event, Probed)
    assert event.at_least
    assert event.rate_bps == pytest.approx(8 * 10_552 / 0.0501)


def test_answers_behind_other_data_say_nothing() -> None:
    ends = Ends()
    records = ends.sent(TWO, 1.0)
    ends.far.paths[1].facts.rtt_s = 0.001
    ends.far.write(bytes(5_000))
    assert ends.answered(records, [1.05, 1.15]) == []


def test_forged_answers_are_nothing() -> None:
    ends = Ends()
    records = ends.sent(TWO, 1.0)
    short, padded = (frame.token for record in records for frame in unpack(record))
    for token in (padded, padded + 1, 7, short, short):
        ends.near.receive(TWO, p.packing.pong(token), 1.1)
        assert ends.near.events() == []
    for _ in range(2):
        ends.near.receive(TWO, p.packing.pong(padded), 1.2)
    assert len(ends.near.events()) == 1


@pytest.mark.parametrize(
    "quiet",
    [
        {"probes": False},
        {"both": False},
        {"stalled_at_s": 0.5},
        {"metered": True},
        {"rate_bps": 1e6, "rate_at_s": 990.0},
        {"rate_bps": 1e3, "rate_at_s": 0.0},
    ],
    ids=["off", "no choice", "silent", "metered", "known", "known, and very slow"],
)
def test_where_none_is_sent(quiet: dict[str, Any]) -> None:
    assert not Ends(**quiet).asks(1_000.0)


def test_what_the_other_end_pays_for_is_metered_too() -> None:
    ends = Ends()
    ends.far.path_facts(TWO, PathFacts(metered=True), 0.0)
    ends.carry(0.0)
    assert not ends.asks(100.0)


def test_a_metered_path_only_for_a_share_and_where_no_label_is_forbidden() -> None:
    ends = Ends(metered=True)
    ends.used(1.0, p.LEAST_BYTES_SHARE * p.PAD_BYTES)
    ends.far.allow(TWO, 0b0111, 1.0)
    ends.carry(1.0)
    assert not ends.asks(10.0)
    ends.far.allow(TWO, 0b1111, 10.0)
    ends.carry(10.0)
    assert not ends.asks(10.5)
    assert ends.asks(12.0)


def test_a_path_that_no_label_may_use_is_left_alone() -> None:
    ends = Ends()
    ends.near.allow(TWO, 0, 0.0)
    ends.carry(0.0)
    assert not ends.asks(10.0)


def test_foreground_goes_first() -> None:
    ends = Ends()
    ends.facts.foreground_at_s = 3.0  # another process of this host
    assert not ends.asks(7.9)
    irob = ends.near.begin(1, after=())
    ends.near.append(irob, b"x")
    assert ends.near.prober.next_at() is None
    ends.carry(7.9)
    assert ends.asks(8.1)  # it went over the other one


def test_again_only_when_old_and_for_a_share_of_bytes_and_of_time() -> None:
    ends = Ends()
    assert ends.answered(ends.sent(TWO, 1.0), [1.05, 1.15])
    ends.facts.rate_bps, ends.facts.rate_at_s = 20e6, 1.15
    ends.used(2.0, p.LEAST_BYTES_SHARE * p.PAD_BYTES - 1)
    assert not ends.asks(1_000.0)
    ends.used(2.0, 1)
    assert not ends.asks(1.1 + p.OLD_S)
    ends.facts.rate_bps = 1e6  # 96 ms for each
    assert not ends.asks(97.0)
    assert ends.asks(97.2)
    assert not ends.asks(5_000.0)


def test_the_end_that_accepted_waits_longer() -> None:
    ends = Ends()
    ends.near.in_flight.paths[TWO].dialled = False
    assert not ends.asks(1.9)
    assert ends.asks(2.0)


# What the path estimator makes of it


def probed(
    estimator: PathEstimator, rate_bps: float, now: float = 5.0, *, at_least: bool = False
) -> None:
    estimator.probed(Probed(TWO, rate_bps, 0.03, at_least), now)


def test_a_probe_stands_until_there_is_traffic() -> None:
    facts = PathFacts()
    estimator = PathEstimator(facts)
    probed(estimator, 4e6)
    assert (facts.rate_bps, facts.rtt_s, facts.rate_at_s) == (4e6, 0.03, 5.0)
    estimator.measured(0.2e6, at_least=True, few=True)
    assert facts.rate_bps == 4e6
    estimator.measured(9e6, at_least=False)
    assert facts.rate_bps == 9e6


def test_a_probe_is_worth_more_than_a_few_bytes_and_less_than_many() -> None:
    facts = PathFacts()
    estimator = PathEstimator(facts)
    estimator.measured(0.05e6, at_least=True, few=True)
    assert facts.rate_at_s is None
    probed(estimator, 4e6)
    assert facts.rate_bps == 4e6
    estimator.measured(5e6, at_least=True)
    probed(estimator, 130e6)
    assert facts.rate_bps == pytest.approx(5e6 + 125e6 / 8)


def test_a_change_that_two_probes_see_is_believed() -> None:
    facts = PathFacts()
    estimator = PathEstimator(facts)
    estimator.measured(20e6, at_least=False)
    for _ in range(4):
        probed(estimator, 2e6)
    assert 2e6 < (facts.rate_bps or 0) < 6e6


def test_a_lower_bound_only_raises() -> None:
    facts = PathFacts()
    estimator = PathEstimator(facts)
    probed(estimator, 4e6)
    probed(estimator, 1e6, at_least=True)
    assert facts.rate_bps == 4e6
    probed(estimator, 6e6, at_least=True)
    assert facts.rate_bps == 6e6
