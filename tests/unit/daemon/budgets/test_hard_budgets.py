"""Hard budgets with the daemon's odometers, files and calendar: what the controller is told of them."""

from dataclasses import replace

from cedos.budget_kinds import Resource
from cedos.config import BudgetConfig, Config, NetworkConfig, PlanConfig
from cedos.model import Budget, Every

DAY_S = 86_400.0
DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH, hard=True)


def spend(host, size=0, after_s=1.0):
    host.carry("lte0", size)
    host.tick(after_s)


async def test_a_new_period_and_softness_lift_it(host):
    budgets = host.budgets
    for lift in ("period", "soft"):
        await budgets.set(DATA)
        spend(host, 1_000_000_000)
        assert host.bars[-1] == ("lte0",), lift
        (message,) = host.messages()
        assert (message.hard, message.barred, message.spent_up) == (True, ("lte0",), True)
        if lift == "period":
            budgets.write()
            spend(host, 0, 10 * DAY_S)
        else:
            await budgets.set(replace(DATA, hard=False))
        assert host.bars[-1] == (), lift


async def test_a_clock_that_is_set_into_the_next_month_and_back_opens_nothing(host):
    await host.budgets.set(DATA)
    spend(host, 1_000_000_000)
    host.budgets.write()
    for days in (20, -20):
        host.now_s += days * DAY_S
        spend(host)
        assert host.bars == [("lte0",)]


async def test_a_restart_bars_again_and_a_killed_one_too(host):
    await host.budgets.set(DATA)
    spend(host, 1_000_000_000)
    host.budgets.write()
    host.start()
    assert host.bars == [("lte0",)]


async def test_money_and_configured_ones(make_host):
    config = Config(
        networks={"lte0": NetworkConfig(money_per_mb=0.02)},
        plan=PlanConfig(metered_bytes=10**9, hard=True),
        budgets={"cash": BudgetConfig(money=5.0, until="2026-12-01", every=Every.MONTH, hard=True)},
    )
    host = make_host(config)
    spend(host, 249_000_000, 1000.0)
    assert host.bars == []
    spend(host, 1_000_000, 100.0)
    hard = host.controller.hard
    assert hard.barred_by("cash") == ("lte0",)
    assert hard.barred_by("plan") == ()
    assert "(5 of 5)" in hard.why["lte0"]
