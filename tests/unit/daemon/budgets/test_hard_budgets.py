"""Hard budgets with the daemon's odometers, files and calendar: what the controller is told of them."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from kit.controller import Script

from cedos.budget_kinds import Resource
from cedos.config import BudgetConfig, Config, NetworkConfig, PlanConfig
from cedos.controller.commands import BarNetworks
from cedos.controller.events import Event
from cedos.daemon.budgets.messages import messages
from cedos.model import Budget, Every

from .conftest import Host

pytestmark = pytest.mark.anyio

DAY_S = 86_400.0
DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH, hard=True)


class Barring:
    """A host whose events go to a controller; `bars`: what that asks to bar."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.bars: list[tuple[str, ...]] = []
        self.begin()

    def begin(self) -> None:
        prices = host_prices(self.host)
        choices = replace(Script().controller.config.choices, price_per_mb=prices)
        self.script = Script(choices=choices)
        self.host.budgets._post = self.post
        self.host.budgets.tick()

    def post(self, event: Event) -> None:
        given = self.script.tell(event)
        self.bars += [each.networks for each in given if isinstance(each, BarNetworks)]

    def spend(self, size: int = 0, after_s: float = 1.0) -> None:
        self.host.carry("lte0", size)
        self.host.tick(after_s)


def host_prices(host: Host) -> dict[str, float]:
    return dict(host.budgets._money_per_mb)


@pytest.fixture
def barring(host: Host) -> Barring:
    return Barring(host)


async def test_a_new_period_and_softness_lift_it(barring: Barring) -> None:
    budgets = barring.host.budgets
    for lift in ("period", "soft"):
        await budgets.set(DATA)
        barring.spend(1_000_000_000)
        assert barring.bars[-1] == ("lte0",), lift
        (message,) = messages(budgets, barring.script.controller.hard.barred_by)
        assert (message.hard, message.barred, message.spent_up) == (True, ("lte0",), True)
        if lift == "period":
            budgets.write()
            barring.spend(0, 10 * DAY_S)
        else:
            await budgets.set(replace(DATA, hard=False))
        assert barring.bars[-1] == (), lift


async def test_less_supply_in_mid_period_bars_at_once(barring: Barring) -> None:
    await barring.host.budgets.set(DATA)
    barring.spend(500_000_000)
    await barring.host.budgets.set(replace(DATA, supply=4e8))
    assert barring.bars == [("lte0",)]
    barring.host.budgets.remove("data")
    assert barring.bars[-1] == ()


async def test_a_clock_that_is_set_into_the_next_month_and_back_opens_nothing(
    barring: Barring,
) -> None:
    await barring.host.budgets.set(DATA)
    barring.spend(1_000_000_000)
    barring.host.budgets.write()
    for days in (20, -20):
        barring.host.now_s += days * DAY_S
        barring.spend()
        assert barring.bars == [("lte0",)]


async def test_a_restart_bars_again_and_a_killed_one_too(barring: Barring) -> None:
    await barring.host.budgets.set(DATA)
    barring.spend(1_000_000_000)
    barring.host.budgets.write()
    barring.host.start()
    barring.begin()
    assert barring.bars == [("lte0",), ("lte0",)]


async def test_money_and_configured_ones(make_host: Callable[..., Host]) -> None:
    config = Config(
        networks={"lte0": NetworkConfig(money_per_mb=0.02)},
        plan=PlanConfig(metered_bytes=10**9, hard=True),
        budgets={"cash": BudgetConfig(money=5.0, until="2026-12-01", every=Every.MONTH, hard=True)},
    )
    barring = Barring(make_host(config))
    barring.spend(249_000_000, 1000.0)
    assert barring.bars == []
    barring.spend(1_000_000, 100.0)
    hard = barring.script.controller.hard
    assert hard.barred_by("cash") == ("lte0",)
    assert hard.barred_by("plan") == ()
    assert "(5 of 5)" in hard.why["lte0"]
