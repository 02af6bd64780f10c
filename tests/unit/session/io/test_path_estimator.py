"""The estimator of a path: its rate, its stalls, and the bytes that wait in the kernel."""

import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cedos.kernel.tcp_info import TcpInfo
from cedos.session.io.path import UNSENT_BYTES, unsent_limit_bytes
from cedos.session.io.path_estimator import PathEstimator
from cedos.session.io.stall_detector import StallDetector
from cedos.session.protocol.path_watch import SILENT_S, PathVoice
from cedos.session.protocol.schedulers.interface import PathFacts, PathState

INFO = TcpInfo(
    rtt_s=0.020, rtt_min_s=0.020, rtt_variation_s=0.0, delivery_rate_bps=None,
    rate_limited_by_us=False, window_bytes=14_480, slow_start=True, segment_bytes=1448,
    unsent_bytes=0, in_flight_bytes=0, loss=0.0, receive_idle_s=0.0,
    acknowledged_idle_s=0.0, retries=0, repeated_segments=0, acknowledged_bytes=0, busy_s=0.0,
    waiting_segments=0, delivered_segments=0, peer_window_bytes=65_536,
)  # fmt: skip


class Link:
    """A connection whose kernel says what the test has it say; looked at every 10 ms."""

    def __init__(self):
        self.facts = PathFacts()
        self.estimator = PathEstimator(self.facts, lambda _connection: self.info)
        self.info = INFO
        self.now = 100.0

    def carry(self, rate_bps, seconds, busy=1.0, burst_bps=None):
        """So much is acknowledged, as fast as the link carries it.

        `busy` is the share of the time with something on its way. `burst_bps`: we have no more to send,
        and this is what the kernel thinks of the last few packets.
        """
        for _ in range(round(seconds / 0.01)):
            self.now += 0.0101
            self.info = replace(
                self.info,
                acknowledged_bytes=self.info.acknowledged_bytes + round(rate_bps / 8 * 0.01 * busy),
                busy_s=self.info.busy_s + 0.01 * busy,
                delivery_rate_bps=rate_bps if burst_bps is None else burst_bps,
                rate_limited_by_us=burst_bps is not None,
            )
            with socket.socket() as unused:
                assert self.estimator.poll(unused, self.now)

    @property
    def rate_bps(self):
        return self.facts.rate_bps or 0.0


@pytest.fixture
def link():
    return Link()


def test_the_rate_of_a_burst_is_not_the_links(link):
    """Seen on a token bucket of 4 Mbit/s: single flights at 146 Mbit/s."""
    link.carry(4e6, 0.03, burst_bps=146e6)
    assert link.rate_bps == 146e6  # there is nothing better yet
    link.carry(4e6, 0.5, burst_bps=146e6)
    assert link.rate_bps == pytest.approx(4e6, rel=0.01)


def test_what_we_had_no_more_for_is_a_lower_bound(link):
    link.carry(4e6, 0.5)
    link.carry(0.1e6, 0.5, burst_bps=0.1e6)
    assert link.rate_bps == pytest.approx(4e6, rel=0.01)
    link.carry(6e6, 0.5, burst_bps=146e6)
    assert link.rate_bps == pytest.approx(6e6, rel=0.01)


def test_a_slow_network_that_is_full_is_known(link):
    link.carry(0.2e6, 0.5)
    assert link.rate_bps == pytest.approx(0.2e6, rel=0.01)


@pytest.mark.parametrize("then_bps", [0.4e6, 40e6])
def test_a_change_is_followed_and_noise_is_smoothed(link, then_bps):
    link.carry(4e6, 1.0)
    link.carry(7.9e6, 0.01)
    assert link.rate_bps < 4.6e6
    link.carry(4e6, 1.0)
    link.carry(then_bps, 0.12)
    assert then_bps / 1.6 < link.rate_bps < then_bps * 1.6


def test_a_network_that_swallows_everything_says_nothing_of_its_rate(link):
    link.carry(4e6, 1.0)
    link.carry(0.0, 1.0, burst_bps=0.0)
    assert link.rate_bps == pytest.approx(4e6, rel=0.01)


RATE_BPS = 16e6


def states(*facts):
    return [PathState(number, each, 0.0) for number, each in enumerate(facts)]


def test_the_only_path_and_one_of_unknown_rate_hold_what_the_kernel_takes():
    assert unsent_limit_bytes(RATE_BPS, states(PathFacts())) == UNSENT_BYTES
    assert unsent_limit_bytes(None, states(PathFacts(), PathFacts())) == UNSENT_BYTES


def test_while_another_path_pauses_hardly_anything_stands_before_what_lies_there():
    both_speak = unsent_limit_bytes(RATE_BPS, states(PathFacts(), PathFacts()))
    one_pauses = unsent_limit_bytes(RATE_BPS, states(PathFacts(), PathFacts(pauses=True)))
    assert both_speak == RATE_BPS / 8 * 0.1
    assert one_pauses <= RATE_BPS / 8 * 0.03


class PlayedHost:
    """Two paths that bring acknowledgements until an instant, in played time."""

    def __init__(self, until_s):
        self.now_s, self.until_s = 0.0, until_s
        self.told = []
        self.due = None
        driver = SimpleNamespace(now=lambda: self.now_s, loop=self)
        terms = SimpleNamespace(seconds=60)
        core = SimpleNamespace(path_voice=self._voice, control=SimpleNamespace(terms=terms))
        self._estimator = SimpleNamespace(poll=self._poll, info=None)
        facts = PathFacts(rate_bps=8e6)
        paths = {
            number: SimpleNamespace(
                path_id=number, estimator=self._estimator, connection=None, facts=facts
            )
            for number in range(2)
        }
        self.detector = StallDetector(driver, core, paths, None, lambda: None, lambda *_args: None)

    def _poll(self, *_args, **_options):
        at_s = min(self.now_s, self.until_s)
        self._estimator.info = SimpleNamespace(
            waits=True, delivered_segments=int(1_000 * at_s), rtt_s=0.05, rtt_min_s=0.05,
            acknowledged_idle_s=self.now_s - at_s, retries=0, repeated_segments=0, unsent_bytes=0,
            in_flight_bytes=1_000, segment_bytes=1_000, receive_idle_s=100.0,
        )  # fmt: skip
        return True

    def _voice(self, _path, voice, now):
        self.told.append((now, voice))
        return False

    def call_later(self, delay_s, call):
        self.due = self.now_s + delay_s, call
        return SimpleNamespace(cancel=lambda: None)

    def play(self, until_s):
        self.detector.begin()
        while self.due is not None and self.due[0] <= until_s:
            self.now_s, call = self.due
            self.due = None
            call()


@pytest.mark.parametrize("until_s", [0.501, 0.513, 0.537])
def test_a_path_counts_as_silent_at_its_moment_where_data_can_go_elsewhere(until_s):
    host = PlayedHost(until_s)
    host.play(2.0)
    silent_s = min(at_s for at_s, voice in host.told if voice is PathVoice.SILENT)
    assert silent_s - until_s == pytest.approx(SILENT_S, abs=0.002)
    assert len(host.told) < 100, "it looks now and then, and not all the time"


def test_a_silence_counts_from_when_something_began_to_wait():
    host = PlayedHost(0.0)
    host.play(1.0)
    assert min(at_s for at_s, voice in host.told if voice is PathVoice.SILENT) == SILENT_S
