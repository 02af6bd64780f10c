"""Budgets of the battery: from charge to charge."""

from dataclasses import replace

from cedos.budget_kinds import Resource
from cedos.controller.events import BatteryRead
from cedos.model import Budget, Every

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)
BATTERY = Budget("battery", Resource.ENERGY, 0.0, "2026-11-21T18:00:00", battery=True)


async def test_a_battery_lasts_until_it_is_charged(host):
    await host.budgets.set(BATTERY)
    keeper = host.known.keepers["battery"]
    assert keeper.budget.supply == 1e5
    host.power.now = BatteryRead(True, 0.4, True, 9e4)
    await host.budgets._read_battery()
    host.tick(600.0)
    assert keeper.spent == 1e4
    assert host.known.prices.energy_rate() > 0.0
    assert "A joule must save" in host.objective.note
    host.power.now = BatteryRead(True, 0.6, False, 9.5e4)
    await host.budgets._read_battery()
    host.tick()
    assert host.known.prices.energy_rate() == 0.0
    assert host.messages()[0].suspended == "on mains power"
    await host.budgets.set(DATA)
    assert '(budget "data"' in host.objective.note
    assert "(battery)" not in host.objective.note  # it has no part in any price
    host.power.now = BatteryRead(True, 0.9, True, 1.8e5)
    await host.budgets._read_battery()
    host.tick()
    assert keeper.budget.supply == 1.8e5
    assert keeper.spent == 0.0


async def test_a_battery_that_was_charged_in_sleep_begins_anew(host):
    """Both before and after it was being used up."""
    await host.budgets.set(BATTERY)
    host.power.now = BatteryRead(True, 0.8, True, 1.6e5)
    await host.budgets._read_battery()
    host.tick()
    assert host.known.keepers["battery"].budget.supply == 1.6e5
    assert host.spent("battery") == 0.0
    host.power.now = BatteryRead(True, 0.7, True, 1.4e5)
    await host.budgets._read_battery()
    assert host.spent("battery") == 2e4


async def test_a_restart_in_the_middle_of_a_discharge_keeps_its_supply(host):
    await host.budgets.set(BATTERY)
    # What is kept of it stood under the key "supplies", as what this one has learned.
    await host.budgets.set(replace(DATA, name="supplies"))
    host.power.now = BatteryRead(True, 0.4, True, 6e4)
    host.tick(600.0)
    host.budgets.write()
    assert "learned" in host.known.state()["supplies"]
    host.start()
    await host.budgets._read_battery()
    host.tick()
    assert host.known.keepers["battery"].budget.supply == 1e5
    assert host.spent("battery") == 4e4


async def test_a_battery_that_tells_nothing_has_no_price(host):
    host.power.now = BatteryRead(False)
    await host.budgets.set(BATTERY)
    host.tick()
    assert host.known.prices.energy_rate() == 0.0
    assert host.messages()[0].suspended == "battery charge unknown"
    assert any('"battery" counts nothing' in problem for problem in host.budgets.problems)
