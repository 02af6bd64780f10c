"""An answer that does not come is a reason to think again (dissertation, 4.3.4)."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.daemon.choices import Choices
from cedos.daemon.decider import Decider
from cedos.daemon.director import Director
from cedos.daemon.flows import Flows
from cedos.daemon.living_flow import LivingFlow
from cedos.model import (
    Context,
    Direction,
    FlowKey,
    Indicator,
    Network,
    NetworkKind,
    SizeEstimate,
    Strategy,
)
from cedos.monitor.events import FlowOpened, FlowSample
from cedos.profiler.profiler import SizeLearned
from cedos.profiler.sizes import SizeHistory
from cedos.selector.objective import MaxS
from predictors.base import Distribution

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
KEY = FlowKey(ip_address("10.0.0.2"), 4000, ip_address("198.51.100.1"), 80)
SAMPLE = FlowSample(KEY, 10.0, 1, 7, 0.02, 0.02, None, 0, 300, 0, 0.3, 0, idle_ack_s=0.1)
CONTEXT = {name: {"available": Indicator(1.0, 10.0)} for name in ("wlan0", "lte0")}


class Usually:
    """Wi-Fi answers within 0.06 s, nine times of ten; the tenth time it takes a minute."""

    features = ("size_bytes",)
    cellular_s = 0.3

    def predict(self, features: Mapping[str, float], /) -> dict[str, Distribution]:
        return {
            "wifi": Distribution((0.06,) * 18 + (60.0,) * 2),
            "cellular": Distribution((self.cellular_s,)),
        }


class Moves:
    def __init__(self) -> None:
        self.asked: list[tuple[int, Strategy]] = []

    async def set_default(self, network_name: str) -> None:
        pass

    async def set_mark(self, mark: int, network_name: str | None) -> None:
        pass

    async def set_destination(
        self, prefix: str, port: int | None, network_name: str | None
    ) -> None:
        pass

    async def steer_connection(self, token: int, strategy: Strategy) -> None:
        self.asked.append((token, strategy))


class Stage:
    def __init__(self) -> None:
        self.moves, self.flows = Moves(), Flows()
        choices = Choices(MaxS(), Usually(), 3000, margin=0.1, switch_cost_s=0.1)
        decider = Decider(choices, self.flows.idle_s, lambda decision: None)
        self.director = Director(self.moves, self.flows, SizeHistory(), decider)
        self.director.networks_changed([WLAN, LTE])
        self.flow = self.flows.opened(FlowOpened(KEY, 9.0, 109.0))
        self.flows.joined(7, KEY, 9.0)
        self.director.visited(self.flow, 9.0)
        self.director.moves.steerable(7, True)
        size = SizeEstimate(2000, 2000, 2000, "content-length")
        self.flows.learned(SizeLearned(KEY, Direction.DOWN, size))

    async def look(self, at_s: float, bytes_down: int = 0) -> list[str]:
        """A look at the sockets, and a decision; returns where connections went."""
        heard_s = 0.01 if bytes_down else 0.1
        sample = replace(SAMPLE, at_s=at_s, bytes_down=bytes_down, idle_down_s=heard_s)
        self.flows.sampled([sample], at_s)
        await self.director.reconsider(Context(at_s, CONTEXT))
        asked, self.moves.asked = self.moves.asked, []
        return [str(strategy) for _, strategy in asked]


@pytest.fixture
def stage() -> Stage:
    return Stage()


async def test_a_small_answer_that_is_late_moves(stage: Stage) -> None:
    assert await stage.look(10.0) == []
    assert stage.director.default.decision is not None
    assert str(stage.director.default.decision.choice) == "single(wlan0)"
    assert await stage.look(10.1) == [], "it is not late yet"
    flow = stage.flow
    assert flow.waited_s(10.1) == pytest.approx(0.1)
    assert not flow.late(10.1)
    # Wi-Fi is expected to take 6.1 s on average: silence is news after twice that.
    assert flow.late(22.2)
    assert await stage.look(22.3) == ["single(lte0)"], "the minute is what is left"
    assert not flow.late(22.4), "it goes another way now"


async def test_silence_is_news_every_200_ms(stage: Stage) -> None:
    await stage.look(10.0)
    flow = stage.flow
    assert not flow.overdue(22.0)
    assert flow.overdue(22.3)
    assert not flow.overdue(22.4)
    assert flow.overdue(22.6)
    assert not flow.overdue(60.0), "a program that does not read is no reason to hurry for ever"


async def test_what_comes_is_not_late(stage: Stage) -> None:
    await stage.look(10.0)
    await stage.look(22.0, bytes_down=1500)
    assert stage.flow.waited_s(22.0) == 0.0
    assert not stage.flow.overdue(34.0), "the rest is expected anew, and takes its time"
    assert stage.moves.asked == []


async def test_a_lost_network_is_a_reason_at_once(stage: Stage) -> None:
    assert await stage.look(10.0) == []
    stage.director.networks_changed([replace(WLAN, up=False), LTE])
    assert await stage.look(10.1) == ["single(lte0)"]


async def test_a_new_network_is_a_reason_at_once(stage: Stage) -> None:
    size = SizeEstimate(10**6, 10**6, 10**6, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, size))
    stage.director.networks_changed([WLAN, replace(LTE, up=False)])
    assert await stage.look(10.0) == []
    stage.director.networks_changed([WLAN, LTE])
    assert await stage.look(10.1) == ["single(lte0)"], "a tenth of what Wi-Fi is expected to take"


async def test_the_next_transfer_is_awaited_anew(stage: Stage) -> None:
    await stage.look(10.0)
    size = SizeEstimate(2500, 2500, 2500, "content-length")
    stage.flows.learned(SizeLearned(KEY, Direction.DOWN, size))
    assert stage.flow.waited_s(22.0) == 0.0


def test_a_flow_of_which_nothing_is_expected_is_never_late() -> None:
    flow = LivingFlow(KEY, 0.0, None)
    flow.expects(0.1, 0.0)
    assert flow.waited_s(100.0) == 0.0
    assert not flow.overdue(100.0)
