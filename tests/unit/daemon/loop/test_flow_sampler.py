"""What looks at the flows tell: how long a network was silent, once it is heard again."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from cedos.controller.flows.living_flows import LivingFlows
from cedos.controller.networks.silence import Due
from cedos.daemon.loop.flow_sampler import FlowSampler
from cedos.model import Context, Indicator
from cedos.profiler.profiler import Profiler


def test_a_silence_that_is_over_is_told_with_how_long_it_lasted() -> None:
    told: list[tuple[dict[str, float], dict[str, tuple[float, ...]]]] = []
    context = Context(0.0, {})
    observer: Any = SimpleNamespace(
        context=lambda: context,
        silent=lambda networks, pauses, now_s: told.append((networks, pauses)),
        observe_delivery=lambda *_: None,
        observe_answers=lambda *_: None,
        observe_flows=lambda *_: None,
    )
    changed: list[bool] = []
    source: Any = None
    sampler = FlowSampler(source, LivingFlows(), observer, Profiler(), changed.append, 1.0)
    now_s = time.monotonic()
    sampler._take([], {"wlan0": now_s}, now_s + 2.0)  # a ping that nobody answered
    ((found, _),) = told
    assert found == {"wlan0": Due(pytest.approx(2.0), transfers=False, pings=True)}
    assert changed == [True]
    answered = Indicator(0.03, now_s + 2.5)
    context = Context(0.0, {"wlan0": {"rtt_s": answered, "rtt_min_s": answered}})
    sampler._take([], {}, now_s + 2.6)
    assert told[1:] == [({}, {"wlan0": (pytest.approx(2.5),)})]
