"""A stream that can wait: the table of its process says when it may use a metered network."""

from types import SimpleNamespace

import pytest

from cedos.model import Direction
from cedos.session.sockets import metered_gate
from cedos.session.sockets.metered_gate import DeadlineGate, OwnTable

LTE = {"lte0": True}
MB = 1_000_000


class Laptop:
    """Its clock, and a table that knows an LTE of 8 Mbit/s."""

    def __init__(self):
        self.at_s = 1000.0
        self.table = OwnTable()
        for second in range(1000):
            self.table.table.networks.measured("lte0", Direction.DOWN, 8e6, 1.0, float(second))

    def passes(self, seconds):
        self.at_s += seconds


@pytest.fixture
def laptop(monkeypatch):
    made = Laptop()
    clock = SimpleNamespace(monotonic=lambda: made.at_s, time=lambda: 1e9 + made.at_s)
    monkeypatch.setattr(metered_gate, "time", clock)
    monkeypatch.setattr(metered_gate, "time", clock)
    monkeypatch.setattr(metered_gate, "OWN_TABLE", made.table)
    return made


def test_it_begins_over_lte_as_late_as_is_safe_and_not_later(laptop):
    """10 MB are ten seconds of it."""
    gate = DeadlineGate("there", 100.0, 10 * MB)
    assert gate.update(0, {}, LTE)
    assert not gate.open
    while not gate.open:
        laptop.passes(0.5)
        gate.update(0, {}, LTE)
    left_s = 1100.0 - laptop.at_s
    assert 10.0 < left_s < 30.0


def test_two_that_would_each_be_in_time_begin_early_enough_for_both(laptop):
    """Cedos' Figure 6b: each for itself they would wait too long, and both be late."""
    gates = [DeadlineGate("there", 100.0, 30 * MB) for _ in range(2)]
    begun = []
    while not begun:
        laptop.passes(0.5)
        for each in gates:
            each.update(0, {}, LTE)
        begun = [each for each in gates if each.open]
    assert 1100.0 - laptop.at_s > 60.0
    assert len(begun) == 1, "one after the other, as two at a time help neither"
    (first,) = begun
    (second,) = (each for each in gates if each is not first)
    first.update(30 * MB, {"lte0": 30 * MB}, LTE)
    assert not first.open
    while not second.open:
        laptop.passes(0.5)
        second.update(0, {}, LTE)
    assert 1100.0 - laptop.at_s > 30.0


def test_a_table_that_is_full_holds_nobody_back(laptop, monkeypatch):
    monkeypatch.setattr("cedos.selector.deadlines.transfer_table.MOST_OF_USER", 0)
    gate = DeadlineGate("there", 3600.0, MB)
    gate.update(0, {}, LTE)
    assert gate.open
