"""Bytes that count: of networks, helpers and hard budgets."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface

import pytest

from cedos.api.budgets import NetworkUsage, UsageMessage
from cedos.budget_kinds import Resource
from cedos.config import BudgetConfig, Config, NetworkConfig
from cedos.controller.events import NetworksChanged
from cedos.daemon.budgets import used
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, CarriedConnection, Every, Network, NetworkKind

METERED = UsageMessage(
    since_unix_s=0.0,
    networks=(NetworkUsage(network="lte0", metered_bytes=1.0, free_bytes=0.0, radio_j=0.0),),
)


def carried(server, gateway, addresses, **sizes):
    return CarriedConnection(
        server=server, port=443, gateway=gateway, addresses=addresses,
        bytes_up=sum(sizes.values()), bytes_by_network=sizes,
    )  # fmt: skip


def shown(tmp_path, living, *through):
    message = used.by_server(METERED, tmp_path / "none.sqlite", living, through)
    return {(each.server, each.gateway): each.bytes_by_network for each in message.servers}


def test_a_gateway_with_two_names_is_one(tmp_path):
    assert shown(
        tmp_path,
        {"198.51.100.7": {"wlan0": 1000}, "198.51.100.8": {"wlan0": 1}},
        carried("a.example", "gw.example", ("198.51.100.7",), wlan0=300),
        carried("b.example", "198.51.100.7", ("198.51.100.7", "198.51.100.8"), wlan0=200),
        carried("c.example", "other.example", ("198.51.100.9",), wlan0=400),
    ) == {
        ("a.example", "gw.example"): {"wlan0": 300},
        ("b.example", "198.51.100.7"): {"wlan0": 200},
        ("c.example", "other.example"): {"wlan0": 400},
        ("gw.example", None): {"wlan0": 501},
    }


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


DAY_S = 86_400.0
DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH, hard=True)


def spend(host, size=0, after_s=1.0):
    host.carry("lte0", size)
    host.tick(after_s)


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
        budgets={
            "cash": BudgetConfig(money=5.0, until="2026-12-01", every=Every.MONTH, hard=True),
            "plan": BudgetConfig(data="1GB", until="2026-12-01", every=Every.MONTH, hard=True),
        },
    )
    host = make_host(config)
    spend(host, 249_000_000, 1000.0)
    assert host.bars == []
    spend(host, 1_000_000, 100.0)
    hard = host.controller.hard
    assert hard.barred_by("cash") == ("lte0",)
    assert hard.barred_by("plan") == ()
    assert "(5 of 5)" in hard.why["lte0"]
