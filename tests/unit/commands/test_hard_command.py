"""Hard budgets as people set and see them."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cedos.api.messages import DefaultMessage, NetworkMessage, StatusMessage
from cedos.commands import status
from cedos.config import load
from cedos.errors import ConfigError
from cedos.model import NetworkKind
from cedos.storage import budget_file


def test_it_is_set_and_shown(cedos: Any, control: Path, fake_daemon: Any) -> None:
    line = ("budget", "set", "data", "4GB", "--until", "2026-12-01", "--hard")
    done = cedos(*line)
    assert done.exit_code == 0
    assert fake_daemon.budgets["data"].hard
    assert "data, hard" in done.stdout
    assert "It is hard: once it is used up, programs are blocked" in cedos("explain").stdout
    cedos(*line[:-1])
    assert not fake_daemon.budgets["data"].hard  # soft unless somebody says otherwise
    shown = cedos("budget").stdout
    assert "data, hard" not in shown
    assert "Once it is used up, programs still get through; `--hard` makes it a wall." in shown


def test_without_a_daemon_it_counts_from_the_next_one_on(cedos: Any, tmp_path: Path) -> None:
    done = cedos("budget", "set", "money", "20", "--until", "2099-12-01", "--hard")
    assert done.exit_code == 0, done.stderr
    assert '"hard": true' in cedos("budget", "--json").stdout


@pytest.mark.parametrize("what", [("battery",), ("energy", "20kJ")])
def test_energy_cannot_be_hard(cedos: Any, control: Path, what: tuple[str, ...]) -> None:
    refused = cedos("budget", "set", *what, "--until", "18:00", "--hard")
    assert refused.exit_code != 0
    assert "cannot be hard: programs use energy" in refused.stderr
    assert "data and money can be" in refused.stderr


def test_what_is_spent_says_what_it_bars(budget_shown: Callable[..., str]) -> None:
    show = partial(budget_shown, spent=4.001e9, spent_up=True, hard=True)
    answer = show(barred=("lte0",))
    assert "used up: lte0 blocked" in answer
    assert "Programs are blocked on lte0 until then." in answer
    answer = show(unkept="iptables is not installed")
    assert "are blocked" not in answer
    assert "used up, but not enforced" in answer
    assert "Programs should be blocked, but cannot be: iptables is not installed." in answer
    lte = NetworkMessage(
        name="lte0",
        interface="lte0",
        kind=NetworkKind.CELLULAR,
        metered=True,
        up=True,
        barred="as the hard budget is spent",
    )
    shown = StatusMessage(
        version="1",
        pid=1,
        uptime_s=1.0,
        dry_run=False,
        objective="max-s",
        networks=[lte],
        default=DefaultMessage(network=None, reason="no network is usable"),
        flows=[],
        problems=[],
    )
    assert "lte0     lte0       cellular  blocked" in "\n".join(status.lines(shown))


def test_the_configuration_and_its_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "cedos.toml"
    file.write_text(
        '[budgets.phone]\ndata = "4GB"\nuntil = "2026-12-01"\nhard = true\n'
        "[plan]\nmetered_bytes = 5_000_000_000\nhard = true\n"
    )
    found = budget_file.configured(load(file), datetime(2026, 11, 21), file.parent)
    assert (found["phone"].hard, found["plan"].hard) == (True, True)
    for text, why in (
        (
            '[budgets.a]\nbattery = true\nuntil = "2026-12-01"\nhard = true\n',
            "data and money can be",
        ),
        (
            '[budgets.a]\nenergy = "4J"\nuntil = "2026-12-01"\nhard = true\n',
            "data and money can be",
        ),
        ("[plan]\nhard = true\n", "needs metered_bytes"),
        ('[budgets.a]\ndata = "4GB"\nuntil = "2026-12-01"\nhard = 1\n', "hard"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=why):
            load(file)


def test_a_file_that_somebody_wrote_is_checked_too(tmp_path: Path) -> None:
    file = tmp_path / "budgets.json"
    file.write_text(
        '[{"name": "e", "resource": "energy", "supply": 5, "until": "2026-12-01", "hard": true}]'
    )
    with pytest.raises(ConfigError, match="a budget of energy cannot be hard"):
        budget_file.read(file)
    # One of before there were hard ones is soft.
    file.write_text(
        '[{"name": "data", "resource": "data", "supply": 5, "until": "2026-12-01T00:00:00"}]'
    )
    assert not budget_file.read(file)["data"].hard
