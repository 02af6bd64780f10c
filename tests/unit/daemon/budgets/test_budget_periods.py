"""Budgets by periods, of the battery and in the daemon's state."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_interface

import pytest

from cedos.budget_kinds import Resource
from cedos.controller.events import BatteryRead
from cedos.errors import ConfigError
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Every, Network, NetworkKind
from cedos.storage.usage import Usage

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)


async def test_a_new_month_begins_at_nothing_even_if_the_daemon_sleeps_over_it(host):
    await host.budgets.set(DATA)
    host.carry("lte0", 300_000)
    host.tick()
    host.budgets.write()
    host.tick(9 * 86_400.0)  # suspended, and awake again on 30 November
    assert host.spent() == 300_000
    host.tick(86_400.0)
    assert host.spent() == 0.0


async def test_a_change_of_one_that_does_not_recur_keeps_what_was_spent(host):
    once = replace(DATA, every=None)
    await host.budgets.set(once)
    host.carry("lte0", 2_150_000)
    host.tick(60.0)
    await host.budgets.set(replace(once, supply=2e9, until="2026-12-24T00:00:00"))
    assert host.spent() == 2_150_000
    host.budgets.write()
    host.start()
    assert host.spent() == 2_150_000
    # Another resource under this name is another budget.
    await host.budgets.set(replace(once, resource=Resource.ENERGY))
    await host.budgets.set(once)
    host.tick()
    assert host.spent() == 0


@pytest.mark.jumping
async def test_a_day_that_begins_at_any_minute_counts_from_that_minute(host):
    every_day = replace(DATA, until="2026-11-21T09:07:00", every=Every.DAY)
    await host.budgets.set(every_day)
    running = asyncio.create_task(host.budgets.run())
    try:
        for _ in range(10):  # a minute each
            host.carry("lte0", 60_000)
            host.tick(60.0)
            await asyncio.sleep(1.1)  # the task looks once a second
    finally:
        running.cancel()
        await asyncio.wait([running])
    # It was ten past nine at the end, or nearly.
    begun_s = datetime(2026, 11, 21, 9, 7).timestamp()
    assert host.known.keepers["data"].period.begins_s == begun_s
    assert host.spent() == pytest.approx(1000 * (host.now_s - begun_s), abs=60_000)


BATTERY = Budget("battery", Resource.ENERGY, 0.0, "2026-11-21T18:00:00", battery=True)


async def test_a_battery_lasts_until_it_is_charged(host):
    await host.budgets.set(BATTERY)
    keeper = host.known.keepers["battery"]
    assert keeper.budget.supply == 1e5
    host.power.now = BatteryRead(0.4, True, 9e4)
    await host.budgets._read_battery()
    host.tick(600.0)
    assert keeper.spent == 1e4
    assert host.known.prices.energy_rate() > 0.0
    assert "A joule must save" in host.objective.note
    host.power.now = BatteryRead(0.6, False, 9.5e4)
    await host.budgets._read_battery()
    host.tick()
    assert host.known.prices.energy_rate() == 0.0
    assert host.messages()[0].suspended == "on mains power"
    await host.budgets.set(DATA)
    assert '(budget "data"' in host.objective.note
    assert "(battery)" not in host.objective.note  # it has no part in any price
    host.power.now = BatteryRead(0.9, True, 1.8e5)
    await host.budgets._read_battery()
    host.tick()
    assert keeper.budget.supply == 1.8e5
    assert keeper.spent == 0.0


async def test_a_battery_that_was_charged_in_sleep_begins_anew(host):
    """The battery was being used up both before and after the sleep."""
    await host.budgets.set(BATTERY)
    host.power.now = BatteryRead(0.8, True, 1.6e5)
    await host.budgets._read_battery()
    host.tick()
    assert host.known.keepers["battery"].budget.supply == 1.6e5
    assert host.spent("battery") == 0.0
    host.power.now = BatteryRead(0.7, True, 1.4e5)
    await host.budgets._read_battery()
    assert host.spent("battery") == 2e4


async def test_a_restart_in_the_middle_of_a_discharge_keeps_its_supply(host):
    await host.budgets.set(BATTERY)
    # What is kept of it stood under the key "supplies", as what this one has learned.
    await host.budgets.set(replace(DATA, name="supplies"))
    host.power.now = BatteryRead(0.4, True, 6e4)
    host.tick(600.0)
    host.budgets.write()
    assert "learned" in host.known.state()["supplies"]
    host.start()
    await host.budgets._read_battery()
    host.tick()
    assert host.known.keepers["battery"].budget.supply == 1e5
    assert host.spent("battery") == 4e4


async def test_a_battery_that_tells_nothing_has_no_price(host):
    host.power.now = BatteryRead()
    await host.budgets.set(BATTERY)
    host.tick()
    assert host.known.prices.energy_rate() == 0.0
    assert host.messages()[0].suspended == "battery charge unknown"
    assert any('"battery" counts nothing' in problem for problem in host.budgets.problems)


async def test_a_battery_needs_the_system_bus(host):
    host.budgets._battery = None
    with pytest.raises(ConfigError, match="UPower tells that over the system bus"):
        await host.budgets.set(BATTERY)


ONCE = Budget("once", Resource.DATA, 1e9, "2026-11-24T11:00:00")
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))


async def test_a_restart_and_a_reboot_lose_nothing(host):
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.tick()
    host.budgets.write()
    host.carry("lte0", 500)  # while no daemon runs
    host.start()
    assert host.spent() == 1500
    host.budgets.write()
    host.carried["lte0"] = [70, 30]  # the counters began anew with the host
    host.start("boot-2")
    assert host.spent() == 1600


async def test_a_killed_daemon_counts_what_it_had_not_written(host):
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.tick()
    host.start()  # nothing was written since the budget was set
    assert host.spent() == 1000


async def test_what_a_new_interface_carries_is_written_at_once_lest_a_crash_loses_it(
    host, monkeypatch
):
    monkeypatch.setattr("cedos.daemon.budgets.host_budgets._TICK_S", 0.01)
    running = asyncio.create_task(host.budgets.run())
    try:
        async with asyncio.timeout(5):
            while host.usage.fresh:
                await asyncio.sleep(0.01)
            phone = replace(LTE, name="phone", interface="usb0", index=9)
            host.metering.on_counters(phone, Counters(3_000_000, 0), host.steady_s)
            while host.usage.fresh:  # though half a minute is not over
                await asyncio.sleep(0.01)
        after_a_crash = Usage(host.state / "usage.sqlite", "boot-1")
        assert after_a_crash.totals["metered/phone"] == 3_000_000
        assert after_a_crash.counters["9/down"].value == 3_000_000
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize("days", [-1, -40, -400])
async def test_a_clock_that_is_set_back_gives_no_budget_anew(host, days):
    """A time server does, once and again."""
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.tick()
    for _ in range(3):
        host.now_s += days * 86_400.0
        host.carry("lte0", 10)
        host.tick(0.5)
        host.now_s -= days * 86_400.0
        host.carry("lte0", 10)
        host.tick(0.5)
        host.now_s += days * 86_400.0
    host.tick()
    assert host.spent() == 1060


@pytest.mark.parametrize("by_s", [3600.0, 86_400.0, -86_400.0])
async def test_a_clock_that_is_set_counts_nothing_from_before_the_budget(host, by_s):
    """Once the bytes since the host's start counted, too: 440 MB instead of 40."""
    host.carry("lte0", 400_000_000)
    host.tick(7200.0)
    await host.budgets.set(ONCE)
    host.carry("lte0", 40_000_000)
    host.tick(1800.0)
    host.offered(1000, 1)
    for step_s in (by_s, -by_s, by_s):
        host.now_s += step_s
        assert host.spent("once") == 40_000_000
    host.budgets.write()
    host.start()
    assert host.spent("once") == 40_000_000
    (standing,) = host.standings()
    assert standing.bought_s == pytest.approx(8.0, abs=0.1)
    host.now_s -= by_s
    assert host.spent("once") == 40_000_000


async def test_a_clock_that_is_set_where_no_budget_can_be_and_back_changes_nothing(host):
    host.carry("lte0", 400_000_000)
    host.tick(7200.0)
    await host.budgets.set(ONCE)
    host.carry("lte0", 40_000_000)
    host.tick(1800.0)
    host.now_s += 9 * 86_400.0
    host.tick()
    assert host.standings()[0].over
    host.now_s -= 9 * 86_400.0
    host.tick()
    for wrong_s in (17e8, 16e8):  # 1973, 1976
        host.now_s -= wrong_s
        host.tick()
        host.now_s += wrong_s
    assert host.spent("once") == 40_000_000
    assert not host.standings()[0].over
