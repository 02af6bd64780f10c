"""Bytes over neighbours are metered by helper: apart from this host's own plan, and from their link."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.budget_kinds import Resource
from cedos.controller.events import NetworksChanged
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Network, NetworkKind

HELPER = Network(
    "helper-1", "wlan0", 2, NetworkKind.HELPER, True, (ip_interface("169.254.1.5/32"),),
    leads_to=ip_address("198.51.100.9"), money_per_mb=0.0005,
)  # fmt: skip
PLAN = Budget("plan", Resource.DATA, 1e9, "2026-12-01T00:00:00")
NEIGHBOURS = Budget("neighbours", Resource.DATA, 1e9, "2026-12-01T00:00:00", networks=("helper-1",))


def helped(host, received, sent=0):
    host.metering.on_counters(HELPER, Counters(received, sent), host.steady_s)


async def test_a_budget_counts_it_only_where_it_names_it(host):
    await host.budgets.set(PLAN)
    await host.budgets.set(NEIGHBOURS)
    helped(host, 1000, 10)
    helped(host, 1500, 20)
    host.carry("lte0", 300)
    host.tick()
    assert host.spent("neighbours") == 1520
    assert host.spent("plan") == 300


async def test_a_budget_of_money_counts_what_it_is_paid(host):
    await host.budgets.set(Budget("money", Resource.MONEY, 5.0, "2026-12-01T00:00:00"))
    assert host.messages()[0].suspended
    host.post(NetworksChanged((), helpers=(HELPER,)))
    helped(host, 900_000_000, 100_000_000)
    # Another neighbour gets its name, and asks for twice as much.
    dear = replace(HELPER, money_per_mb=0.001)
    host.metering.on_counters(dear, Counters(1_900_000_000, 100_000_000), host.steady_s)
    host.tick()
    assert host.spent("money") == pytest.approx(0.5 + 1.0)
    assert not host.messages()[0].suspended
    assert host.known.prices.money_s(1.0, 1.0) > 0.0
    # A choice of a megabyte over it is one of its price.
    budget = host.known.keepers["money"].budget
    assert host.known.amount(budget, 0.0, [("helper-1", 1e6)]) == pytest.approx(0.0005)


async def test_its_link_has_what_is_left(host):
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
