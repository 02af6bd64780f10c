"""Redundancy, the lowest round trip and turns: what each is there for."""

from typing import Any

from cedos.session.protocol.schedulers.interface import SendGrant
from cedos.session.protocol.schedulers.plain import LowestRtt, RedundantScheduler, RoundRobin

Make = Any
CHUNK = 16_384


class TestRedundant:
    def test_new_data_before_copies(self, make: Make) -> None:
        one = make.path(1)
        waiting = make.backlog(0, 0, 0, 10, copyable=(0, 0, 0, 20))
        assert RedundantScheduler().choose(one, (one,), waiting, 99, 0.0) == SendGrant(3, 99)
        copies = make.backlog(0, 0, 0, 0, copyable=(0, 0, 0, 20))
        assert RedundantScheduler().choose(one, (one,), copies, 99, 0.0) == SendGrant(
            3, 99, copy=True
        )

    def test_only_the_labels_asked_for_go_twice(self, make: Make) -> None:
        one = make.path(1)
        copies = make.backlog(0, 0, 0, 0, copyable=(5, 0, 0, 20))
        assert RedundantScheduler(0b0001).choose(one, (one,), copies, 99, 0.0) == SendGrant(
            0, 99, copy=True
        )
        late = make.backlog(0, 0, 0, 0, copyable=(0, 0, 0, 20))
        assert RedundantScheduler(0b0001).choose(one, (one,), late, 99, 0.0) is None


def test_lowest_rtt_spills_over_when_the_quick_one_is_full(make: Make) -> None:
    quick, slow = make.path(1, 0.01), make.path(2, 0.1)
    waiting = make.backlog(0, 0, 0, 10**6)
    scheduler = LowestRtt()
    assert scheduler.choose(quick, (quick, slow), waiting, 10**6, 0.0) == SendGrant(3, CHUNK)
    assert scheduler.choose(slow, (quick, slow), waiting, 10**6, 0.0) is None
    quick.facts.unsent_bytes = 40_000
    assert scheduler.choose(slow, (quick, slow), waiting, 10**6, 0.0) == SendGrant(3, CHUNK)


def test_round_robin_takes_turns_and_passes_over_who_is_full(make: Make) -> None:
    scheduler = RoundRobin()
    paths = [make.path(1), make.path(2), make.path(3)]
    waiting = make.backlog(0, 0, 0, 10**6)
    order = [
        each.path_id
        for _ in range(6)
        for each in paths
        if scheduler.choose(each, paths, waiting, 10**6, 0.0)
    ]
    assert order[:6] == [1, 2, 3, 1, 2, 3]
    paths[1].facts.unsent_bytes = 10**6
    assert scheduler.choose(paths[0], paths, waiting, 10**6, 0.0)
    assert scheduler.choose(paths[2], paths, waiting, 10**6, 0.0)
