"""`cedos budget` against a daemon on a real socket, and without one."""

import json
from datetime import datetime, timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.api.messages import DefaultMessage, NetworkMessage, StatusMessage
from cedos.budget_kinds import Resource
from cedos.commands import budget, status
from cedos.commands.console import render
from cedos.config import amounts, load
from cedos.errors import ConfigError, DaemonUnreachableError
from cedos.model import Every, NetworkKind
from cedos.storage import budget_file
from cedos.storage.usage import Usage

NOW = datetime(2026, 11, 21, 17, 30)
SET = ("budget", "set")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GB", 4e9), ("4 GB", 4e9), ("2.5GiB", 2.5 * 2**30), ("500MB", 5e8), ("500mb", 5e8),
        ("1500 B", 1500.0), ("4 B", 4.0), ("1000000", 1e6), ("4000000000", 4e9), ("0GB", 0.0),
    ],
)  # fmt: skip
def test_sizes(text, expected):
    assert amounts.size_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-4GB", "4XB", "1e9", "4GB/month", "9999999TB", "4J"])
def test_a_size_that_is_none_says_what_would_be_right(text):
    with pytest.raises(ValueError, match="4GB"):
        amounts.size_bytes(text)


@pytest.mark.parametrize("text", ["4", " 4 ", "1500", "2.5", "999999", "0"])
def test_a_number_without_a_unit_is_no_size_unless_it_is_plainly_of_bytes(text):
    right = f'"{text.strip()}GB", "{text.strip()}MB" or "{text.strip()} B"'
    with pytest.raises(ValueError, match=f"a size needs a unit: {right}"):
        amounts.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18:00", datetime(2026, 11, 21, 18)),
        ("17:30", datetime(2026, 11, 22, 17, 30)),
        ("9:05", datetime(2026, 11, 22, 9, 5)),
        ("2026-12-01", datetime(2026, 12, 1)),
        ("2026-12-01 08:00", datetime(2026, 12, 1, 8)),
        ("tomorrow 18:00", datetime(2026, 11, 22, 18)),
        ("Tomorrow", datetime(2026, 11, 22)),
        ("30d", NOW + timedelta(days=30)),
    ],
)
def test_ends(text, expected):
    assert amounts.parse_end(text, NOW) == expected


@given(st.text(max_size=12))
def test_any_other_end_is_refused_in_words(text):
    try:
        shown = str(amounts.parse_end(text, NOW))
    except ValueError as error:
        shown = str(error)
    assert (
        "is no time" in shown
        or "cannot be" in shown
        or "no zone" in shown
        or datetime.fromisoformat(shown) > datetime(1980, 1, 1)
    )


def test_setting_one(cedos, control, fake_daemon):
    done = cedos(
        *SET, "data", "4GB", "--until", "2026-12-01", "--every", "month", "--network", "lte0"
    )
    assert done.exit_code == 0
    assert fake_daemon.budgets["data"].networks == ("lte0",)
    assert fake_daemon.budgets["data"].every == "month"
    for word in (
        "data of lte0",
        "1 GB (25 %)",
        "4 GB",
        "300 ms per MB",
        "3.2 GB to 4.4 GB",
        "2 min",
    ):
        assert word in done.stdout, word


def test_a_price_and_a_supply_that_are_nothing_are_said_so(budget_message):
    assert render.worth(2e-6) == "under 1 ms"
    assert render.worth(0.3) == "300 ms"
    shown = "\n".join(
        budget.lines(
            [
                budget_message(forecast=1e6, s_per_unit=2.5e-12, bought_s=120.0),
                budget_message(
                    name="battery",
                    resource="energy",
                    supply=0.0,
                    battery=True,
                    suspended="battery charge unknown",
                ),
            ],
            0.0,
        )
    )
    assert "almost free" in shown
    assert "2 min" in shown
    assert "0 ms" not in shown
    assert " - " in shown.splitlines()[2]


def test_showing_and_removing(cedos, control, fake_daemon):
    assert "no budget; `cedos budget set" in cedos("budget").stdout
    cedos(*SET, "money", "20", "--until", "2026-12-01")
    (shown,) = json.loads(cedos("budget", "--json").stdout)
    assert (shown["resource"], shown["supply"]) == ("money", 20.0)
    assert "money: a unit of money is almost free" in cedos("explain").stdout
    assert cedos("budget", "remove", "money").exit_code == 0
    refused = cedos("budget", "remove", "money")
    assert refused.exit_code == 1
    assert "there is no budget money" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("data", "--until", "18:00"), "needs an amount"),
        (("data", "lots", "--until", "18:00"), '"4GB"'),
        (("data", "4", "--until", "18:00"), '"4GB", "4MB" or "4 B"'),
        (("data", "4GB", "--until", "someday"), '"18:00"'),
        (("battery", "5J", "--until", "18:00"), "omit AMOUNT"),
        (("energy", "5kJ", "--until", "18:00", "--network", "lte0"), "is for data"),
        (("data", "4GB"), "--until"),
        (("data", "4GB", "--until", "18:00", "--name", "a/b"), "letters and digits"),
        (("data", "4GB", "--until", "18:00", "--name", ""), "letters and digits"),
        (("data", "4GB", "--until", "18:00", "--name", "größe"), "letters and digits"),
        (("data", "4GB", "--until", "18:00", "--network", "a b"), "name of a network"),
        (("data", "4GB", "--until", "9999-12-31"), "the year 9999 cannot be; 1981 to 8999"),
        (("data", "4GB", "--until", "2027-01-01T08:00+01:00"), "has no zone"),
        (("data", "-1GB", "--until", "18:00"), "No such option"),
        (("data", "4GB", "--until", "18:00", "-x"), "No such option"),
        (("data", "0GB", "--until", "18:00"), 'more, such as "1MB"'),
        (("money", "0", "--until", "18:00"), "a supply of 0"),
    ],
)
@pytest.mark.parametrize("daemon", [True, False])
def test_wrong_usage_is_refused_with_a_daemon_and_without(
    cedos, request, folders, daemon, arguments, why
):
    if daemon:
        request.getfixturevalue("control")
    refused = cedos(*SET, *arguments)
    assert refused.exit_code == 2
    assert why in refused.stderr
    assert "regex" not in refused.stderr
    assert not (folders / "state" / budget_file.FILE).exists()


def test_a_network_that_is_not_there_is_said_and_accepted(cedos, control, fake_daemon):
    line = (*SET, "data", "4GB", "--until", "18:00", "--network")
    done = cedos(*line, "nosuch", "--network", "wlan0")
    assert done.exit_code == 0
    assert 'there is no network "nosuch" now (there are: wlan0)' in done.stderr
    assert fake_daemon.budgets["data"].networks == ("nosuch", "wlan0")
    assert "there is no network" not in cedos(*line, "wlan0").stderr


def test_a_budget_that_counts_nothing_warns_when_it_is_set(cedos, control, fake_daemon):
    fake_daemon.budget_problems = ['the budget "money" counts nothing: why', "another"]
    done = cedos(*SET, "money", "20", "--until", "2030-01-01")
    assert done.exit_code == 0
    assert done.stderr == 'Warning: the budget "money" counts nothing: why\n'


@pytest.mark.parametrize("name", ["", "a b", "a/b"])
def test_a_name_that_no_budget_has_is_not_found(cedos, control, name):
    refused = cedos("budget", "remove", name)
    assert refused.exit_code == 1
    assert f'no budget "{name}"' in refused.stderr


def test_without_a_daemon_it_is_kept_for_the_next_one(cedos, folders):
    done = cedos(*SET, "data", "4GB", "--until", "2099-12-01")
    assert done.exit_code == 0
    assert "none answers now" in done.stdout
    kept = budget_file.read(folders / "state" / budget_file.FILE)
    assert kept["data"].supply == 4e9
    assert kept["data"].since  # it counts from now, not from the daemon's start
    usage = Usage(folders / "state" / "usage.sqlite", "boot-1")
    usage.add("metered/lte0", 1e9)
    usage.write((datetime.now() + timedelta(minutes=1)).timestamp())
    usage.close()
    shown = cedos("budget")
    assert "1 GB (25 %)" in shown.stdout
    assert "No daemon answers" in shown.stdout
    changed = cedos(*SET, "data", "8GB", "--until", "2099-11-01")
    assert changed.exit_code == 0
    again = budget_file.read(folders / "state" / budget_file.FILE)["data"]
    assert (again.supply, again.since) == (8e9, kept["data"].since)
    assert cedos("budget", "remove", "data").exit_code == 0
    assert cedos("budget", "remove", "data").exit_code == 1


def test_who_may_not_write_the_file_is_told_who_may(cedos, folders, monkeypatch):
    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(budget_file.own_file, "write", forbidden)
    refused = cedos(*SET, "data", "1GB", "--until", "18:00")
    assert refused.exit_code == 3
    assert "only root sets and removes budgets" in refused.stderr


def test_an_end_that_has_passed_is_refused(cedos, folders):
    refused = cedos(*SET, "data", "4GB", "--until", "2025-01-01")
    assert refused.exit_code == 2
    assert "(2025-01-01 00:00) has passed: it limits nothing" in refused.stderr


def test_a_damaged_file_is_named_kept_and_begun_anew(cedos, folders):
    (folders / "state").mkdir()
    file = folders / "state" / budget_file.FILE
    file.write_text("{")
    refused = cedos("budget")
    assert refused.exit_code == 2
    assert "budgets.json cannot be used" in refused.stderr
    assert cedos("budget", "remove", "data").exit_code == 2
    assert file.read_text() == "{"  # looking changes nothing
    done = cedos(*SET, "data", "4GB", "--until", "2099-12-01")
    assert done.exit_code == 0
    assert "budgets.json.aside-1" in done.stderr
    assert (folders / "state" / "budgets.json.aside-1").read_text() == "{"
    shown = cedos("budget")
    assert "4 GB" in shown.stdout
    assert "budgets are not in force" in shown.stdout
    assert "aside-1" in cedos("budget", "--json").stderr
    file.write_text("[3]")
    assert "budgets.json.aside-2" in cedos(*SET, "data", "4GB", "--until", "2099-12-01").stderr
    assert (folders / "state" / "budgets.json.aside-1").read_text() == "{"


def test_what_a_person_sees_of_each_state(budget_shown):
    shown = partial(budget_shown, supply=1e9, spent=2e9, ends_unix_s=1e5)
    assert "2 GB (200 %)" in shown()
    assert "  used up" in shown(spent_up=True)
    assert "data: used up, 0 B of 1 GB left until 1970-01-02 " in shown(spent_up=True)
    nearly = shown(spent_up=True, spent=0.98e9)
    assert "  nearly used up" in nearly
    assert "data: nearly used up, 20 MB of 1 GB left until 1970-01-02 " in nearly
    assert "The rest is for connections that have no other network." in " ".join(nearly.split())
    assert "(over)" in shown(over=True)
    joules = shown(resource="energy", supply=20_000.0, spent=1234.0)
    assert "1.23 kJ (6 %)  20 kJ" in joules
    assert "18.8 kJ of 20 kJ" in shown(resource="energy", supply=2e4, spent=1234.0, spent_up=True)
    assert "20000" in shown(resource="money", supply=20_000.0)
    assert "e+" not in joules
    assert (render.cost(1234.4), render.cost(2.0**200)) == ("1234", "kept back by a budget")
    assert "on mains power" in shown(suspended="on mains power", battery=True, resource="energy")


def test_the_configuration_has_them_too(tmp_path):
    file = tmp_path / "cedos.toml"
    file.write_text(
        '[budgets.phone]\ndata = "4GB"\nuntil = "2026-12-01"\nevery = "month"\nnetworks = ["lte0"]\n'
        "hard = true\n"
        '[budgets.day]\nbattery = true\nuntil = "18:00"\nevery = "day"\n'
    )
    found = budget_file.configured_budgets(load(file), NOW, file.parent)
    assert found["phone"].every is Every.MONTH
    assert found["phone"].hard
    assert found["phone"].networks == ("lte0",)
    assert found["day"].battery
    assert found["phone"].resource is Resource.DATA


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('[budgets.a]\nuntil = "2026-12-01"\n', "one of data, energy, money or battery"),
        ('[budgets.a]\ndata = "4GB"\nmoney = 3.0\nuntil = "2026-12-01"\n', "data and money"),
        ('[budgets.a]\ndata = "4"\nuntil = "2026-12-01"\n', "a size needs a unit"),
        ('[budgets.a]\ndata = "x"\nuntil = "2026-12-01"\n', "4GB"),
        ('[budgets.a]\ndata = "4GB"\nuntil = "18:00"\n', 'every = "day"'),
        ('[budgets.a]\ndata = "0GB"\nuntil = "2026-12-01"\n', "forbid everything"),
        ('[budgets.a]\nmoney = 0.0\nuntil = "2026-12-01"\n', "forbid everything"),
        ('[budgets.a]\nmoney = -3.0\nuntil = "2026-12-01"\n', "money"),
        (
            '[budgets.a]\nbattery = true\nuntil = "2026-12-01"\nhard = true\n',
            "data and money can be",
        ),
        (
            '[budgets.a]\nenergy = "4J"\nuntil = "2026-12-01"\nhard = true\n',
            "data and money can be",
        ),
    ],
)
def test_a_wrong_configuration_is_refused_with_its_line(tmp_path, text, why):
    file = tmp_path / "cedos.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why) as refused:
        load(file)
    assert "cedos.toml:" in str(refused.value)


@pytest.mark.parametrize("starts", [True, False])
def test_a_daemon_that_is_just_starting_is_waited_for(
    cedos, control, fake_daemon, monkeypatch, starts
):
    """It has read the file of budgets: one that was only written there would not count."""
    answers, asked = budget.ControlClient.set_budget, []

    def starting(self, wanted):
        asked.append(wanted)
        if len(asked) < 3:
            raise DaemonUnreachableError("not yet")
        return answers(self, wanted)

    monkeypatch.setattr(budget.ControlClient, "set_budget", starting)
    monkeypatch.setattr(budget, "running_pid", lambda file: 4711 if starts else None)
    monkeypatch.setattr(budget, "_AGAIN_S", 0.01)
    done = cedos(*SET, "data", "4GB", "--until", "30d")
    assert done.exit_code == 0
    assert ("data" in fake_daemon.budgets) is starts
    assert ("once a daemon starts" in done.stdout) is not starts


def test_it_is_set_and_shown(cedos, control, fake_daemon):
    line = ("budget", "set", "data", "4GB", "--until", "2026-12-01", "--hard")
    done = cedos(*line)
    assert done.exit_code == 0
    assert fake_daemon.budgets["data"].hard
    assert "data, hard" in done.stdout
    assert "It is hard: once it is used up, programs are blocked" in cedos("explain").stdout
    cedos("budget", "set", "data", "5GB", "--until", "2026-12-01", "--every", "month")
    assert fake_daemon.budgets["data"].hard  # no --soft was given
    cedos(*line[:-1], "--soft")
    assert not fake_daemon.budgets["data"].hard
    shown = cedos("budget").stdout
    assert "data, hard" not in shown
    assert "Once it is used up, programs still get through; `--hard` makes it a wall." in shown


def test_without_a_daemon_it_counts_from_the_next_one_on(cedos, tmp_path):
    done = cedos("budget", "set", "money", "20", "--until", "2099-12-01", "--hard")
    assert done.exit_code == 0, done.stderr
    assert '"hard": true' in cedos("budget", "--json").stdout
    cedos("budget", "set", "money", "30", "--until", "2099-12-01")
    assert '"hard": true' in cedos("budget", "--json").stdout
    refused = cedos("budget", "set", "energy", "9kJ", "--until", "18:00", "--name", "money")
    assert refused.exit_code == 2
    assert 'the budget "money" is hard, and one of energy cannot be' in refused.stderr
    cedos("budget", "set", "money", "30", "--until", "2099-12-01", "--soft")
    assert '"hard": false' in cedos("budget", "--json").stdout


@pytest.mark.parametrize("what", [("battery",), ("energy", "20kJ")])
def test_energy_cannot_be_hard(cedos, control, what):
    refused = cedos("budget", "set", *what, "--until", "18:00", "--hard")
    assert refused.exit_code != 0
    assert "cannot be hard: programs use energy" in refused.stderr
    assert "data and money can be" in refused.stderr


def test_what_is_spent_says_what_it_bars(budget_shown):
    show = partial(budget_shown, spent=4.001e9, spent_up=True, hard=True)
    answer = show(barred=("lte0",))
    assert "used up: lte0 blocked" in answer
    assert "Programs are blocked on lte0 until then." in " ".join(answer.split())
    answer = show(unkept="iptables is not installed")
    assert "are blocked" not in answer
    assert "used up, but not enforced" in answer
    assert "Programs should be blocked, but cannot be: iptables is not installed." in " ".join(
        answer.split()
    )
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
    assert "lte0     cellular  blocked" in "\n".join(status.lines(shown))


@pytest.mark.parametrize("text", ["tomorrow", "30d", "friday 18:00", "today 18:00"])
def test_an_end_in_a_file_does_not_move_with_the_day_it_is_read(text):
    with pytest.raises(ValueError, match="is no time"):
        amounts.parse_end(text, NOW, kept=True)
    assert amounts.parse_end("18:00", NOW, kept=True) == datetime(2026, 11, 21, 18)
    assert amounts.parse_end("2026-12-01", NOW, kept=True) == datetime(2026, 12, 1)
