"""A path that is silent, crawls, flaps, or rests and is probed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.session.io.path_estimator import PathEstimator
from cedos.session.protocol import path_watch as p
from cedos.session.protocol.frames import Ping, Pong
from cedos.session.protocol.life import Probed, SessionLimits
from cedos.session.protocol.path_watch import (
    FORGIVEN_S,
    FREE,
    SILENT_S,
    CrawlWatch,
    FlappingNetworks,
    PathProgress,
    PathVoice,
    PathWatch,
)
from cedos.session.protocol.schedulers import scheduler
from cedos.session.protocol.schedulers.interface import PathFacts
from cedos.session.protocol.session import Session
from cedos.session.protocol.unpacking import unpack


def seen(
    delivered, at_s, *, rtt_s=0.02, rtt_min_s=0.02, waits=True, repeated=0, received_at_s=-math.inf
):
    return PathProgress(waits, delivered, at_s, rtt_s, rtt_min_s, repeated, received_at_s)


def test_where_nothing_waits_nothing_is_silent():
    watch = PathWatch()
    for now in (0.0, 10.0, 100.0):
        assert watch.observe(seen(5, 0.0, waits=False), now) is PathVoice.SPEAKS


@pytest.mark.parametrize(
    ("rtt_s", "rtt_min_s", "limit_s"),
    [
        (0.02, 0.02, SILENT_S),
        (0.25, 0.02, 0.75),
        # A dying Wi-Fi of a packet a second: 7 s of silence passed unnoticed.
        (2.3, 0.02, 0.9),
        (0.7, 0.5, 1.5),
        (None, None, SILENT_S),
    ],
)
def test_a_long_path_is_given_three_of_its_round_trips(rtt_s, rtt_min_s, limit_s):
    watch = PathWatch()
    nothing = seen(5, 0.0, rtt_s=rtt_s, rtt_min_s=rtt_min_s)
    watch.observe(nothing, 0.0)
    assert watch.observe(nothing, limit_s - 0.01) is not PathVoice.SILENT
    assert watch.observe(nothing, limit_s + 0.01) is PathVoice.SILENT


def test_a_path_over_which_the_peer_sends_is_silent_half_a_second_later():
    """The peer's upload fills its queue, and its acknowledgements wait behind the upload."""
    watch = PathWatch()
    watch.observe(seen(5, 0.0), 0.0)
    for now in (0.15, 0.25, 0.55):
        assert watch.observe(seen(5, 0.0, received_at_s=now - 0.05), now) is PathVoice.SPEAKS
    assert watch.observe(seen(5, 0.0, received_at_s=0.65), 0.7) is PathVoice.PAUSES
    assert watch.observe(seen(5, 0.0, received_at_s=0.7), 0.75) is PathVoice.SILENT


def test_a_path_is_silent_as_soon_as_the_peer_sends_no_more_there():
    watch = PathWatch()
    watch.observe(seen(5, 0.0), 0.0)
    assert watch.observe(seen(5, 0.0, received_at_s=0.25), 0.3) is PathVoice.SPEAKS
    assert watch.observe(seen(5, 0.0, received_at_s=0.25), 0.36) is PathVoice.SILENT


@pytest.mark.parametrize("heard_s", [math.inf, 0.09, 0.02, 0.0], ids="{:g} s ago".format)
@pytest.mark.parametrize("silent_s", [0.05, 0.2, 0.3, 0.7])
def test_a_path_says_when_it_will_count_as_silent(silent_s, heard_s):
    """The detector's next look is then, also where the peer's data arrive."""
    watch, heard_at_s = PathWatch(), silent_s - heard_s
    watch.observe(seen(5, 0.0), 0.0)
    watch.observe(seen(5, 0.0, received_at_s=heard_at_s), silent_s)
    due_at_s = silent_s + watch.due_s
    for later_s, silent in ((-0.002, False), (0.002, True)):
        now = max(due_at_s + later_s, silent_s)
        voice = watch.observe(seen(5, 0.0, received_at_s=heard_at_s), now)
        assert (voice is PathVoice.SILENT) is (silent or due_at_s < silent_s)


def test_a_network_that_answers_in_bursts_is_not_taken_for_dead_by_its_pauses():
    watch = PathWatch()
    watch.observe(seen(0, 0.0), 0.0)
    for k in range(1, 6):
        watch.observe(seen(k, 0.25 * k), 0.25 * k)
    assert watch.limit_s == pytest.approx(0.75)
    assert watch.observe(seen(5, 1.25), 1.95) is not PathVoice.SILENT
    assert watch.observe(seen(5, 1.25), 2.05) is PathVoice.SILENT


def test_a_silence_that_the_kernel_had_to_break_is_no_measure_of_what_is_usual():
    watch = PathWatch()
    watch.observe(seen(0, 0.0), 0.0)
    for k in range(1, 20):
        watch.observe(seen(k, 0.02 * k), 0.02 * k)
    assert watch.observe(seen(19, 0.38, repeated=3), 5.0) is PathVoice.SILENT
    assert watch.observe(seen(20, 5.1, repeated=3), 5.1) is PathVoice.SPEAKS
    assert watch.limit_s == SILENT_S


def test_what_the_kernel_repeated_between_two_looks_is_seen_as_well():
    """It repeats itself, is answered and forgets it: 0.6 s became usual, and the next death took 1.8."""
    watch = PathWatch()
    watch.observe(seen(0, 0.0, repeated=7), 0.0)
    assert watch.observe(seen(0, 0.0, repeated=7), 0.35) is PathVoice.SILENT
    watch.observe(seen(1, 0.59, repeated=8), 0.60)
    assert watch.observe(seen(1, 0.59, repeated=8), 0.80) is PathVoice.PAUSES
    watch.observe(seen(2, 0.84, repeated=9), 0.85)
    assert watch.limit_s == SILENT_S


LOOK_S = 0.05


class PlayedPath:
    """A path whose rate is played, with a queue that is kept at some length or drains."""

    def __init__(self):
        self.watch = CrawlWatch()
        self.now_s, self.acknowledged, self.on_way = 0.0, 0.0, 0.0
        self.rtt_s = 0.02
        self.begun = []

    def play(self, seconds, rate_bps, *, queue_bytes=None, elsewhere=lambda size: 8 * size / 16e6):
        """`queue_bytes`: what is kept on the way; None: nothing is added."""
        for _ in range(round(seconds / LOOK_S)):
            self.now_s += LOOK_S
            carried = min(rate_bps / 8 * LOOK_S, self.on_way)
            self.acknowledged += carried
            self.on_way = self.on_way - carried if queue_bytes is None else queue_bytes
            crawled = self.watch.crawls
            crawls = self.watch.observe(
                int(self.acknowledged),
                int(self.on_way),
                elsewhere(self.on_way),
                self.rtt_s,
                self.now_s,
            )
            if crawls and not crawled:
                self.begun.append(self.now_s)


def test_a_path_that_fades_is_noticed_once_and_within_half_a_second():
    path = PlayedPath()
    path.play(2.0, 24e6, queue_bytes=300_000)
    assert not path.watch.crawls
    path.play(1.0, 200e3)
    assert len(path.begun) == 1
    assert path.begun[0] <= 2.5
    assert path.watch.crawls
    path.play(20.0, 200e3)
    assert not path.watch.crawls, "all of it has arrived"
    path.play(3.0, 200e3, queue_bytes=32_000)
    assert len(path.begun) == 1, "by now it is planned as what it is"


def test_a_slow_path_with_a_long_queue_is_none_that_fades():
    path = PlayedPath()
    path.play(30.0, 500e3, queue_bytes=200_000)
    assert not path.begun


def test_a_path_crawls_that_was_always_slow_once_another_one_is_there():
    """LTE was gone for ten seconds, and 60 kB waited for a Wi-Fi of four packets a second."""
    path = PlayedPath()
    path.play(10.0, 46e3, queue_bytes=60_000, elsewhere=lambda size: math.inf)
    assert not path.begun
    path.play(11.0, 46e3)
    assert path.begun == [pytest.approx(10.0 + LOOK_S)]
    path.play(10.0, 46e3, queue_bytes=4_000)
    assert len(path.begun) == 1, "it carries what is planned for it beside the other one"


def test_a_path_that_was_always_hopeless_crawls_beside_another_one():
    """Let it crawl: programs waited ten seconds for a Wi-Fi of three packets a second, just joined."""
    path = PlayedPath()
    path.play(3.0, 36e3, queue_bytes=30_000)
    assert path.begun == [pytest.approx(LOOK_S * 6)]
    other = PlayedPath()
    other.play(10.0, 36e3, queue_bytes=30_000, elsewhere=lambda size: 1.0)
    assert not other.begun, "the other path has a queue as well"


def test_a_path_that_is_nearly_as_fast_as_the_one_that_comes_does_not_crawl():
    path = PlayedPath()
    path.play(10.0, 4e6, queue_bytes=400_000, elsewhere=lambda size: math.inf)
    path.play(10.0, 4e6, queue_bytes=400_000, elsewhere=lambda size: 8 * size / 8e6)
    path.play(10.0, 4e6, queue_bytes=400_000)
    assert not path.begun, "the other one was there before it became faster"


def test_what_is_asked_over_a_long_way_is_not_late_before_it_can_be_here():
    path = PlayedPath()
    path.rtt_s = 0.6
    path.play(3.0, 24e6, queue_bytes=2_000_000)
    path.play(2.0, 24e6)
    for _ in range(6):
        path.on_way = 30_000
        path.play(0.6, 0.0)  # a round trip
        path.play(0.2, 24e6)
        assert not path.watch.crawls
    assert not path.begun


@given(
    st.lists(
        st.tuples(
            st.integers(0, 1 << 24),
            st.integers(0, 1 << 22),
            st.floats(0.0, 5.0),
            st.floats(0.0, 2.0),
        ),
        max_size=60,
    )
)
def test_whatever_is_seen_it_tells_whether_it_crawls(seen):
    watch, now_s, acknowledged = CrawlWatch(), 0.0, 0
    for more, on_way, elsewhere_s, later_s in seen:
        now_s, acknowledged = now_s + later_s, acknowledged + more
        assert watch.observe(acknowledged, on_way, elsewhere_s, 0.05, now_s) is watch.crawls
        assert on_way or not watch.crawls


def test_the_first_falls_are_forgiven_and_each_further_one_doubles_the_time_up_to_a_bound():
    flapping = FlappingNetworks()
    held = []
    for k in range(12):
        flapping.on_fell("wlan0", float(k))
        held.append(flapping.hold_s("wlan0", float(k)))
    assert held[: FREE + 3] == [*[0.0] * FREE, 1.0, 2.0, 4.0]
    assert flapping.hold_s("lte0", 0.0) == 0.0
    assert held[-1] == held[-2] == 32.0


def test_what_stands_for_a_while_between_its_falls_does_not_flap():
    """Contacts with Wi-Fi in a bus: it was left alone for half a minute after the eighth."""
    flapping = FlappingNetworks()
    for k in range(100):
        flapping.on_fell("wlan0", 1.2 * FORGIVEN_S * k)
        assert flapping.hold_s("wlan0", 1.2 * FORGIVEN_S * k) == 0.0


def test_only_the_last_few_networks_are_remembered():
    flapping = FlappingNetworks()
    for _ in range(4):
        flapping.on_fell("first", 0.0)
    for k in range(100):
        flapping.on_fell(f"wlan{k}", 1.0)
    assert flapping.hold_s("first", 1.0) == 0.0


ONE, TWO = 1, 2


class Ends:
    """A session over two paths whose every record arrives when the test says."""

    def __init__(self, *, probes=True, both=True, **facts):
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

    def carry(self, now):
        """Everything both have to say, at once."""
        moved = True
        while moved:
            moved = False
            for here, there in ((self.near, self.far), (self.far, self.near)):
                for state in here.paths:
                    while parts := here.next_record(state.path_id, 70_000, now):
                        there.receive(state.path_id, b"".join(parts), now)
                        moved = True

    def sent(self, path_id, now):
        """The near end's records after its timer."""
        self.near.tick(now)
        records = []
        while parts := self.near.next_record(path_id, 70_000, now):
            records.append(b"".join(parts))
        return records

    def answered(self, records, at):
        """Return the events after each record was answered at its time."""
        for record, now in zip(records, at, strict=True):
            self.far.receive(TWO, record, now)
            self.near.receive(TWO, b"".join(self.far.next_record(TWO, 70_000, now)), now)
        return [each for each in self.near.events() if isinstance(each, Probed)]

    def used(self, now, count):
        """The first path carries so many bytes."""
        state = self.near.paths[0]
        state.sent_bytes += count
        state.last_sent_at_s = now

    def asks(self, now):
        return bool(self.sent(TWO, now))


def test_two_pings_in_records_of_their_own_and_short_answers():
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


def test_answers_that_come_together_give_only_a_lower_bound():
    ends = Ends()
    (event,) = ends.answered(ends.sent(TWO, 1.0), [1.05, 1.0501])
    assert isinstance(event, Probed)
    assert event.at_least
    assert event.rate_bps == pytest.approx(8 * 10_552 / 0.0501)


def test_answers_behind_other_data_say_nothing():
    ends = Ends()
    records = ends.sent(TWO, 1.0)
    ends.far.paths[1].facts.rtt_s = 0.001
    ends.far.write(bytes(5_000))
    assert ends.answered(records, [1.05, 1.15]) == []


def test_forged_answers_are_nothing():
    ends = Ends()
    records = ends.sent(TWO, 1.0)
    short, padded = (frame.token for record in records for frame in unpack(record))
    for token in (padded, padded + 1, 7, short, short):
        ends.near.receive(TWO, p.packing.pack_fixed(Pong(token)), 1.1)
        assert ends.near.events() == []
    for _ in range(2):
        ends.near.receive(TWO, p.packing.pack_fixed(Pong(padded)), 1.2)
    assert len(ends.near.events()) == 1


@pytest.mark.parametrize(
    "quiet",
    [
        {"probes": False}, {"both": False}, {"stalled_at_s": 0.5}, {"metered": True},
        {"rate_bps": 1e6, "rate_at_s": 990.0}, {"rate_bps": 1e3, "rate_at_s": 0.0},
    ],
    ids=["off", "no choice", "silent", "metered", "known", "known, and very slow"],
)  # fmt: skip
def test_where_none_is_sent(quiet):
    assert not Ends(**quiet).asks(1_000.0)


def test_a_metered_path_only_for_a_share_and_where_no_label_is_forbidden():
    ends = Ends(metered=True)
    ends.used(1.0, p.LEAST_BYTES_SHARE * p.PAD_BYTES)
    ends.far.allow(TWO, 0b0111, 1.0)
    ends.carry(1.0)
    assert not ends.asks(10.0)
    ends.far.allow(TWO, 0b1111, 10.0)
    ends.carry(10.0)
    assert not ends.asks(10.5)
    assert ends.asks(12.0)


def test_a_path_that_no_label_may_use_is_left_alone():
    ends = Ends()
    ends.near.allow(TWO, 0, 0.0)
    ends.carry(0.0)
    assert not ends.asks(10.0)


def test_again_only_when_old_and_for_a_share_of_bytes_and_of_time():
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


# What the path estimator makes of it


def probed(estimator, rate_bps, now=5.0, *, at_least=False):
    estimator.on_probed(Probed(TWO, rate_bps, 0.03, at_least), now)


def test_a_change_that_two_probes_see_is_believed():
    facts = PathFacts()
    estimator = PathEstimator(facts, lambda _: None)
    estimator.on_measured(20e6, at_least=False)
    for _ in range(4):
        probed(estimator, 2e6)
    assert 2e6 < (facts.rate_bps or 0) < 6e6
