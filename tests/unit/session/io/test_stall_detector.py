"""The detector of stalled paths: what the kernel's numbers are taken for."""

from dataclasses import replace
from types import SimpleNamespace

from cedos.kernel.tcp_info import TcpInfo
from cedos.session.io.stall_detector import StallDetector
from cedos.session.protocol.path_watch import PathVoice
from cedos.session.protocol.schedulers.interface import PathFacts

SEGMENT_BYTES, RATE_BPS, STEP_S = 1448, 450_000, 0.05
INFO = TcpInfo(
    rtt_s=0.4, rtt_min_s=0.1, rtt_variation_s=0.05, delivery_rate_bps=None, rate_limited_by_us=False,
    window_bytes=150_000, slow_start=False, segment_bytes=SEGMENT_BYTES, unsent_bytes=30_000,
    in_flight_bytes=100_000, loss=0.0, receive_idle_s=0.0, acknowledged_idle_s=0.0, retries=0,
    repeated_segments=0, acknowledged_bytes=0, busy_s=1.0, waiting_segments=70, delivered_segments=0,
    peer_window_bytes=1_000_000,
)  # fmt: skip


def path(number, info, rate_bps):
    estimator = SimpleNamespace(info=info, poll=lambda *_, **__: None)
    facts = PathFacts(rate_bps=rate_bps)
    return SimpleNamespace(path_id=number, estimator=estimator, facts=facts, connection=None)


def crawling(*, hole_s, slow_after_s=1e9):
    """Return the paths that crawl at some look: one has a hole for a while, another one is quick."""
    found = set()

    def path_voice(number, voice, now):
        found.update({number} if voice is PathVoice.CRAWLS else ())

    core = SimpleNamespace(path_voice=path_voice)
    paths = {1: path(1, INFO, RATE_BPS), 2: path(2, INFO, 20e6)}
    detector = StallDetector(None, core, paths, None, lambda: None, lambda *_: None)
    came = 0.0
    for step in range(120):
        now = step * STEP_S
        came += (RATE_BPS if now < slow_after_s else RATE_BPS / 8) / 8 * STEP_S
        # TCP acknowledges nothing beyond a hole until that is filled.
        in_hole = 1.0 <= now < 1.0 + hole_s
        in_order = RATE_BPS / 8 * 1.0 if in_hole else came
        paths[1].estimator.info = replace(
            INFO, acknowledged_bytes=int(in_order), delivered_segments=int(came / SEGMENT_BYTES)
        )
        detector._check_path(paths[1], now)
    return found


def test_what_comes_in_order_at_once_after_a_loss_is_no_rate():
    assert crawling(hole_s=1.0) == set()


def test_a_path_that_becomes_slow_crawls():
    assert crawling(hole_s=0.0, slow_after_s=3.0) == {1}
