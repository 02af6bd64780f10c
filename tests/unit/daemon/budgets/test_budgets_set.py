"""Sources of budgets: the configuration, and the file of those that were set, whole or damaged."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from cedos.budget_kinds import Resource
from cedos.config import Config, PlanConfig
from cedos.daemon.budgets.host_budgets import MOST
from cedos.errors import ConfigError, NotFoundError
from cedos.model import Budget, Every

DATA = Budget("data", Resource.DATA, 1e9, "2026-12-01T00:00:00", every=Every.MONTH)


async def test_configured_ones_are_taken_out_where_they_are(make_host):
    config = Config(plan=PlanConfig(metered_bytes=10**9, reset_day=31))
    host = make_host(config)
    assert host.budgets.source("plan") == "configuration"
    with pytest.raises(ConfigError, match="take it out there"):
        host.budgets.remove("plan")
    with pytest.raises(NotFoundError, match="no budget"):
        host.budgets.remove("pan")
    await host.budgets.set(DATA)
    host.budgets.remove("data")
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
        host.budgets.remove(f"b{number}")
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
            host.budgets.remove("data")
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
