"""An experiment's parts: scenarios, its decisive window, what disturbed it, energy, the summary."""

import json
import re
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from cedos.errors import ConfigError, EmulationError
from cedos.model import Direction
from emu import ROOT
from emu.places.places import load
from emu.runs import experiment, runs, scenario
from emu.runs.browsing import Browsed
from emu.runs.experiment import _Result, disturbances
from emu.runs.scenario import Load, Scenario, decisive_s
from emu.runs.summary import PolicyRun, summarise
from emu.testbed.counters import CarriedBytes
from emu.workloads.mixed import Completed, PlannedTransfer


@pytest.mark.parametrize(
    ("censored", "moved", "received"),
    [
        (False, CarriedBytes(1_000_400, 0), 1_000_000),
        (True, CarriedBytes(200_000, 50_000), 250_000),
        (True, CarriedBytes(0, 0), 0),
    ],
)
def test_a_transfer_that_was_cut_received_what_its_connection_carried(censored, moved, received):
    planned = PlannedTransfer(0, "a", 0.0, "198.51.100.2", Direction.DOWN, 1_000_000, mptcp=True)
    done = Completed(planned, 5.0, 30.0, censored, "192.0.2.1", 5000, None)
    carried = {("192.0.2.1", 5000, "198.51.100.2"): moved}
    result = _Result(0.0, [done], carried, [], Browsed())
    assert result.received_bytes(done) == received


def test_a_policy_that_starts_late_gets_longer(tmp_path, monkeypatch):
    late = experiment._StartedLateError("slow took longer than warm_up_s = 4 to start")
    warm_ups_s = []

    def run_policy(name, repeat, plan, wanted, of, *_):
        folder = tmp_path / f"{name}-{repeat}"
        folder.mkdir()  # fails where the first try left its logs
        warm_ups_s.append(of.warm_up_s)
        if len(warm_ups_s) == 1 or name == "always-late":
            raise late
        return "result"

    monkeypatch.setattr(experiment, "_run_policy", run_policy)
    wanted = Scenario(load=(Load("a", "198.51.100.2", "down", 1, 2, per_minute=1.0),))
    folder = SimpleNamespace(logs=tmp_path)

    def run(name):
        nothing = None
        return experiment._run_ready_policy(name, 0, [], nothing, wanted, nothing, folder)

    assert run("slow") == "result"
    assert warm_ups_s == [4.0, 12.0]
    with pytest.raises(EmulationError, match="took longer"):
        run("always-late")
    assert warm_ups_s[2:] == [4.0, 12.0, 36.0]


LOAD = """
[[load]]
name = "small"
host = "198.51.100.2"
direction = "down"
min_bytes = 1000
max_bytes = 30_000
per_minute = 60.0
"""


def read(tmp_path, text):
    file = tmp_path / "s.toml"
    file.write_text(text)
    return scenario.read(file)


@pytest.mark.parametrize(
    ("section", "setting", "why"),
    [
        ("energy", 'file = "/dev/zero"', r"energy\] file: a scenario names no file"),
        ("predictors", 'model = "/dev/zero"', "names no file of this host; --predictors does"),
        ("providers", 'series = {wlan0 = "/dev/zero"}', "series: a scenario names no file"),
    ],
)
def test_a_strangers_scenario_names_no_file(tmp_path, section, setting, why):
    """Name a file in a scenario, for root's daemon to read."""
    for policy in ("cedos", "cedos-told", "cedos-gateway"):
        with pytest.raises(ConfigError, match=why):
            read(tmp_path, f"{LOAD}[policy.{policy}.{section}]\n{setting}\n")


@pytest.mark.parametrize(
    "name", ["x/../../../etc/cron.d/x", "..", "", "$\\\\frac{a}{b$", "W" * 1000]
)
def test_a_scenarios_name_leads_nowhere(tmp_path, name):
    """A run's folder was made outside `runs`, wherever the scenario said."""
    with pytest.raises(ConfigError, match="a short name of letters, digits"):
        read(tmp_path, f'name = "{name}"\n{LOAD}')


@pytest.mark.parametrize("name", ["$(id > /root/owned)", "a\nb", "../x", "", "W" * 1000])
@pytest.mark.parametrize("kind", ["load", "page", "video"])
def test_a_loads_name_is_plain_words(tmp_path, kind, name):
    """A load's name is free text in a file that root writes: a stranger had a shell read it."""
    text = LOAD.replace('"small"', json.dumps(name)) if kind == "load" else None
    with pytest.raises(
        ConfigError, match=r"s\.toml:\d+: .*name must be a short name of letters, dig"
    ):
        read(tmp_path, text or f"[[{kind}]]\nname = {json.dumps(name)}\n")


def test_a_setting_of_the_daemon_outside_its_section_is_named(tmp_path):
    right = read(tmp_path, LOAD + '[policy.cedos.decision]\nobjective = "max-s"\n')
    assert right.policy == {"cedos": {"decision": {"objective": "max-s"}}}
    with pytest.raises(ConfigError, match=r"s\.toml:11: .*did you mean \[policy.cedos.decision\]"):
        read(tmp_path, LOAD + '\n[policy.cedos]\nobjective = "max-s"\n')
    with pytest.raises(ConfigError, match=r"\[policy.cedos-told\] holds sections of the daemon's"):
        read(tmp_path, LOAD + "[policy.cedos-told.decisions]\nx = 1\n")
    with pytest.raises(ConfigError, match=r"\[policy.cedos\] holds sections"):
        read(tmp_path, LOAD + "[policy.cedos]\ndecision = 3\n")


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
def test_a_run_that_cannot_be_is_refused(tmp_path, line, about):
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
def test_a_load_that_cannot_be_is_refused(tmp_path, key, value, about):
    lines = [line for line in LOAD.splitlines() if not line.startswith(f"{key} =")]
    with pytest.raises(ConfigError, match=about):
        read(tmp_path, "\n".join([*lines, f"{key} = {value}"]))


def test_the_page_that_teaches_scenarios_is_right(tmp_path):
    page = (ROOT / "docs" / "replay.md").read_text()
    (taught,) = (
        each for each in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "[[load]]" in each
    )
    found = read(tmp_path, taught)
    for struct in (scenario.Scenario, scenario.Load):
        missing = {field.name for field in msgspec.structs.fields(struct)}
        missing -= {"page", "video", "load"}
        assert {name for name in missing if not re.search(rf"\b{name}\b", taught)} == set()
    assert found.repeats == 3
    for struct in (scenario.PageLoad, scenario.VideoLoad):
        for field in msgspec.structs.fields(struct):
            assert f"`{field.name}`" in page
    for table in ("flows", "decisions", "predictions", "rates", "capacity", "switches"):
        for column in runs.TABLES[table].names:
            assert f"`{column}`" in page, column


def test_short_tcp_memory_and_late_transfers_are_said_with_their_numbers():
    memory, late = disturbances(most_pages=300_000, free_pages=280_000, latest_s=1.26)
    assert "300000 pages" in memory
    assert "280000" in memory
    assert "1.3 s late" in late


def run(times, energy=None):
    return PolicyRun(
        time_s=np.array(times),
        size_bytes=np.full(len(times), 125_000.0),
        censored=np.array([t >= 30 for t in times]),
        energy_j=energy or [5.0],
        cellular_bytes=[2e6],
    )


def test_figures_by_hand():
    summary = summarise({"a": run([1.0, 2.0, 4.0, 30.0]), "b": run([2.0, 2.1, 2.0, 15.0])})
    a = summary["policies"]["a"]
    assert a["n"] == 4
    assert a["censored"] == 1
    assert a["median_s"] == 3.0
    assert a["mean_s"] == 37 / 4
    assert a["mean_mbps"] == pytest.approx(4 / 37)  # 4 Mbit in 37 s
    assert a["oracle_match"] == 0.5  # 1.0 and 2.0 are the best; 4.0 and 30.0 are twice theirs
    assert a["regret_mean"] == pytest.approx((0 + 0 + 1 + 1) / 4)
    b = summary["policies"]["b"]
    assert b["oracle_match"] == 0.75  # 2.1 is within a tenth of 2.0
    assert b["cellular_mb"] == 2.0


def test_intervals_hold_the_figure_and_need_repeats_for_energy():
    draw = np.random.default_rng(3)
    times = list(draw.lognormal(0, 1, 200))
    figures = summarise({"a": run(times), "b": run(times, [4.0, 6.0])})["policies"]
    for key in ("median_s", "p95_s", "mean_s", "mean_mbps"):
        low, high = figures["a"][f"{key}_ci95"]
        assert low < figures["a"][key] < high
    assert "energy_j_ci95" not in figures["a"]
    assert figures["b"]["energy_j_ci95"] == [4.0, 6.0]


def test_a_run_is_as_long_as_told_for_traces_repeat(tmp_path):
    for kind, text in (("wifi", "1\n"), ("cellular", "4\n8\n12000\n")):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "x.trace").write_text(text)
    (tmp_path / "places.csv").write_text("place,wifi,cellular\nx,x,x\n")
    places = load(tmp_path)

    def resolved(**told):
        found = experiment.resolve(
            Scenario(page=(scenario.PageLoad("pages", sites=2),), **told), places
        )
        return found.start_s, found.duration_s

    assert resolved() == (0.0, 12.0)
    assert resolved(start_s=5.0) == (5.0, 7.0)
    assert resolved(duration_s=30.0) == (0.0, 30.0)
    assert resolved(start_s=100.0, duration_s=30.0) == (100.0, 30.0)
    with pytest.raises(ConfigError, match="x is 12 s long; with a duration_s its traces repeat"):
        resolved(start_s=12.0)
    assert decisive_s(places["x"], 30.0) == 0.0
