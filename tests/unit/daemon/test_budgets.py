import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_interface
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from cedos.config import (
    BudgetConfig,
    Config,
    DecisionConfig,
    EnergyConfig,
    NetworkConfig,
    PlanConfig,
)
from cedos.daemon.budget_messages import messages
from cedos.daemon.budgets import Budgets
from cedos.daemon.choices import curves
from cedos.daemon.metering import Metering, money_per_mb, radios_of
from cedos.errors import ConfigError, NotFoundError
from cedos.history_usage import Usage
from cedos.model import Network, NetworkKind
from cedos.monitor.battery import Battery
from cedos.monitor.counters import Counters
from cedos.selector.budget import PROHIBITIVE, Budget, Every, Resource
from cedos.selector.objective import MaxS, MaxSPerE, Objective

pytestmark = pytest.mark.anyio

WLAN = Network("wlan0", "wlan0", 2, NetworkKind.WIFI, False, (ip_interface("10.0.0.2/24"),))
LTE = Network("lte0", "lte0", 3, NetworkKind.CELLULAR, True, (ip_interface("10.1.0.2/24"),))
NOW_S = datetime(2026, 11, 21, 9, 0).timestamp()
DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)
BATTERY = Budget("battery", Resource.ENERGY, 0.0, "2026-11-21T18:00:00", battery=True)


class Power:
    """A battery of which a test says what it holds."""

    def __init__(self) -> None:
        self.now: Battery | None = Battery(0.5, True, 1e5, 10.0)

    async def read(self) -> Battery | None:
        return self.now


class Host:
    """A daemon's part with a clock that a test turns."""

    def __init__(self, state: Path, config: Config | None = None, boot: str = "boot-1") -> None:
        self.config = config or Config()
        self.now_s = NOW_S
        self.steady_s = 1000.0
        self.state = state
        self.power = Power()
        self.carried = {"wlan0": [10**10, 10**10], "lte0": [5 * 10**9, 10**9]}
        self.start(boot)

    def start(self, boot: str = "boot-1") -> None:
        """Another daemon begins."""
        self.preferred: list[tuple[Objective, bool]] = []
        self.usage = Usage(self.state / "usage.sqlite", boot)
        self.metering = Metering(
            self.usage, boot, [WLAN, LTE], radios_of(self.config), money_per_mb(self.config)
        )
        self.budgets = Budgets(
            self.config,
            self.state,
            self.usage,
            self.metering,
            lambda: [WLAN, LTE],
            lambda objective, urgent: self.preferred.append((objective, urgent)),
            MaxS(),
            curves=curves(self.config),
            battery=self.power,
            clock=lambda: self.now_s,
            steady=lambda: self.steady_s,
        )
        self.look()

    def carry(self, name: str, received: int, sent: int = 0) -> None:
        self.carried[name][0] += received
        self.carried[name][1] += sent

    def look(self, after_s: float = 1.0) -> None:
        self.now_s += after_s
        self.steady_s += after_s
        for network in (WLAN, LTE):
            received, sent = self.carried[network.name]
            self.metering.counted(network, Counters(received, sent), self.steady_s)
        self.budgets.tick()

    def spent(self, name: str = "data") -> float:
        self.budgets.tick()
        return self.budgets.keepers[name].spent


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_without_budgets_the_objective_is_as_configured(host: Host) -> None:
    host.look()
    assert {type(objective) for objective, _ in host.preferred} == {MaxS}


async def test_a_budget_counts_what_all_programs_carry_and_prices_it(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 200_000, 50_000)
    host.carry("wlan0", 999_999)
    host.look()
    assert host.spent() == 250_000
    objective = host.preferred[-1][0]
    assert objective.name == "budgets"
    assert objective.prices.data_rate("lte0") > 0.0
    assert objective.prices.data_rate("wlan0") == 0.0
    assert "a megabyte on lte0 is worth" in objective.note
    assert "1 GB of 1 GB are left for 10 days (data)" in objective.note


async def test_a_restart_and_a_reboot_lose_nothing(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.look()
    host.budgets.write()
    host.carry("lte0", 500)  # while no daemon runs
    host.start()
    assert host.spent() == 1500
    host.budgets.write()
    host.carried["lte0"] = [70, 30]  # the counters began anew with the host
    host.start("boot-2")
    assert host.spent() == 1600


async def test_a_killed_daemon_counts_what_it_had_not_written(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.look()
    host.start()  # nothing was written since the budget was set
    assert host.spent() == 1000


async def test_what_a_new_interface_carries_is_written_at_once_lest_a_crash_loses_it(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cedos.daemon.budgets._TICK_S", 0.01)
    running = asyncio.create_task(host.budgets.run())
    try:
        async with asyncio.timeout(5):
            while host.usage.fresh:
                await asyncio.sleep(0.01)
            phone = replace(LTE, name="phone", interface="usb0", index=9)
            host.metering.counted(phone, Counters(3_000_000, 0), host.steady_s)
            while host.usage.fresh:  # though half a minute is not over
                await asyncio.sleep(0.01)
        after_a_crash = Usage(host.state / "usage.sqlite", "boot-1")
        assert after_a_crash.totals["metered/phone"] == 3_000_000
        assert after_a_crash.counters["usb0/down"].value == 3_000_000
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def test_an_interface_that_is_plugged_in_again_counts_from_nothing(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.look()
    again = replace(LTE, index=9)
    host.metering.counted(again, Counters(400, 100), host.steady_s)
    assert host.spent() == 1500


async def test_a_spent_budget_is_prohibitive_and_said(host: Host) -> None:
    await host.budgets.set(replace(DATA, supply=1e6))
    host.carry("lte0", 2_000_000)
    host.look()
    assert host.budgets.prices.data_rate("lte0") == PROHIBITIVE
    assert 'the budget "data" is exceeded (200% used)' in host.budgets.problems
    (message,) = messages(host.budgets)
    assert (message.spent_up, message.s_per_unit) == (True, None)
    assert "nothing may go over lte0" in host.preferred[-1][0].note


async def test_a_new_month_begins_at_nothing_even_if_the_daemon_sleeps_over_it(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 300_000)
    host.look()
    host.budgets.write()
    host.look(9 * 86_400.0)  # suspended, and awake again on 30 November
    assert host.spent() == 300_000
    host.look(86_400.0)
    assert host.spent() == 0.0


async def test_a_change_in_the_middle_keeps_what_was_spent(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 600_000_000)
    host.look()
    await host.budgets.set(replace(DATA, supply=5e8))
    assert host.spent() == 600_000_000
    assert host.budgets.prices.data_rate("lte0") == PROHIBITIVE
    await host.budgets.set(replace(DATA, supply=5e9))
    assert host.budgets.prices.data_rate("lte0") < PROHIBITIVE


async def test_a_change_of_one_that_does_not_recur_keeps_what_was_spent(host: Host) -> None:
    once = replace(DATA, every=None)
    await host.budgets.set(once)
    host.carry("lte0", 2_150_000)
    host.look(60.0)
    await host.budgets.set(replace(once, supply=2e9, until="2026-12-24T00:00:00"))
    assert host.spent() == 2_150_000
    host.budgets.write()
    host.start()
    assert host.spent() == 2_150_000
    # Another resource under this name is another budget.
    await host.budgets.set(replace(once, resource=Resource.ENERGY))
    await host.budgets.set(once)
    host.look()
    assert host.spent() == 0


async def test_one_that_recurred_and_is_to_end_keeps_what_was_spent_this_month(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.look(60.0)
    await host.budgets.set(replace(DATA, every=None))
    assert host.spent() == 1000
    assert host.budgets.keepers["data"].budget.since == "2026-11-01T00:00:00"


async def test_one_that_is_over_begins_anew_when_it_is_set_again(host: Host) -> None:
    await host.budgets.set(replace(DATA, every=None, until="2026-11-21T10:00:00"))
    host.carry("lte0", 1000)
    host.look(7200.0)
    await host.budgets.set(replace(DATA, every=None))
    assert host.spent() == 0


async def test_a_clock_that_jumps_ahead_and_back_loses_nothing(host: Host) -> None:
    await host.budgets.set(DATA)
    host.carry("lte0", 1000)
    host.look()
    host.budgets.write()
    host.now_s += 4e8
    host.carry("lte0", 200)
    host.look()
    host.budgets.write()
    host.now_s -= 4e8
    host.carry("lte0", 30)
    host.look()
    assert host.spent() == 1230


async def test_a_battery_lasts_until_it_is_charged(host: Host) -> None:
    await host.budgets.set(BATTERY)
    keeper = host.budgets.keepers["battery"]
    assert keeper.budget.supply == 1e5
    host.power.now = Battery(0.4, True, 9e4, 10.0)
    await host.budgets._read_battery()
    host.look(600.0)
    assert keeper.spent == 1e4
    assert host.budgets.prices.energy_rate() > 0.0
    assert "a joule is worth" in host.preferred[-1][0].note
    host.power.now = Battery(0.6, False, 9.5e4, 10.0)
    await host.budgets._read_battery()
    host.look()
    assert host.budgets.prices.energy_rate() == 0.0
    assert messages(host.budgets)[0].suspended == "on mains power"
    await host.budgets.set(DATA)
    assert "(data)" in host.preferred[-1][0].note
    assert "(battery)" not in host.preferred[-1][0].note  # it has no part in any price
    host.power.now = Battery(0.9, True, 1.8e5, 10.0)
    await host.budgets._read_battery()
    host.look()
    assert keeper.budget.supply == 1.8e5
    assert keeper.spent == 0.0


async def test_a_restart_in_the_middle_of_a_discharge_keeps_its_supply(host: Host) -> None:
    await host.budgets.set(BATTERY)
    host.power.now = Battery(0.4, True, 6e4, 10.0)
    host.look(600.0)
    host.budgets.write()
    host.start()
    await host.budgets._read_battery()
    host.look()
    assert host.budgets.keepers["battery"].budget.supply == 1e5
    assert host.spent("battery") == 4e4


async def test_a_battery_that_tells_nothing_has_no_price(host: Host) -> None:
    host.power.now = None
    await host.budgets.set(BATTERY)
    host.look()
    assert host.budgets.prices.energy_rate() == 0.0
    assert messages(host.budgets)[0].suspended == "the battery does not tell what it holds"


async def test_joules_of_the_radios_are_counted(host: Host) -> None:
    await host.budgets.set(Budget("energy", Resource.ENERGY, 100.0, "2026-11-21T18:00:00"))
    for _ in range(5):
        host.carry("lte0", 100_000)
        host.look()
    host.look(60.0)
    # Four seconds between five looks, and Delphi's tail.
    assert host.spent("energy") == pytest.approx(4 * 1.674 + 6.5, rel=0.01)


async def test_money_by_what_networks_cost(tmp_path: Path) -> None:
    config = Config(networks={"lte0": NetworkConfig(money_per_mb=0.02)})
    host = Host(tmp_path, config)
    await host.budgets.set(Budget("money", Resource.MONEY, 5.0, "2026-12-01T00:00:00"))
    host.carry("lte0", 50_000_000)
    host.look()
    assert host.spent("money") == pytest.approx(1.0)
    assert host.budgets.prices.money_s(1.0, 1.0) > 0.0


async def test_money_without_any_price_is_said(host: Host) -> None:
    await host.budgets.set(Budget("money", Resource.MONEY, 5.0, "2026-12-01T00:00:00"))
    assert any("money_per_mb" in problem for problem in host.budgets.problems)


async def test_a_day_that_begins_at_any_minute_counts_from_that_minute(host: Host) -> None:
    every_day = replace(DATA, until="2026-11-21T09:07:00", every=Every.DAY)
    await host.budgets.set(every_day)
    running = asyncio.create_task(host.budgets.run())
    try:
        for _ in range(10):  # a minute each
            host.carry("lte0", 60_000)
            host.look(60.0)
            await asyncio.sleep(1.1)  # the task looks once a second
    finally:
        running.cancel()
        await asyncio.wait([running])
    # It was ten past nine at the end, or nearly.
    begun_s = datetime(2026, 11, 21, 9, 7).timestamp()
    assert host.budgets.keepers["data"].period.begins_s == begun_s
    assert host.spent() == pytest.approx(1000 * (host.now_s - begun_s), abs=60_000)


async def test_units_are_bought_as_one_goes(tmp_path: Path) -> None:
    said = BudgetConfig(data="3MB", until="2026-12-01", every="month", unit="1MB", unit_money=2.0)
    host = Host(tmp_path, Config(budgets={"go": said}))
    assert host.budgets.keepers["go"].budget.supply == 1e6
    host.carry("lte0", 1_500_000)
    host.look()
    assert host.budgets.keepers["go"].budget.supply == 2e6
    (message,) = messages(host.budgets)
    assert message.units is not None
    assert (message.units.bought, message.units.most, message.units.money) == (2, 3, 2.0)
    # Another unit costs 2, each worth a minute.
    assert host.budgets.prices.data_s("lte0", 1e6, 10.0) == pytest.approx(120.0)
    assert host.budgets.prices.data_rate("lte0", 2e6, 10.0) == PROHIBITIVE


async def test_choices_teach_and_are_accounted_for(host: Host) -> None:
    await host.budgets.set(DATA)
    host.budgets.offered([("wlan0", 9.0, 1.0, 10**6), ("lte0", 1.0, 5.0, 10**6)], 1)
    host.budgets.offered([("wlan0", 9.0, 1.0, 10**6), ("lte0", 1.0, 5.0, 10**6)], 0)
    assert messages(host.budgets)[0].bought_s == pytest.approx(8.0)
    host.budgets.write()
    host.start()
    assert messages(host.budgets)[0].bought_s == pytest.approx(8.0)


async def test_configured_ones_are_taken_out_where_they_are(tmp_path: Path) -> None:
    config = Config(plan=PlanConfig(metered_bytes=10**9, reset_day=31))
    host = Host(tmp_path, config)
    assert host.budgets.source("plan") == "configuration"
    with pytest.raises(ConfigError, match="take it out there"):
        host.budgets.remove("plan")
    with pytest.raises(NotFoundError, match="no budget"):
        host.budgets.remove("pan")
    await host.budgets.set(DATA)
    host.budgets.remove("data")
    assert list(host.budgets.keepers) == ["plan"]


async def test_delphis_exponents_follow_the_same_plan(tmp_path: Path) -> None:
    config = Config(
        decision=DecisionConfig(objective="max-s-per-e", follow=True),
        plan=PlanConfig(metered_bytes=1_000_000),
    )
    host = Host(tmp_path, config)
    host.power.now = Battery(0.1, True, None, None)
    await host.budgets._read_battery()
    host.carry("lte0", 700_000, 50_000)
    host.look()
    objective = host.preferred[-1][0]
    assert isinstance(objective, MaxSPerE)
    assert (objective.beta, objective.gamma) == (2.0, pytest.approx(0.5))
    host.carry("lte0", 300_000)
    host.look()
    assert host.preferred[-1][0].gamma == 10.0


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (replace(DATA, supply=-1.0), "0 or more"),
        (replace(DATA, supply=float("nan")), "0 or more"),
        (replace(DATA, until="soon"), "no date"),
        (replace(DATA, until="2026-12-01T00:00:00+01:00"), "no zone"),
        (replace(DATA, until="9999-12-31T00:00:00"), "the year 9999 cannot be"),
        (replace(DATA, every=None, until="2026-11-01T00:00:00"), "has passed"),
        (replace(DATA, every=None, since="2026-12-02T00:00:00"), "before it begins"),
        (replace(DATA, battery=True), "only energy"),
    ],
)
async def test_what_cannot_be_a_budget_is_refused(host: Host, wrong: Budget, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        await host.budgets.set(wrong)
    assert not host.budgets.keepers


async def test_a_damaged_file_is_kept_said_and_the_daemon_goes_on(tmp_path: Path) -> None:
    (tmp_path / "budgets.json").write_text('[{"name": 3}]')
    (tmp_path / "pacing.json").write_text('{"data": {"learned": {"x": []}}, "supplies": 3}')
    with capture_logs() as logs:
        host = Host(tmp_path)
    aside = tmp_path / "budgets.json.aside-1"
    assert any(
        entry["log_level"] == "warning" and str(aside) in entry.get("why", "") for entry in logs
    )
    assert aside.read_text() == '[{"name": 3}]'
    assert any(str(aside) in problem for problem in host.budgets.problems)
    await host.budgets.set(DATA)
    host.look()
    host.start()  # the next daemon says it too, until somebody removes the file
    assert "data" in host.budgets.keepers
    assert any(str(aside) in problem for problem in host.budgets.problems)
    aside.unlink()
    assert not host.budgets.problems


async def test_a_file_that_cannot_even_be_kept_is_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "budgets.json"
    file.write_text("[")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(Path, "rename", refuse)
        host = Host(tmp_path)
        assert any("Read-only" in entry.get("why", "") for entry in logs)
        assert any("cannot be used" in problem for problem in host.budgets.problems)
        with pytest.raises(ConfigError, match="Read-only"):
            await host.budgets.set(DATA)
    assert file.read_text() == "["
    await host.budgets.set(DATA)  # once it can be
    assert (tmp_path / "budgets.json.aside-1").read_text() == "["


async def test_prices_that_hardly_move_wake_nobody(host: Host) -> None:
    await host.budgets.set(DATA)
    host.preferred.clear()
    for _ in range(20):
        host.look()
    assert not any(urgent for _, urgent in host.preferred)


@pytest.mark.parametrize("name", ["device", "cellular"])
def test_unknown_radios_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"pigeon.*(delphi|lte)"):
        radios_of(Config(energy=EnergyConfig(**{name: "pigeon"})))
