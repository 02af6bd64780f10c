"""When paths on which something waits are looked at."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.session.io.stall_detector import StallDetector
from cedos.session.protocol.path_watch import SILENT_S, PathVoice


class PlayedHost:
    """Two paths that bring acknowledgements until an instant, in played time."""

    def __init__(self, until_s: float) -> None:
        self.now_s, self.until_s = 0.0, until_s
        self.told: list[tuple[float, PathVoice]] = []
        self.due: tuple[float, Any] | None = None
        driver: Any = SimpleNamespace(now=lambda: self.now_s, loop=self)
        terms = SimpleNamespace(seconds=60)
        core: Any = SimpleNamespace(path_voice=self._voice, control=SimpleNamespace(terms=terms))
        self._estimator = SimpleNamespace(poll=self._poll, info=None)
        facts = SimpleNamespace(stalled_at_s=None, rate_bps=8e6)
        paths: dict[int, Any] = {
            number: SimpleNamespace(
                path_id=number, estimator=self._estimator, connection=None, facts=facts
            )
            for number in range(2)
        }
        self.detector = StallDetector(driver, core, paths, None, lambda: None, lambda *_args: None)

    def _poll(self, *_args: object, **_options: object) -> bool:
        at_s = min(self.now_s, self.until_s)
        self._estimator.info = SimpleNamespace(
            waits=True, delivered_segments=int(1_000 * at_s), rtt_s=0.05, rtt_min_s=0.05,
            acknowledged_idle_s=self.now_s - at_s, retries=0, repeated_segments=0, unsent_bytes=0,
            in_flight_bytes=1_000, acknowledged_bytes=int(1_000_000 * at_s),
        )  # fmt: skip
        return True

    def _voice(self, _path: int, voice: PathVoice, now: float) -> bool:
        self.told.append((now, voice))
        return False

    def call_later(self, delay_s: float, call: Any) -> asyncio.TimerHandle:
        self.due = self.now_s + delay_s, call
        return SimpleNamespace(cancel=lambda: None)  # type: ignore[return-value]

    def play(self, until_s: float) -> None:
        self.detector.begin()
        while self.due is not None and self.due[0] <= until_s:
            self.now_s, call = self.due
            self.due = None
            call()


@pytest.mark.parametrize("until_s", [0.501, 0.513, 0.537])
def test_a_path_counts_as_silent_at_its_moment_where_data_can_go_elsewhere(until_s: float) -> None:
    host = PlayedHost(until_s)
    host.play(2.0)
    silent_s = min(at_s for at_s, voice in host.told if voice is PathVoice.SILENT)
    assert silent_s - until_s == pytest.approx(SILENT_S, abs=0.002)
    assert len(host.told) < 100, "it looks now and then, and not all the time"


def test_a_silence_counts_from_when_something_began_to_wait() -> None:
    host = PlayedHost(0.0)
    host.play(1.0)
    assert min(at_s for at_s, voice in host.told if voice is PathVoice.SILENT) == SILENT_S
