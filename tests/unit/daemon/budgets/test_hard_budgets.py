"""Hard budgets in the daemon: spent, barred, renewed, whatever happens in between."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_interface
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedos.budget_kinds import Resource
from cedos.config import BudgetConfig, Config, NetworkConfig, PlanConfig
from cedos.daemon.budgets.hard_budgets import HardBudgets
from cedos.daemon.budgets.host_budgets import HostBudgets
from cedos.daemon.budgets.messages import messages
from cedos.daemon.budgets.metering import Metering, money_per_mb, radios_of
from cedos.errors import SteeringError
from cedos.kernel.rtnetlink import Counters
from cedos.model import Budget, Every, Network, NetworkKind
from cedos.selector.objective import MaxS
from cedos.storage.usage import Usage

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
NOW_S = datetime(2026, 11, 21, 9, 0).timestamp()
DAY_S = 86_400.0
DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH, hard=True)


class BarringInterface:
    """Steering as it is asked; it can refuse."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.refuses = ""

    async def bar(self, names: Collection[str]) -> None:
        if self.refuses:
            raise SteeringError(self.refuses)
        self.asked.append(sorted(names))


class Host:
    """A daemon's part with a clock that a test turns."""

    def __init__(self, state: Path, config: Config | None = None, unable: str = "") -> None:
        self.config, self.state, self.unable = config or Config(), state, unable
        self.now_s, self.steady_s = NOW_S, 1000.0
        self.networks = [WLAN, LTE]
        self.carried = {"wlan0": 10**10, "lte0": 5 * 10**9}
        self.start()

    def start(self) -> None:
        """Another daemon begins."""
        self.hands = BarringInterface()
        self.barred: list[dict[str, str]] = []
        usage = Usage(self.state / "usage.sqlite", "boot-1")
        priced = money_per_mb(self.config)
        self.metering = Metering(usage, "boot-1", self.networks, radios_of(self.config), priced)
        self.budgets = HostBudgets(
            self.config,
            self.state,
            usage,
            self.metering,
            lambda: self.networks,
            lambda *_: None,
            MaxS(),
            ticked := asyncio.Event(),
            clock=lambda: self.now_s,
            steady=lambda: self.steady_s,
        )
        self.hard = HardBudgets(
            self.budgets,
            self.metering,
            lambda: self.networks,
            self.hands,
            self._barred,
            self.count,
            priced,
            ticked,
            unable=self.unable,
            clock=lambda: self.now_s,
            steady=lambda: self.steady_s,
        )
        self._look(1.0)

    def _barred(self, why: Mapping[str, str]) -> None:
        self.barred.append(dict(why))

    async def count(self, network: Network) -> None:
        """Reads its counters."""
        self._count(network)

    def _count(self, network: Network) -> None:
        self.metering.on_counters(network, Counters(self.carried[network.name], 0), self.steady_s)

    async def tick(self, after_s: float = 1.0, *, carry: int = 0) -> float:
        """Time passes, while the metered network carries something; in how long to look again."""
        self.carried["lte0"] += carry
        next_s = self._look(after_s)
        await self.hard.settle()
        return next_s

    def _look(self, after_s: float) -> float:
        self.now_s += after_s
        self.steady_s += after_s
        for network in self.networks:
            self._count(network)
        self.budgets.tick()
        return self.hard.check()

    @property
    def now_barred(self) -> list[str]:
        return self.hands.asked[-1] if self.hands.asked else []


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_it_warns_twice_then_bars_and_says_so(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=899_000_000)
    assert host.hard.problems == []
    with capture_logs() as logs:
        for carry in (1_000_000, 1_000_000, 90_000_000, 1_000_000):
            await host.tick(100.0, carry=carry)
    events = [each["event"] for each in logs if each["event"].startswith("a hard")]
    assert events == ["a hard budget is nearly used up", "a hard budget is almost used up"]
    assert "almost used up: 8 MB of 1 GB left" in host.hard.problems[0]
    assert host.hands.asked == []
    await host.tick(100.0, carry=8_000_000)
    assert host.now_barred == ["lte0"]
    assert 'because the hard budget "data" is used up (1 GB of 1 GB)' in host.barred[-1]["lte0"]
    (problem,) = host.hard.problems
    assert "programs are blocked on lte0 until 2026-12-01 00:00" in problem
    (message,) = messages(host.budgets, host.hard.barred_by)
    assert (message.hard, message.barred, message.spent_up) == (True, ("lte0",), True)
    await host.tick()
    assert len(host.hands.asked) == 1  # once is enough


async def test_what_is_coming_is_reckoned_with_and_what_is_left_then_opens_nothing(
    host: Host,
) -> None:
    await host.budgets.set(DATA)
    for _ in range(199):  # 40 Mbit/s
        await host.tick(carry=5_000_000)
    assert host.hands.asked == []
    await host.tick(0.9, carry=4_500_000)
    assert host.now_barred == ["lte0"]
    assert host.budgets.keepers["data"].spent == 999_500_000
    await host.tick(100.0)
    assert len(host.hands.asked) == 1
    await host.budgets.set(replace(DATA, supply=1.001e9))
    await host.tick()
    assert host.now_barred == []


async def test_a_soft_one_bars_nothing(host: Host) -> None:
    await host.budgets.set(replace(DATA, hard=False))
    await host.tick(carry=2_000_000_000)
    assert host.hands.asked == []
    assert host.hard.problems == []


async def test_a_new_period_more_supply_softness_and_removal_lift_it(host: Host) -> None:
    for lift in ("period", "supply", "soft", "removed"):
        await host.budgets.set(DATA)
        await host.tick(carry=1_000_000_000)
        assert host.now_barred == ["lte0"], lift
        match lift:
            case "period":
                host.budgets.write()
                await host.tick(10 * DAY_S)
            case "supply":
                await host.budgets.set(replace(DATA, supply=9e9))
            case "soft":
                await host.budgets.set(replace(DATA, hard=False))
            case "removed":
                host.budgets.remove("data")
        await host.tick()
        assert host.now_barred == [], lift
        assert host.barred[-1] == {}, lift


async def test_less_supply_in_mid_period_bars_at_once(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=500_000_000)
    await host.budgets.set(replace(DATA, supply=4e8))
    host.hard.check()
    await host.hard.settle()
    assert host.now_barred == ["lte0"]


async def test_a_clock_that_is_set_into_the_next_month_and_back_opens_nothing(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=1_000_000_000)
    host.budgets.write()
    for days in (20, -20):
        host.now_s += days * DAY_S
        await host.tick()
        assert host.hands.asked == [["lte0"]]


async def test_an_interface_that_vanishes_and_comes_back_with_another_index(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=1_000_000_000)
    host.networks = [WLAN]
    await host.tick()
    host.networks = [WLAN, replace(LTE, index=9)]
    host.carried["lte0"] = 100
    await host.tick()
    assert host.hands.asked == [["lte0"]]  # barred all along
    # One with another name is a metered network like the first.
    host.networks = [WLAN, replace(LTE, name="usb0", interface="usb0", index=10)]
    host.carried["usb0"] = 0
    await host.tick()
    assert host.now_barred == ["lte0", "usb0"]


async def test_a_restart_bars_again_and_a_killed_one_too(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=1_000_000_000)
    host.budgets.write()
    host.start()
    await host.hard.settle()
    assert host.hands.asked == [["lte0"]]
    assert list(host.barred[-1]) == ["lte0"]


async def test_what_steering_refuses_is_said_and_tried_again(host: Host) -> None:
    await host.budgets.set(DATA)
    host.hands.refuses = "iptables is not installed"
    await host.tick(carry=1_000_000_000)
    assert "hard budgets cannot be enforced: iptables is not installed" in host.hard.problems
    assert host.hard.barred_by("data") == ()
    assert list(host.barred[-1]) == ["lte0"]  # nothing is led there all the same
    host.hands.refuses = ""
    await host.tick()
    assert host.hands.asked == []
    await host.tick(10.0)
    assert host.now_barred == ["lte0"]
    assert not any("cannot" in problem for problem in host.hard.problems)


async def test_what_steering_refuses_is_said_truly_wherever_it_shows(host: Host) -> None:
    await host.budgets.set(DATA)
    assert host.hard.unkept("data") == ""
    host.hands.refuses = "iptables is not installed"
    await host.tick(carry=1_000_000_000)
    why = host.barred[-1]["lte0"]
    assert "kept off lte0" not in why
    assert 'because the hard budget "data" is used up (1 GB of 1 GB)' in why
    assert why.endswith("Programs cannot be blocked there: iptables is not installed")
    (message,) = messages(host.budgets, host.hard.barred_by, host.hard.unkept)
    assert (message.barred, message.unkept) == ((), "iptables is not installed")
    assert host.hard.unkept("another") == ""
    host.hands.refuses = ""
    await host.tick(10.0)
    assert host.barred[-1]["lte0"].startswith("Programs are blocked on lte0 until")
    assert host.hard.unkept("data") == ""


async def test_what_gets_through_all_the_same_has_the_bar_put_in_again(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=1_000_000_000)
    await host.tick(20.0, carry=50_000)  # what was on its way
    assert len(host.hands.asked) == 1
    await host.tick(carry=200_000)
    assert host.hands.asked == [["lte0"], ["lte0"]]


async def test_where_nothing_can_be_barred_that_is_said_and_nothing_asked(tmp_path: Path) -> None:
    host = Host(tmp_path, unable="[steering] iptables = true would be needed")
    assert host.hard.problems == []
    await host.budgets.set(DATA)
    await host.tick()
    assert host.hard.problems == [
        "hard budgets cannot be enforced: [steering] iptables = true would be needed"
    ]
    await host.tick(carry=1_000_000_000)
    assert (host.hands.asked, host.barred) == ([], [])
    assert host.hard.unkept("data") == "[steering] iptables = true would be needed"


async def test_money_and_configured_ones(tmp_path: Path) -> None:
    config = Config(
        networks={"lte0": NetworkConfig(money_per_mb=0.02)},
        plan=PlanConfig(metered_bytes=10**9, hard=True),
        budgets={"cash": BudgetConfig(money=5.0, until="2026-12-01", every=Every.MONTH, hard=True)},
    )
    host = Host(tmp_path, config)
    await host.tick(1000.0, carry=249_000_000)
    assert host.hands.asked == []
    await host.tick(100.0, carry=1_000_000)
    assert host.hard.barred_by("cash") == ("lte0",)
    assert host.hard.barred_by("plan") == ()
    assert "(5 of 5)" in host.barred[-1]["lte0"]


async def test_the_nearer_the_end_the_sooner_it_checks(host: Host) -> None:
    assert await host.tick() == 1.0  # there is none
    await host.budgets.set(DATA)
    assert await host.tick(carry=1_000) == 1.0
    near_s = await host.tick(carry=980_000_000)
    assert 0.05 <= near_s < 0.1
    assert await host.tick(5.0) == 0.2  # nothing moves
    assert await host.tick(carry=20_000_000) == 1.0  # spent


async def test_it_reads_counters_itself_near_the_end_and_bars_within_moments(host: Host) -> None:
    await host.budgets.set(DATA)
    await host.tick(1000.0, carry=999_000_000)
    running = asyncio.create_task(host.hard.run())
    try:
        host.carried["lte0"] += 2_000_000  # and nobody tells
        for _ in range(100):
            await asyncio.sleep(0.02)
            if host.hands.asked:
                break
        assert host.now_barred == ["lte0"]
        host.budgets.remove("data")  # at once, without a look of its own
        await asyncio.sleep(0.05)
        assert host.now_barred == []
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_one_that_counts_other_networks_than_before_bars_none_that_is_unspent(
    host: Host,
) -> None:
    await host.budgets.set(replace(DATA, networks=("lte0",)))
    await host.tick(100.0, carry=1_000_000_000)
    assert host.now_barred == ["lte0"]
    await host.budgets.set(replace(DATA, networks=("wlan0",)))
    assert await host.tick() == 1.0  # nor is it looked at as often as lte0 was quick
    assert host.now_barred == []
    host.budgets.remove("data")
    await host.tick()
    await host.budgets.set(replace(DATA, networks=("lte0",)))
    await host.tick()
    assert host.now_barred == ["lte0"]


async def test_what_cannot_be_barred_is_not_said_to_be_barred(host: Host) -> None:
    await host.budgets.set(DATA)
    host.hands.refuses = "iptables is not installed"
    await host.tick(carry=1_000_000_000)
    spent = host.hard.problems[0]
    assert "is used up: programs should be blocked on lte0 until 2026-12-01" in spent


async def test_a_network_that_cannot_be_opened_again_is_told_of_though_no_budget_is_left(
    host: Host,
) -> None:
    await host.budgets.set(DATA)
    await host.tick(carry=1_000_000_000)
    host.hands.refuses = "iptables does not end"
    host.budgets.remove("data")
    await host.tick()
    assert host.hard.problems == [
        "networks that were blocked cannot be unblocked: iptables does not end"
    ]
    host.hands.refuses = ""
    await host.tick(10.0)
    assert (host.now_barred, host.hard.problems) == ([], [])


async def test_the_reason_is_that_of_the_budget_that_bars_now(host: Host) -> None:
    today = Budget("today", Resource.DATA, 5e8, "2026-11-22T00:00:00", every=Every.DAY, hard=True)
    await host.budgets.set(today)
    await host.budgets.set(DATA)
    await host.tick(carry=1_200_000_000)
    assert '"today" is used up' in host.barred[-1]["lte0"]
    host.budgets.write()
    await host.tick(DAY_S)
    assert (
        'until 2026-12-01 00:00, because the hard budget "data" is used up (1.2'
        in host.barred[-1]["lte0"]
    )
    await host.budgets.set(replace(DATA, supply=1.1e9))
    await host.tick()
    assert "of 1.1 GB" in host.barred[-1]["lte0"]
    told = len(host.barred)
    await host.tick()
    assert len(host.barred) == told
    assert host.hands.asked == [["lte0"]]
