"""Datagrams of two cores: in time or not at all, each once, around a path that does not answer."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import SessionError
from cedos.session.protocol.datagrams import (
    MOST_UNREAD,
    MOST_UNREAD_BYTES,
    WINDOW,
    DatagramReceiver,
    Lateness,
)
from cedos.session.protocol.datagrams import MOST_WAITING as MOST_UNSENT
from cedos.session.protocol.frames import Datagram
from cedos.session.protocol.schedulers.interface import PathFacts

RTT_S = 0.020


class Wire:
    """An end with two paths, whose records a test reads and acknowledges."""

    def __init__(self, cores):
        self.core = cores.session()
        self.now = 10.0
        self.facts = {
            1: PathFacts(network="wlan0", rtt_s=RTT_S),
            2: PathFacts(network="lte0", rtt_s=0.060),
        }
        for number, facts in self.facts.items():
            self.core.path_up(number, facts, self.now)
        self.written = {1: 0, 2: 0}
        self.cores = cores
        self.go()

    def send(self, *payloads, lifetime_s=0.4):
        for each in payloads:
            self.core.send_datagram(each, lifetime_s, self.now)

    def go(self, *paths):
        """Return the datagrams that go over each path now."""
        sent = {}
        self.core.tick(self.now)
        for number in paths or (1, 2):
            sent[number] = []
            while parts := self.core.next_record(number, 70_000, self.now):
                self.written[number] += sum(map(len, parts))
                frames = self.cores.frames(parts)
                sent[number] += [each.payload for each in frames if isinstance(each, Datagram)]
            self.core.datagrams.on_write(number, self.written[number])
        return sent

    def acknowledge(self, path):
        self.core.datagrams.on_acknowledgement(path, self.written[path])


@pytest.fixture
def wire(cores):
    return Wire(cores)


def datagram(number, sent_ms=0, epoch=1, payload=b""):
    return Datagram(epoch, number, sent_ms, 400, payload or str(number).encode())


def test_the_quicker_path_carries_it_and_the_other_none(wire):
    wire.send(b"one", b"two")
    assert wire.go() == {1: [b"one", b"two"], 2: []}
    wire.acknowledge(1)
    wire.now += 1.0
    assert wire.go() == {1: [], 2: []}
    assert wire.core.datagrams.copies == 0
    assert wire.core.datagrams.next_at(wire.core.paths) is None


def test_what_is_not_acknowledged_goes_over_the_other_path_with_all_behind_it(wire):
    wire.send(b"one")
    wire.go()
    wire.now += 0.010
    wire.send(b"two")
    wire.go()
    at = wire.core.next_timer()
    assert at == pytest.approx(10.0 + RTT_S + 0.020)
    wire.now = at + 0.001
    assert wire.go() == {1: [], 2: [b"one", b"two"]}
    # Until the first one answers, what follows goes over both at once.
    wire.now += 0.010
    wire.send(b"three")
    assert wire.go() == {1: [b"three"], 2: [b"three"]}
    wire.acknowledge(1)
    wire.send(b"four")
    assert wire.go() == {1: [b"four"], 2: []}
    assert wire.core.datagrams.copies == 3


def test_a_path_that_began_in_a_time_out_is_not_waited_for_that_long(wire):
    """Its kernel's round trip is that of a lost packet until it has carried more."""
    wire.facts[1].rtt_s, wire.facts[1].rtt_variation_s = 0.78, 0.70
    wire.facts[1].rtt_min_s, wire.facts[2].rtt_s = 0.040, 1.0
    wire.core.datagrams.send(b"one", 2.0, wire.now)
    assert wire.go() == {1: [b"one"], 2: []}
    wire.now += 0.139
    assert wire.go() == {1: [], 2: []}
    wire.now += 0.003
    assert wire.go() == {1: [], 2: [b"one"]}


def test_what_was_on_a_path_that_is_lost_goes_elsewhere(wire):
    wire.send(b"one", b"two")
    wire.go()
    wire.core.path_lost(1, wire.now)
    assert wire.go(2) == {2: [b"one", b"two"]}


def test_labels_bind_a_datagram_but_not_its_copy(wire):
    """A datagram that a daemon keeps to one network is copied to another while the first is silent."""
    wire.facts[2].rtt_s = 0.010
    wire.core.allow(2, 0b0000, wire.now)
    wire.send(b"one")
    assert wire.go() == {1: [b"one"], 2: []}
    wire.now += RTT_S + 0.021
    assert wire.go() == {1: [], 2: [b"one"]}
    wire.core.allow(1, 0b0000, wire.now)
    wire.acknowledge(1)
    wire.send(b"forbidden everywhere")
    assert wire.go() == {1: [], 2: []}


def test_what_is_expired_is_never_sent(wire):
    wire.send(b"old", lifetime_s=0.1)
    wire.send(b"new", lifetime_s=1.0)
    wire.now += 0.1
    assert wire.go(1) == {1: [b"new"]}
    assert wire.core.datagrams.expired == 1


def test_there_is_a_bound_and_the_oldest_goes_first(wire):
    wire.send(*(str(number).encode() for number in range(MOST_UNSENT + 3)))
    assert wire.go()[1][0] == b"3"
    wire.send(*[bytes(60_000)] * 20)
    assert len(wire.go()[1]) == 8


def test_what_is_too_large_or_has_no_lifetime_is_refused(wire):
    for data, lifetime_s in ((bytes(65_536), 1.0), (b"", 0.0), (b"", 61.0)):
        with pytest.raises(ValueError, match="datagram"):
            wire.core.send_datagram(data, lifetime_s, 0.0)
    wire.core.abort(0, "over")
    with pytest.raises(SessionError):
        wire.core.send_datagram(b"", 1.0, 0.0)


def test_timers_do_not_run_wild(wire):
    """However long a path is silent, there are a hundred looks a second and no more."""
    wire.send(b"one", lifetime_s=10.0)
    wire.go(1)
    looks, end = 0, wire.now + 1.0
    while (at := wire.core.next_timer()) is not None and at < end:
        wire.now = max(wire.now, at)
        wire.core.tick(wire.now)
        looks += 1
    assert looks <= 101


def test_each_comes_once_whatever_path_it_takes(cores):
    one, other = cores.pair()
    one.send_datagram(b"once", 0.4, 1.0)
    record = b"".join(one.next_record(1, 70_000, 1.0))
    for _ in range(2):
        other.receive(1, record, 1.0)
    assert other.datagrams_wait
    assert other.receive_datagrams() == [b"once"]
    assert other.receive_datagrams() == []
    assert other.next_record(1, 70_000, 1.0) == [], "nothing is said in answer"


def test_what_comes_late_is_dropped_though_clocks_differ():
    receiver = DatagramReceiver()
    receiver.on_datagram(datagram(1, sent_ms=(1 << 32) - 10), 100.0)
    receiver.on_datagram(datagram(2, sent_ms=10), 100.020)
    receiver.on_datagram(datagram(3, sent_ms=20), 100.430)
    receiver.on_datagram(datagram(4, sent_ms=20), 100.431)
    assert receiver.take() == [b"1", b"2", b"3"]


def test_a_way_that_has_become_longer_is_the_measure_after_a_while():
    late = Lateness()
    assert late.of(0, 100.0) == 0.0
    assert late.of(1000, 102.0) == 1.0
    for second in range(3, 50):
        late.of(1000 * second, 101.0 + second)
    assert late.of(50_000, 151.0) == 0.0
    assert late.of(50_000, 150.5) == 0.0


def test_a_session_that_was_woken_counts_anew():
    receiver = DatagramReceiver()
    for frame in (datagram(500), datagram(1, epoch=2), datagram(501), datagram(2, epoch=2)):
        receiver.on_datagram(frame, 1.0)
    assert receiver.take() == [b"500", b"1", b"2"]


def test_a_program_that_does_not_read_has_the_newest():
    receiver = DatagramReceiver()
    for number in range(1, MOST_UNREAD + 2):
        receiver.on_datagram(datagram(number), 1.0)
    taken = receiver.take()
    assert (len(taken), taken[0]) == (MOST_UNREAD, b"2")
    for number in range(MOST_UNREAD + 2, MOST_UNREAD + 52):
        receiver.on_datagram(datagram(number, payload=bytes(65_535)), 1.0)
    assert sum(map(len, receiver.take())) <= MOST_UNREAD_BYTES


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=400))
def test_none_comes_twice_in_whatever_order(numbers):
    receiver = DatagramReceiver()
    came = []
    highest = 0
    for number in numbers:
        receiver.on_datagram(datagram(number), 1.0)
        got = receiver.take()
        highest = max(highest, number)
        assert got == ([] if number in came or number <= highest - WINDOW else [b"%d" % number])
        came.append(number)


@given(st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_lateness_is_what_it_took_beyond_the_quickest(begin, chance):
    """Against the plain computation, on any clock, within the quarter of a minute."""
    late = Lateness()
    least = 1 << 60
    for step in range(100):
        sent, took = 100 * step, chance.randrange(2000)
        least = min(least, took)
        now = (sent + took) / 1000
        measured = late.of((begin + sent) % (1 << 32), now + 1e-6)
        assert measured == pytest.approx((took - least) / 1000, abs=0.0011)


@given(seed=st.integers(0, 1 << 32))
def test_over_paths_that_lose_what_arrives_is_in_time_and_once(cores, seed):
    """Two cores, two paths that stop and go at will; a record that is stuck comes much later."""
    chance = random.Random(seed)
    one, other = cores.session(), cores.session()
    for number, rtt_s in ((1, 0.02), (2, 0.06)):
        cores.up(one, other, path=number)
        one.in_flight.paths[number].state.facts = PathFacts(rtt_s=rtt_s)
    stuck = {1: [], 2: []}
    written = {1: 0, 2: 0}
    now, sent, got = 0.0, {}, []
    for step in range(200):
        now += 0.010
        payload = b"%d" % step
        one.send_datagram(payload, 0.3, now)
        sent[payload] = now
        one.tick(now)
        for number in (1, 2):
            while parts := one.next_record(number, 70_000, now):
                record = b"".join(parts)
                written[number] += len(record)
                stuck[number].append((record, written[number]))
            one.datagrams.on_write(number, written[number])
            if chance.random() < 0.3:  # now it goes through: all of it, in order
                for record, end in stuck[number]:
                    other.receive(number, record, now)
                    one.datagrams.on_acknowledgement(number, end)
                stuck[number].clear()
        for each in other.receive_datagrams():
            got.append(each)
            assert now - sent[each] <= 0.3 + 0.31, "late by more than its lifetime"
    assert len(got) == len(set(got))
    assert len(got) > 100
