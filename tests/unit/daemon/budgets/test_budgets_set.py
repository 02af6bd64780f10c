"""Sources of budgets: the configuration, and the file of those that were set, whole or damaged."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cedos.budget_kinds import Resource
from cedos.config import BudgetConfig, Config, EnergyConfig
from cedos.daemon.budgets import used
from cedos.daemon.budgets.host_budgets import MOST
from cedos.daemon.budgets.metering import radios_of
from cedos.errors import ConfigError, NotFoundError
from cedos.kernel import own_file
from cedos.model import Budget, Every, PhoneUse
from cedos.selector.budgets.controller import PROHIBITIVE

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)


PLAN = BudgetConfig(data="1GB", until="2026-01-31", every=Every.MONTH)


async def test_configured_ones_are_taken_out_where_they_are(make_host):
    config = Config(budgets={"plan": PLAN})
    host = make_host(config)
    assert host.budgets.source("plan") == "configuration"
    with pytest.raises(ConfigError, match="take it out there"):
        await host.budgets.remove("plan")
    with pytest.raises(NotFoundError, match="no budget"):
        await host.budgets.remove("pan")
    await host.budgets.set(DATA)
    await host.budgets.remove("data")
    assert list(host.known.keepers) == ["plan"]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"supply": -1.0}, "more than 0"),
        ({"supply": float("nan")}, "more than 0"),
        ({"supply": 0.0}, "would forbid everything"),
        ({"until": "soon"}, "no date"),
        ({"until": "2026-12-01T00:00:00+01:00"}, "no zone"),
        ({"until": "9999-12-31T00:00:00"}, "the year 9999 cannot be"),
        ({"every": None, "since": "2026-12-02T00:00:00"}, "before it begins"),
        ({"battery": True}, "only energy"),
    ],
)
def test_what_cannot_be_a_budget_is_refused(wrong, why):
    with pytest.raises(ValueError, match=why):
        replace(DATA, **wrong)


async def test_nobody_fills_memory_or_disk_with_budgets(host, tmp_path):
    """Set and remove budgets: the daemon kept their learnt state and readings of counters for ever."""
    for number in range(MOST):
        await host.budgets.set(replace(DATA, name=f"b{number}"))
    host.budgets.write()
    for number in range(1, MOST):
        await host.budgets.remove(f"b{number}")
    host.budgets.write()
    assert msgspec.json.decode((tmp_path / "pacing.json").read_bytes()).keys() == {"b0"}
    with pytest.raises(ConfigError, match="set too often"):
        await host.budgets.set(DATA)
    for number in range(1, MOST):
        host.tick(61.0)
        await host.budgets.set(replace(DATA, name=f"b{number}"))
    host.tick(61.0)
    with pytest.raises(ConfigError, match=f"{MOST} budgets already"):
        await host.budgets.set(DATA)
    host.tick(61.0)
    await host.budgets.set(replace(DATA, name="b1", supply=2e9))


async def test_a_damaged_file_is_kept_said_and_the_daemon_goes_on(tmp_path, make_host):
    (tmp_path / "budgets.json").write_text('[{"name": 3}]')
    (tmp_path / "pacing.json").write_text(
        '{"data": {"learned": {"x": []}}, "batteries\' supplies": 3}'
    )
    with capture_logs() as logs:
        host = make_host()
    aside = tmp_path / "budgets.json.aside-1"
    assert any(
        entry["log_level"] == "warning" and str(aside) in entry.get("why", "") for entry in logs
    )
    assert aside.read_text() == '[{"name": 3}]'
    assert any(str(aside) in problem for problem in host.budgets.problems)
    await host.budgets.set(DATA)
    host.tick()
    host.start()  # the next daemon says it too, until somebody removes the file
    assert "data" in host.known.keepers
    assert any(str(aside) in problem for problem in host.budgets.problems)
    aside.unlink()
    assert not host.budgets.problems


async def test_a_file_that_cannot_even_be_kept_is_never_written_over(
    tmp_path, make_host, monkeypatch
):
    file = tmp_path / "budgets.json"
    file.write_text("[")

    def refuse(self, target):
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched, capture_logs() as logs:
        patched.setattr(Path, "rename", refuse)
        host = make_host()
        assert any("Read-only" in entry.get("why", "") for entry in logs)
        assert any("cannot be used" in problem for problem in host.budgets.problems)
        with pytest.raises(ConfigError, match="Read-only"):
            await host.budgets.set(DATA)
    assert file.read_text() == "["
    await host.budgets.set(DATA)  # once it can be
    assert (tmp_path / "budgets.json.aside-1").read_text() == "["


async def test_where_nothing_can_be_written_nothing_changes(host, monkeypatch):
    await host.budgets.set(DATA)
    with monkeypatch.context() as patched:
        patched.setattr("cedos.storage.budget_file.write", fails)
        with pytest.raises(ConfigError, match="No space left"):
            await host.budgets.set(replace(DATA, name="other"))
        with pytest.raises(ConfigError, match="No space left"):
            await host.budgets.remove("data")
    host.tick()
    assert list(host.known.keepers) == ["data"]


def fails(*_):
    raise ConfigError("No space left on device")


async def test_a_budget_of_a_day_that_becomes_one_of_a_month_is_priced_as_such(host):
    """999 MB of 1 GB were \"nearly used up\": a minute of use, reckoned as a day's, for 35 days."""
    day = Budget("data", Resource.DATA, 5e6, "2026-11-22T00:00:00", every=Every.DAY)
    await host.budgets.set(day)
    host.carry("lte0", 345_000)
    host.tick()
    host.offered(1000, 1)
    for name in ("data", "fresh"):
        await host.budgets.set(Budget(name, Resource.DATA, 1e9, "2026-12-27T00:00:00"))
    for _ in range(12):
        host.carry("lte0", 90_000)
        host.tick()
    changed, fresh = host.standings()
    assert changed.spent == 1_425_000
    assert changed.bought_s == pytest.approx(8.0, abs=0.1)
    assert changed.rate == fresh.rate
    assert changed.rate < 1e-9


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
    await host.budgets.prefer(PhoneUse.FREELY)
    assert price() == (0.0, 0.0)
    await host.budgets.prefer(PhoneUse.WITHOUT_WIFI)
    assert price() == pytest.approx((60.0, 1.0))
    host.start()  # another daemon
    assert price() == pytest.approx((60.0, 1.0))
    assert host.budgets.phone_source == "command"
    # A budget is no wish to use the phone beside Wi-Fi; it replaces the other prices.
    await host.budgets.set(Budget("data", Resource.DATA, 4e9, "2026-12-01T00:00:00"))
    assert price() == pytest.approx((60.0, 1.0))
    await host.budgets.prefer(None)
    assert price() == (0.0, 0.0)
    (host.state / "phone.json").write_text('"nonsense"')
    host.start()
    assert host.known.phone is PhoneUse.TO_SAVE_TIME


ONCE = Config(budgets={"trip": BudgetConfig(until="2026-12-24", data="1GB")})


def again(host, config):
    """Another daemon, or the same one with another configuration."""
    host.budgets.write()
    host.config = config
    host.start()


async def test_what_was_used_before_is_none_of_its(make_host):
    host = make_host()
    host.carry("lte0", 50_000_000_000)
    host.tick(7200.0)
    again(host, ONCE)
    assert host.spent("trip") == 0.0
    host.carry("lte0", 300_000_000)
    host.tick(3600.0)
    assert host.spent("trip") == pytest.approx(300e6, rel=1e-6)


async def test_its_price_is_that_of_one_that_was_set(make_host):
    """1,798,070 s a megabyte were asked once a hundredth was used: a period since 1970."""
    host = make_host(ONCE)
    await host.budgets.set(Budget("set", Resource.DATA, 1e9, "2026-12-24T00:00:00"))
    for number in range(400):
        if number % 8 == 0:
            host.carry("lte0", 3_000_000)
            host.offered(3_000_000, 1)
        host.tick(900.0)
    trip, other = host.standings()
    assert trip.rate == pytest.approx(other.rate, rel=0.01)
    assert trip.forecast.likely == pytest.approx(other.forecast.likely, rel=0.01)


async def test_a_restart_goes_on_and_another_end_too(make_host):
    host = make_host(ONCE)
    host.carry("lte0", 300_000_000)
    host.tick(3600.0)
    again(host, ONCE)
    assert host.spent("trip") == 300_000_000
    later = BudgetConfig(until="2026-12-31", data="2GB")
    again(host, Config(budgets={"trip": later}))
    assert host.spent("trip") == 300_000_000
    again(host, Config(budgets={"trip": BudgetConfig(until="2026-12-31", energy="20kJ")}))
    assert host.spent("trip") < 100.0  # of something else nothing was used


async def test_one_that_is_set_by_its_name_goes_on(make_host):
    host = make_host()
    host.carry("lte0", 400_000_000)
    host.tick(7200.0)
    again(host, ONCE)
    host.carry("lte0", 30_000_000)
    host.tick(3600.0)
    await host.budgets.set(Budget("trip", Resource.DATA, 8e9, "2026-12-24T00:00:00"))
    assert host.spent("trip") == pytest.approx(30e6, rel=1e-6)


async def test_one_that_has_ended_limits_nothing_and_says_so(make_host):
    """The configuration, the command and the program interface say it alike."""
    host = make_host(
        Config(
            budgets={
                "old": BudgetConfig(until="2020-01-01", data="1GB", hard=True),
                "dawn": BudgetConfig(until="2026-11-21 08:59", data="1GB"),
                "monthly": BudgetConfig(until="2020-01-01", data="1GB", every=Every.MONTH),
            }
        )
    )
    told = [line for line in host.budgets.problems if "has passed" in line]
    assert [line.split('"')[1] for line in told] == ["old", "dawn"]
    assert 'the budget "old" (2020-01-01 00:00) has passed: it limits nothing' in told[0]
    with pytest.raises(ConfigError, match="has passed: it limits nothing"):
        await host.budgets.set(Budget("set", Resource.DATA, 1e9, "2020-01-01T00:00:00"))
    await host.budgets.set(Budget("noon", Resource.DATA, 1e9, "2026-11-21T12:00:00"))
    host.tick(4 * 3600.0)
    assert any('"noon" (2026-11-21 12:00) has passed' in line for line in host.budgets.problems)


async def test_a_hard_one_stays_hard_unless_it_is_told_otherwise(make_host):
    host = make_host(
        Config(budgets={"trip": BudgetConfig(until="2026-12-24", data="1GB", hard=True)})
    )

    def hard():
        return host.known.keepers["trip"].budget.hard

    await host.budgets.set(Budget("trip", Resource.DATA, 2e9, "2026-12-24T00:00:00"))
    assert hard() is True  # of the configuration
    monthly = Budget("trip", Resource.DATA, 3e9, "2026-12-01T00:00:00", every=Every.MONTH)
    await host.budgets.set(monthly)
    assert hard() is True  # also where it recurs now
    with pytest.raises(ConfigError, match='"trip" is hard, and one of energy cannot be'):
        await host.budgets.set(Budget("trip", Resource.ENERGY, 3e9, "2026-12-24T00:00:00"))
    host.budgets.write()
    host.start()
    assert hard() is True
    await host.budgets.set(replace(monthly, hard=False))
    await host.budgets.set(monthly)
    assert hard() is False


@pytest.mark.parametrize("asked", ["phone", "set", "removed", "clock"])
async def test_no_request_has_the_host_wait_for_the_disk(host, monkeypatch, asked):
    """A member said what the phone is for: fail-over waited 4 s for a slow disk."""
    await host.budgets.set(DATA)
    await host.budgets.set(Budget("once", Resource.DATA, 1e9, "2026-12-01T00:00:00"))
    may, real, there = threading.Event(), own_file.write, threading.current_thread()

    def write(*given, **how):
        assert threading.current_thread() is not there
        may.wait(10)
        real(*given, **how)

    running = asyncio.create_task(host.budgets.run())
    await asyncio.sleep(0.1)
    monkeypatch.setattr(own_file, "write", write)
    if asked == "clock":
        host.now_s += 3600.0
        host.budgets.tick()
        request = asyncio.create_task(asyncio.sleep(0))
    else:
        request = asyncio.create_task(
            {
                "phone": lambda: host.budgets.prefer(PhoneUse.FREELY),
                "set": lambda: host.budgets.set(replace(DATA, name="more")),
                "removed": lambda: host.budgets.remove("data"),
            }[asked]()
        )
    await asyncio.sleep(0.1)
    assert request.done() == (asked == "clock")
    assert (host.known.phone is PhoneUse.FREELY) == (asked == "phone")
    may.set()
    await request
    monkeypatch.undo()
    running.cancel()
    await asyncio.wait({running})
    before = set(host.budgets.in_force)
    host.start()
    assert set(host.budgets.in_force) == before
    assert ("more" in before, "data" in before) == (asked == "set", asked != "removed")
    assert (host.known.phone is PhoneUse.FREELY) == (asked == "phone")
