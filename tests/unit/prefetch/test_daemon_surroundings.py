"""What the prefetcher learns from a daemon: its networks, and the prices of its budgets."""

from pathlib import Path

import pytest

from cedos.api.budgets import BudgetMessage
from cedos.errors import ConfigError, DaemonUnreachableError
from cedos.model import NetworkKind
from cedos.prefetch.daemon import DaemonSurroundings, prices_of
from cedos.selector.budget import PROHIBITIVE

pytestmark = pytest.mark.anyio


def budget(resource: str = "data", **said: object) -> BudgetMessage:
    known = {
        "supply": 1e9,
        "spent": 4e8,
        "begins_unix_s": 0.0,
        "ends_unix_s": 1e9,
        "s_per_unit": 1e-7,
    }
    return BudgetMessage(name="x", resource=resource, **{**known, **said})  # type: ignore[arg-type]


async def test_networks_come_from_the_daemon(control: Path) -> None:
    view = await DaemonSurroundings(control).look()
    assert [(one.name, one.kind, one.up) for one in view.networks] == [
        ("wlan0", NetworkKind.WIFI, True)
    ]
    assert view.networks[0].rtt_s == 0.02


async def test_without_a_daemon_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnreachableError):
        await DaemonSurroundings(tmp_path / "none.sock").look()


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ConfigError, match="nokia"):
        DaemonSurroundings(Path("x"), device="nokia")


def test_prices_hold_for_metered_networks_as_far_as_the_budget_goes() -> None:
    said = prices_of([budget()], ["lte0"])
    assert said.data_rate("lte0", 1e6) == pytest.approx(1e-7)
    assert said.data_rate("wlan0", 1e6) == 0.0
    # 5 % of what is left and 1 % of all are kept for the unforeseen.
    assert said.data_rate("lte0", 5.5e8) == pytest.approx(1e-7)
    assert said.data_rate("lte0", 5.7e8) >= PROHIBITIVE


def test_a_budget_that_is_spent_forbids_and_one_without_a_price_does_not() -> None:
    assert (
        prices_of([budget(spent_up=True, s_per_unit=None)], ["lte0"]).data_rate("lte0")
        >= PROHIBITIVE
    )
    assert (
        prices_of([budget(s_per_unit=None, suspended="charging")], ["lte0"]).data_rate("lte0")
        == 0.0
    )
    assert prices_of([budget("energy", s_per_unit=0.2)], []).energy_rate() == pytest.approx(0.2)
    assert prices_of([budget(networks=("wlan0",))], ["lte0"]).data_rate("wlan0") > 0.0
