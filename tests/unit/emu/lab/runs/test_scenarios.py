"""Scenarios that cannot be meant are refused when they are read, with file and line."""

import math
import re
from pathlib import Path

import msgspec
import pytest

from cedos.errors import ConfigError
from emu.lab.runs import runs, scenario
from emu.repository import ROOT

LOAD = """
[[load]]
name = "small"
host = "198.51.100.2"
direction = "down"
min_bytes = 1000
max_bytes = 30_000
per_minute = 60.0
"""


def read(tmp_path: Path, text: str) -> scenario.Scenario:
    file = tmp_path / "s.toml"
    file.write_text(text)
    return scenario.read(file)


def test_a_setting_of_the_daemon_outside_its_section_is_named(tmp_path: Path) -> None:
    right = read(tmp_path, LOAD + '[policy.cedos.decision]\nobjective = "max-s"\n')
    assert right.policy == {"cedos": {"decision": {"objective": "max-s"}}}
    with pytest.raises(ConfigError, match=r"s\.toml:11: .*did you mean \[policy.cedos.decision\]"):
        read(tmp_path, LOAD + '\n[policy.cedos]\nobjective = "max-s"\n')
    with pytest.raises(ConfigError, match=r"\[policy.cedos-told\] holds sections of the daemon's"):
        read(tmp_path, LOAD + "[policy.cedos-told.decisions]\nx = 1\n")
    with pytest.raises(ConfigError, match=r"\[policy.cedos\] holds sections"):
        read(tmp_path, LOAD + "[policy.cedos]\ndecision = 3\n")


def test_a_policy_that_reads_no_settings_is_given_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[policy.wifi-first\]: this policy reads no settings"):
        read(tmp_path, LOAD + "[policy.wifi-first.decision]\nx = 1\n")


@pytest.mark.parametrize(
    ("line", "about"),
    [
        ("policies = []", "a list of one policy or more"),
        ("repeats = 0", "repeats must be a whole number from 1"),
        ("duration_s = -1.0", "duration_s must be a number from 0"),
        ("duration_s = nan", "duration_s"),
        ("duration_s = inf", "duration_s"),
        ("limit_s = 0", "limit_s"),
        ("start_s = -3", "start_s"),
        ("warm_up_s = nan", "warm_up_s"),
    ],
)
def test_a_run_that_cannot_be_is_refused(tmp_path: Path, line: str, about: str) -> None:
    with pytest.raises(ConfigError, match=f":1: .*{about}"):
        read(tmp_path, line + LOAD)


@pytest.mark.parametrize(
    ("key", "value", "about"),
    [
        ("host", '"203.0.113.7"', "198.51.100.1 to 198.51.100.9"),
        ("host", '"198.51.100.10"', "198.51.100.1 to 198.51.100.9"),
        ("min_bytes", "0", "min_bytes must be a whole number from 1"),
        ("max_bytes", "999", "max_bytes must not be below min_bytes"),
        ("per_minute", "-1.0", "per_minute"),
        ("per_minute", "inf", "per_minute"),
        ("per_minute", "60.0\nslot_s = nan", "slot_s"),
        ("per_minute", "60.0\nmptcp_share = 1.5", "mptcp_share must be a number from 0 to 1"),
    ],
)
def test_a_load_that_cannot_be_is_refused(tmp_path: Path, key: str, value: str, about: str) -> None:
    lines = [line for line in LOAD.splitlines() if not line.startswith(f"{key} =")]
    with pytest.raises(ConfigError, match=about):
        read(tmp_path, "\n".join([*lines, f"{key} = {value}"]))


def test_what_the_command_line_changes_is_held_to_the_same(tmp_path: Path) -> None:
    fine = read(tmp_path, LOAD)
    assert scenario.checked(fine) == fine
    with pytest.raises(ConfigError, match="duration_s"):
        scenario.checked(msgspec.structs.replace(fine, duration_s=math.nan))


def test_the_page_that_teaches_scenarios_is_right(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "replay.md").read_text()
    (taught,) = (
        each for each in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[[load]]" in each
    )
    found = read(tmp_path, taught)
    for struct in (scenario.Scenario, scenario.Load):
        missing = {field.name for field in msgspec.structs.fields(struct)}
        missing -= {"page", "video", "browser", "load"}
        assert {name for name in missing if not re.search(rf"\b{name}\b", taught)} == set()
    assert found.repeats == 3
    for struct in (scenario.PageLoad, scenario.VideoLoad, scenario.BrowserSettings):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.name}`" in page
    for schema in (
        runs.FLOWS,
        runs.DECISIONS,
        runs.PREDICTIONS,
        runs.RATES,
        runs.CAPACITY,
        runs.SWITCHES,
    ):
        for column in schema.names:
            assert f"`{column}`" in page, column
