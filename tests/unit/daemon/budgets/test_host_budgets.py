"""Counts of budgets and the prices that follow: data, joules, money, units."""

from dataclasses import replace

import pytest

from cedos.budget_kinds import Resource
from cedos.config import Config, EnergyConfig
from cedos.daemon.budgets import used
from cedos.daemon.budgets.metering import radios_of
from cedos.errors import ConfigError
from cedos.model import Budget, Every, PhoneUse
from cedos.selector.budgets.controller import PROHIBITIVE

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)


async def test_a_budgets_price_stands_instead_of_the_fixed_one(host):
    await host.budgets.set(DATA)
    host.tick()
    objective = host.objective
    assert objective.s_per_metered_byte == objective.noticeable_s == 0.0
    assert objective.s_per_j == Config().decision.seconds_per_joule > 0.0
    assert objective.prices.data_rate("lte0") > 0.0


async def test_a_budget_of_a_network_that_is_away_prices_nothing(host):
    """`At the prices that your budgets set` was said, and that a megabyte over it is almost free."""
    away = Budget("away", Resource.DATA, 1e9, "2026-12-01T00:00:00", networks=("lte7",))
    await host.budgets.set(away)
    host.tick()
    objective = host.objective
    assert (objective.name, objective.note) == ("balanced", "")
    assert objective.s_per_metered_byte > 0.0


async def test_a_budget_counts_what_all_programs_carry_and_prices_it(host):
    await host.budgets.set(DATA)
    host.carry("lte0", 200_000, 50_000)
    host.carry("wlan0", 999_999)
    host.tick()
    assert host.spent() == 250_000
    objective = host.objective
    assert objective.name == "budgets"
    assert objective.prices.data_rate("lte0") > 0.0
    assert objective.prices.data_rate("wlan0") == 0.0
    assert "A megabyte over lte0 " in objective.note
    assert 'budget "data": 1 GB of 1 GB left for 10 days' in objective.note


async def test_a_spent_budget_is_prohibitive_and_said(host):
    await host.budgets.set(replace(DATA, supply=1e6))
    host.carry("lte0", 2_000_000)
    host.tick()
    assert host.known.prices.data_rate("lte0") == PROHIBITIVE
    assert 'the budget "data" is exceeded (200 % used)' in host.budgets.problems
    (message,) = host.messages()
    assert (message.spent_up, message.s_per_unit) == (True, None)
    assert "lte0 is used only where nothing else works" in host.objective.note


async def test_joules_of_the_radios_are_counted(host):
    await host.budgets.set(Budget("energy", Resource.ENERGY, 100.0, "2026-11-21T18:00:00"))
    for _ in range(5):
        host.carry("lte0", 100_000)
        host.tick()
    host.tick(60.0)
    host.tick(10.0)
    # Four seconds between five looks, and Delphi's tail.
    assert host.spent("energy") == pytest.approx(4 * 1.674 + 6.5, rel=0.01)


async def test_money_without_any_price_is_said(host):
    await host.budgets.set(Budget("money", Resource.MONEY, 5.0, "2026-12-01T00:00:00"))
    assert any("money_per_mb" in problem for problem in host.budgets.problems)
    host.tick()
    assert host.known.prices.money_s(100.0, 1.0) == 0.0, "what is not counted has no price"
    (message,) = host.messages()
    assert message.suspended == "no network has a money_per_mb"


async def test_choices_teach_and_are_accounted_for(host):
    await host.budgets.set(DATA)
    host.offered(10**6, 1, 5.0)
    host.offered(10**6, 0, 5.0)
    assert host.messages()[0].bought_s == pytest.approx(8.0)
    host.budgets.write()
    host.start()
    assert host.messages()[0].bought_s == pytest.approx(8.0)


@pytest.mark.parametrize("name", ["device", "cellular"])
def test_unknown_radios_are_named(name):
    with pytest.raises(ConfigError, match=r"pigeon.*(delphi|lte)"):
        radios_of(Config(energy=EnergyConfig(**{name: "pigeon"})))


async def test_what_was_used_is_told_by_network(host):
    host.carry("lte0", 4_000_000)
    host.carry("wlan0", 9_000_000)
    host.tick(60.0)
    host.tick(10.0)
    told = used.by_network(host.usage, host.now_s - 3600.0)
    lte, wifi = told.networks
    assert (lte.network, lte.metered_bytes, lte.free_bytes) == ("lte0", 4e6, 0.0)
    assert (wifi.network, wifi.metered_bytes, wifi.free_bytes) == ("wlan0", 0.0, 9e6)
    assert lte.radio_j > 0.0
    assert lte.radio_j + wifi.radio_j == pytest.approx(told.radio_j)


async def test_what_the_phone_is_for_can_be_said_and_is_kept(make_host):
    host = make_host()

    def price():
        objective = host.objective
        return objective.s_per_metered_byte * 1e6, objective.noticeable_s

    assert price() == pytest.approx((1.0, 0.1))
    assert host.budgets.phone_source == "configuration"
    host.budgets.prefer(PhoneUse.FREELY)
    assert price() == (0.0, 0.0)
    host.budgets.prefer(PhoneUse.WITHOUT_WIFI)
    assert price() == pytest.approx((60.0, 1.0))
    host.start()  # another daemon
    assert price() == pytest.approx((60.0, 1.0))
    assert host.budgets.phone_source == "command"
    # A budget is no wish to use the phone beside Wi-Fi; it replaces the other prices.
    await host.budgets.set(Budget("data", Resource.DATA, 4e9, "2026-12-01T00:00:00"))
    assert price() == pytest.approx((60.0, 1.0))
    host.budgets.prefer(None)
    assert price() == (0.0, 0.0)
    (host.state / "phone.json").write_text('"nonsense"')
    host.start()
    assert host.known.phone is PhoneUse.TO_SAVE_TIME
