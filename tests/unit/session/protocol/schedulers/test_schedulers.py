"""One conformance test for all path schedulers.

The model: paths that carry what they were given at their rate, a driver that asks each path with room
until nobody answers, and looks again when a scheduler says so.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.session.protocol import schedulers
from cedos.session.protocol.schedulers.decided import DecidedScheduler
from cedos.session.protocol.schedulers.interface import (
    ALL_RANKS,
    Backlog,
    PathState,
    Scheduler,
    allowed,
)

Make = Any
KERNEL_BYTES = 300_000


class Model:
    """Paths with kernels of their own under one scheduler."""

    def __init__(self, scheduler: Scheduler, paths: list[PathState], waiting: list[int]) -> None:
        self.scheduler = scheduler
        self.paths = paths
        self.backlog = Backlog(waiting, [0, 0, 0, 0], -1e9)
        self.now = 100.0
        self.given: dict[int, list[tuple[int, int]]] = {each.path_id: [] for each in paths}

    def pump(self) -> None:
        progress = True
        while progress:
            progress = False
            for each in self.paths:
                while (room := KERNEL_BYTES - each.facts.unsent_bytes) > 0 and self._ask(
                    each, room
                ):
                    progress = True

    def _ask(self, asked: PathState, room: int) -> bool:
        grant = self.scheduler.choose(asked, self.paths, self.backlog, room, self.now)
        if grant is None or grant.copy:
            assert grant is None or self.scheduler.copies
            return False
        assert asked.allowed >> grant.rank & 1
        assert grant.limit_bytes > 0
        assert grant.skip_bytes >= 0
        waiting = self.backlog.waiting_bytes[grant.rank]
        size = min(grant.limit_bytes, room, waiting - grant.skip_bytes)
        assert size > 0, f"granted what is not there: {grant} of {waiting}"
        self.backlog.waiting_bytes[grant.rank] -= size
        asked.facts.unsent_bytes += size
        asked.in_flight_bytes += size
        asked.sent_bytes += size
        self.given[asked.path_id].append((grant.rank, size))
        return True

    def carry(self, seconds: float) -> None:
        self.now += seconds
        for each in self.paths:
            rate = each.facts.rate_bps or 1e6
            sent = min(each.facts.unsent_bytes, int(rate / 8 * seconds))
            each.facts.unsent_bytes -= sent
            each.in_flight_bytes = each.facts.unsent_bytes


EVERY = [*schedulers.NAMES, "chosen", "chosen twice"]


def made(name: str) -> Scheduler:
    if not name.startswith("chosen"):
        return schedulers.scheduler(name)
    chosen = DecidedScheduler(schedulers.scheduler())
    chosen.repeat(ALL_RANKS if name == "chosen twice" else 0)
    return chosen


@pytest.mark.parametrize("name", EVERY)
def test_each_says_what_it_wants(name: str) -> None:
    """Of redundancy, and whether a small message may pass it by: nothing is guessed."""
    scheduler = made(name)
    assert scheduler.name
    assert {type(scheduler.copies), type(scheduler.prompt)} == {bool}
    # Somebody's choices are made known by being asked.
    assert scheduler.prompt == (name in ("labels", schedulers.DEFAULT))


facts = st.tuples(
    st.none() | st.floats(1e-4, 2.0), st.none() | st.floats(1e4, 1e9), st.floats(0, 0.5)
)


@pytest.mark.parametrize("name", EVERY)
@settings(max_examples=25)
@given(
    known=st.lists(facts, min_size=1, max_size=4),
    waiting=st.lists(st.integers(0, 2_000_000), min_size=4, max_size=4),
)
def test_everything_goes_out(
    make: Make, name: str, known: list[tuple[float | None, float | None, float]], waiting: list[int]
) -> None:
    paths = [make.path(n, rtt, rate, loss=loss) for n, (rtt, rate, loss) in enumerate(known, 1)]
    model = Model(made(name), paths, list(waiting))
    slowest = min(each.facts.rate_bps or 1e6 for each in paths)
    for _ in range(4000):
        model.pump()
        if not any(model.backlog.waiting_bytes):
            break
        # The driver looks again at this time, or as soon as a kernel has sent something.
        check_s = model.scheduler.next_check_s(paths, model.now)
        unsent = any(each.facts.unsent_bytes for each in paths)
        assert check_s is not None or unsent, "nothing will ever wake the driver"
        model.carry(max(check_s or 0.0, 8 * KERNEL_BYTES / slowest))
    assert model.backlog.waiting_bytes == [0, 0, 0, 0]
    assert sum(size for pieces in model.given.values() for _, size in pieces) == sum(waiting)


@pytest.mark.parametrize("name", EVERY)
def test_urgent_first_on_one_path(make: Make, name: str) -> None:
    model = Model(made(name), [make.path(1, 0.02, 80e6)], [3000, 50_000, 2000, 60_000])
    for _ in range(100):
        model.pump()
        model.carry(0.1)
    ranks = [rank for rank, _ in model.given[1]]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2, 3}


@pytest.mark.parametrize("name", EVERY)
def test_a_label_stays_off_paths_that_it_is_not_let_onto(make: Make, name: str) -> None:
    closed, open_ = make.path(1, 0.001, 1e9, allowed=0b0011), make.path(2, 0.5, 1e6)
    model = Model(made(name), [closed, open_], [0, 0, 0, 100_000])
    for _ in range(100):
        model.pump()
        model.carry(1.0)
    assert model.given[1] == []
    assert sum(size for _, size in model.given[2]) == 100_000


def test_a_label_is_allowed_onto_nothing_where_no_path_lets_it(make: Make) -> None:
    assert not allowed([], 0)
    assert not allowed([make.path(1, allowed=0b0111)], 3)
    assert allowed([make.path(1)], 3)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no scheduler is called 'x': there are intnw"):
        schedulers.scheduler("x")
