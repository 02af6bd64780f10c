"""Periods of budgets: when a new supply begins, and what a change of the budget keeps."""

import asyncio
from dataclasses import replace
from datetime import datetime

import pytest

from cedos.budget_kinds import Resource
from cedos.model import Budget, Every

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
