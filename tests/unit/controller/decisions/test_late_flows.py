"""An answer that does not come is a reason to think again (dissertation, 4.3.4)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from cedos.controller.events import FlowSample
from cedos.controller.flows.living_flow import LivingFlow
from predictors.base import Distribution

pytestmark = pytest.mark.anyio

Stage = Any


class Usually:
    """Wi-Fi answers within 0.06 s, nine times of ten; the tenth time it takes a minute."""

    features = ("size_bytes",)
    cellular_s = 0.3

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        return {
            "wifi": Distribution((0.06,) * 18 + (60.0,) * 2),
            "cellular": Distribution((self.cellular_s,)),
        }


@pytest.fixture
def stage(make_stage: Callable[[Usually], Stage]) -> Stage:
    """A small answer is awaited over Wi-Fi, on `stage.flow`."""
    stage = make_stage(Usually())
    stage.flow = stage.connection(movable=True)
    stage.told(2000)
    return stage


async def sampled(stage: Stage, at_s: float, bytes_down: int = 0) -> list[str]:
    """A look at the sockets, and a decision; returns where connections went."""
    heard_s = 0.01 if bytes_down else 0.1
    sample = FlowSample(
        stage.key, at_s, 1, 7, 0.02, 0.02, None, bytes_down, 300, 0, heard_s, 0, idle_ack_s=0.1
    )
    stage.flows.on_samples([sample], at_s)
    await stage.reconsider(at_s)
    return [str(asked[2]) for asked in stage.asked() if asked[0] == "connection"]


async def test_a_small_answer_that_is_late_moves(stage: Stage) -> None:
    assert await sampled(stage, 10.0) == []
    assert stage.director.default.decision is not None
    assert str(stage.director.default.decision.choice) == "single(wlan0)"
    assert await sampled(stage, 10.1) == [], "it is not late yet"
    flow = stage.flow
    assert flow.waited_s(10.1) == pytest.approx(0.1)
    assert not flow.late(10.1)
    # Wi-Fi is expected to take 6.1 s on average: silence is news after twice that.
    assert flow.late(22.2)
    assert await sampled(stage, 22.3) == ["single(lte0)"], "the minute is what is left"
    assert not flow.late(22.4), "it goes another way now"


async def test_silence_is_news_every_200_ms(stage: Stage) -> None:
    await sampled(stage, 10.0)
    flow = stage.flow
    assert not flow.overdue(22.0)
    assert flow.overdue(22.3)
    assert not flow.overdue(22.4)
    assert flow.overdue(22.6)
    assert not flow.overdue(60.0), "a program that does not read is no reason to hurry for ever"


async def test_what_comes_is_not_late(stage: Stage) -> None:
    await sampled(stage, 10.0)
    assert await sampled(stage, 22.0, bytes_down=1500) == []
    assert stage.flow.waited_s(22.0) == 0.0
    assert not stage.flow.overdue(34.0), "the rest is expected anew, and takes its time"


async def test_a_lost_network_is_a_reason_at_once(stage: Stage) -> None:
    assert await sampled(stage, 10.0) == []
    stage.director.networks_changed([replace(stage.wlan, up=False), stage.lte])
    assert await sampled(stage, 10.1) == ["single(lte0)"]


async def test_a_new_network_is_a_reason_at_once(stage: Stage) -> None:
    stage.told(10**6)
    stage.director.networks_changed([stage.wlan, replace(stage.lte, up=False)])
    assert await sampled(stage, 10.0) == []
    stage.director.networks_changed([stage.wlan, stage.lte])
    assert await sampled(stage, 10.1) == ["single(lte0)"], (
        "a tenth of what Wi-Fi is expected to take"
    )


async def test_the_next_transfer_is_awaited_anew(stage: Stage) -> None:
    await sampled(stage, 10.0)
    stage.told(2500)
    assert stage.flow.waited_s(22.0) == 0.0


def test_a_flow_of_which_nothing_is_expected_is_never_late(stage: Stage) -> None:
    flow = LivingFlow(stage.key, 0.0, None)
    flow.expects(0.1, 0.0)
    assert flow.waited_s(100.0) == 0.0
    assert not flow.overdue(100.0)
