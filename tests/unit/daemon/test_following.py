from datetime import date
from ipaddress import ip_interface
from pathlib import Path

import pytest

from cedos.config import Config, DecisionConfig, PlanConfig
from cedos.daemon import following
from cedos.daemon.choices import curves
from cedos.daemon.following import Following
from cedos.model import Network, NetworkKind
from cedos.monitor.battery import Battery
from cedos.monitor.counters import Counters
from cedos.selector.objective import MaxSPerE, Objective

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
CONFIG = Config(
    decision=DecisionConfig(objective="max-s-per-e", follow=True),
    plan=PlanConfig(metered_bytes=1_000_000),
)


class Interfaces:
    """Counters by interface."""

    def __init__(self) -> None:
        self.counted = {2: Counters(10**9, 10**9), 3: Counters(0, 0)}

    async def read(self, index: int) -> Counters | None:
        return self.counted.get(index)

    def close(self) -> None:
        pass


class Power:
    """A battery of which a test says what it holds."""

    now: Battery | None = None

    def __init__(self, bus: object) -> None:
        pass

    async def read(self) -> Battery | None:
        return Power.now


@pytest.fixture(autouse=True)
def power(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "BatteryReader", Power)
    monkeypatch.setattr(following, "_today", lambda: date(2026, 11, 21))


def made(state: Path, objectives: list[Objective]) -> Following:
    return Following(
        CONFIG, curves(CONFIG), object(), state, lambda: [WLAN, LTE], objectives.append,  # type: ignore[arg-type]
    )  # fmt: skip


async def test_the_exponents_follow_battery_and_plan_over_a_restart(tmp_path: Path) -> None:
    objectives: list[MaxSPerE] = []
    interfaces = Interfaces()
    follows = made(tmp_path, objectives)  # type: ignore[arg-type]
    Power.now = Battery(0.1, discharging=False, energy_j=None, power_w=None)
    await follows.read(interfaces)
    Power.now = Battery(0.1, discharging=True, energy_j=None, power_w=None)
    await follows.read(interfaces)
    interfaces.counted[3] = Counters(700_000, 50_000)
    await follows.read(interfaces)
    assert [each.beta for each in objectives] == pytest.approx([0.0, 2.0, 2.0])
    assert [each.gamma for each in objectives] == pytest.approx([0.0, 0.0, 0.5])
    assert follows.problems == []
    again = made(tmp_path, objectives)  # type: ignore[arg-type]
    interfaces.counted[3] = Counters(1_000_000, 50_000)
    await again.read(interfaces)
    assert objectives[-1].gamma == 10.0
    assert "the data plan is used up" in objectives[-1].note
    assert again.problems == ["the data plan is used up (105%)"]


async def test_a_broken_file_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"used_bytes": 3}')
    objectives: list[MaxSPerE] = []
    await made(tmp_path, objectives).read(Interfaces())  # type: ignore[arg-type]
    assert objectives[-1].gamma == 0.0


def test_nothing_follows_unless_it_is_asked_for() -> None:
    assert curves(Config()) is None
