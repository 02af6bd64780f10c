"""Bytes over neighbours are metered by helper: apart from this host's own plan, and from their link."""

from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from cedos.budget_kinds import Resource
from cedos.daemon.budgets import used
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Network, NetworkKind

pytestmark = pytest.mark.anyio

HELPER = Network(
    "helper-1", "wlan0", 2, NetworkKind.HELPER, True, (ip_interface("169.254.1.5/32"),),
    leads_to=ip_address("198.51.100.9"), money_per_mb=0.0005,
)  # fmt: skip
PLAN = Budget("plan", Resource.DATA, 1e9, "2026-12-01T00:00:00")
NEIGHBOURS = Budget("neighbours", Resource.DATA, 1e9, "2026-12-01T00:00:00", networks=("helper-1",))


def helped(host: Any, received: int, sent: int = 0) -> None:
    host.metering.on_counters(HELPER, Counters(received, sent), host.steady_s)


async def test_a_budget_counts_it_only_where_it_names_it(host: Any) -> None:
    await host.budgets.set(PLAN)
    await host.budgets.set(NEIGHBOURS)
    helped(host, 1000, 10)
    helped(host, 1500, 20)
    host.carry("lte0", 300)
    host.tick()
    assert host.spent("neighbours") == 1520
    assert host.spent("plan") == 300


async def test_its_link_has_what_is_left(host: Any) -> None:
    host.tick()
    host.carry("wlan0", 5000, 100)
    helped(host, 4000, 40)
    host.tick()
    assert host.usage.totals["free/wlan0"] == 1060
    # The look at the connections may be later than that at the interface.
    host.carry("wlan0", 2000)
    host.tick()
    helped(host, 6000, 40)
    host.carry("wlan0", 2500)
    host.tick()
    assert host.usage.totals["free/wlan0"] == 1060 + 2000 + 500


async def test_the_usage_lists_it_as_metered(host: Any) -> None:
    helped(host, 1000, 10)
    found = {each.network: each for each in used.by_network(host.usage, 0.0).networks}
    assert (found["helper-1"].metered_bytes, found["helper-1"].free_bytes) == (1010, 0)
