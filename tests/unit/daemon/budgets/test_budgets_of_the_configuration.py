"""Budgets of the configuration that do not recur: they begin when the daemon first reads them."""

from dataclasses import replace

import pytest

from cedos.budget_kinds import Resource
from cedos.config import BudgetConfig, Config
from cedos.errors import ConfigError
from cedos.model import Budget, Every

ONCE = Config(budgets={"trip": BudgetConfig(until="2026-12-24", data="1GB")})


def again(host, config):
    """Another daemon, or the same one with another configuration."""
    host.budgets.write()
    host.config = config
    host.start()


async def test_what_was_used_before_is_none_of_its(make_host):
    host = make_host()
    host.carry("lte0", 50_000_000_000)
    host.tick(7200.0)
    again(host, ONCE)
    assert host.spent("trip") == 0.0
    host.carry("lte0", 300_000_000)
    host.tick(3600.0)
    assert host.spent("trip") == pytest.approx(300e6, rel=1e-6)


async def test_its_price_is_that_of_one_that_was_set(make_host):
    """1,798,070 s a megabyte were asked once a hundredth was used: a period since 1970."""
    host = make_host(ONCE)
    await host.budgets.set(Budget("set", Resource.DATA, 1e9, "2026-12-24T00:00:00"))
    for number in range(400):
        if number % 8 == 0:
            host.carry("lte0", 3_000_000)
            host.offered(3_000_000, 1)
        host.tick(900.0)
    trip, other = host.standings()
    assert trip.rate == pytest.approx(other.rate, rel=0.01)
    assert trip.forecast.likely == pytest.approx(other.forecast.likely, rel=0.01)


async def test_a_restart_goes_on_and_another_end_too(make_host):
    host = make_host(ONCE)
    host.carry("lte0", 300_000_000)
    host.tick(3600.0)
    again(host, ONCE)
    assert host.spent("trip") == 300_000_000
    later = BudgetConfig(until="2026-12-31", data="2GB")
    again(host, Config(budgets={"trip": later}))
    assert host.spent("trip") == 300_000_000
    again(host, Config(budgets={"trip": BudgetConfig(until="2026-12-31", energy="20kJ")}))
    assert host.spent("trip") < 100.0  # of something else nothing was used


async def test_one_that_is_set_by_its_name_goes_on(make_host):
    host = make_host()
    host.carry("lte0", 400_000_000)
    host.tick(7200.0)
    again(host, ONCE)
    host.carry("lte0", 30_000_000)
    host.tick(3600.0)
    await host.budgets.set(Budget("trip", Resource.DATA, 8e9, "2026-12-24T00:00:00"))
    assert host.spent("trip") == pytest.approx(30e6, rel=1e-6)


async def test_one_that_has_ended_limits_nothing_and_says_so(make_host):
    """The configuration, the command and the program interface say it alike."""
    host = make_host(
        Config(
            budgets={
                "old": BudgetConfig(until="2020-01-01", data="1GB", hard=True),
                "dawn": BudgetConfig(until="2026-11-21 08:59", data="1GB"),
                "monthly": BudgetConfig(until="2020-01-01", data="1GB", every=Every.MONTH),
            }
        )
    )
    told = [line for line in host.budgets.problems if "has passed" in line]
    assert [line.split('"')[1] for line in told] == ["old", "dawn"]
    assert 'the budget "old" (2020-01-01 00:00) has passed: it limits nothing' in told[0]
    with pytest.raises(ConfigError, match="has passed: it limits nothing"):
        await host.budgets.set(Budget("set", Resource.DATA, 1e9, "2020-01-01T00:00:00"))
    await host.budgets.set(Budget("noon", Resource.DATA, 1e9, "2026-11-21T12:00:00"))
    host.tick(4 * 3600.0)
    assert any('"noon" (2026-11-21 12:00) has passed' in line for line in host.budgets.problems)


async def test_a_hard_one_stays_hard_unless_it_is_told_otherwise(make_host):
    host = make_host(
        Config(budgets={"trip": BudgetConfig(until="2026-12-24", data="1GB", hard=True)})
    )

    def hard():
        return host.known.keepers["trip"].budget.hard

    await host.budgets.set(Budget("trip", Resource.DATA, 2e9, "2026-12-24T00:00:00"))
    assert hard() is True  # of the configuration
    monthly = Budget("trip", Resource.DATA, 3e9, "2026-12-01T00:00:00", every=Every.MONTH)
    await host.budgets.set(monthly)
    assert hard() is True  # also where it recurs now
    with pytest.raises(ConfigError, match='"trip" is hard, and one of energy cannot be'):
        await host.budgets.set(Budget("trip", Resource.ENERGY, 3e9, "2026-12-24T00:00:00"))
    host.budgets.write()
    host.start()
    assert hard() is True
    await host.budgets.set(replace(monthly, hard=False))
    await host.budgets.set(monthly)
    assert hard() is False
