"""The persistence of counts: restarts, crashes, interfaces that come and go, clocks that jump."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_interface

import pytest

from cedos.budget_kinds import Resource
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Every, Network, NetworkKind
from cedos.storage.usage import Usage

ONCE = Budget("once", Resource.DATA, 1e9, "2026-11-24T11:00:00")
DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)
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
        assert after_a_crash.counters["usb0/down"].value == 3_000_000
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
