"""Tests."""

import errno

import msgspec
import numpy as np
import pytest

from cedos.errors import ConfigError, DataSetError
from cedos.model import Direction
from emu.runs import page as report_page
from emu.runs import runs, scenario
from emu.runs.summary import PolicyRun, summarise

LOAD = scenario.Load("small", "198.51.100.2", Direction.DOWN, 1000, 30_000, 60.0)
SCENARIO = scenario.Scenario(
    load=(LOAD,), name="try", place="p", duration_s=4.0, policies=("wifi-first", "cedos")
)


def write(directory, *, synthetic=False):
    folder = runs.RunFolder.create(
        directory, SCENARIO, {"seed": 1, "duration_s": 4.0, "synthetic": synthetic}
    )
    flow = {"repeat": 0, "number": 0, "name": "small", "host": LOAD.host, "direction": "down",
            "size_bytes": 5000, "mptcp": False, "planned_s": 0.5, "started_s": 0.5, "time_s": 1.2,
            "censored": False, "local_ip": "192.168.43.2", "local_port": 4000,
            "wifi_bytes": 5000, "cellular_bytes": 0}  # fmt: skip
    folder.write_table(
        "flows",
        [{**flow, "policy": "wifi-first", "network": "wifi"},
         {**flow, "policy": "cedos", "network": "both"}],
    )  # fmt: skip
    folder.write_table("decisions", [])
    folder.write_table(
        "rates",
        [{"policy": "cedos", "repeat": 0, "at_s": at, "interface": "lte0",
          "received_bytes": int(at * 1e5), "sent_bytes": 0} for at in (0.0, 1.0, 2.0, 3.0)],
    )  # fmt: skip
    folder.write_table(
        "capacity",
        [{"network": name, "at_s": float(at), "rate_bps": 8e6}
         for name in ("wifi", "cellular") for at in range(5)],
    )  # fmt: skip
    folder.write_table(
        "switches",
        [{"policy": "cedos", "repeat": 0, "at_s": 1.0, "what": "default", "to": "cellular"}],
    )
    folder.write_table(
        "predictions",
        [{"policy": "cedos", "repeat": 0, "ended_s": 1.7, "strategy": "wifi", "network": "wifi",
          "alone": True, "direction": "down", "size_bytes": 5000, "rate_age_s": 2.0, "low_s": 0.1,
          "median_s": 0.8, "high_s": 2.0, "mean_s": 1.0, "took_s": 1.2,
          "by_strategy": {"wifi": 0.8, "cellular": 1.1}, "columns": {"wifi_past1_bps": 1e7}}],
    )  # fmt: skip
    results = {
        name: PolicyRun(np.array([1.2]), np.array([5000.0]), np.array([False]), [3.0], [1e6])
        for name in SCENARIO.policies
    }
    folder.write_json("summary.json", summarise(results))
    return folder


def test_a_run_reads_back_as_it_was_written(tmp_path):
    write(tmp_path / "run")
    read = runs.read(tmp_path / "run")
    assert read.scenario == SCENARIO
    assert read.policies == ["wifi-first", "cedos"]
    assert [flow["network"] for flow in read.flows] == ["wifi", "both"]
    assert read.decisions == []
    (predicted,) = read.predictions
    assert dict(predicted["by_strategy"]) == {"wifi": 0.8, "cellular": 1.1}
    assert read.title == "try: place p, seed 1"


def test_the_page_and_the_picture_show_every_policy(tmp_path):
    write(tmp_path / "run")
    page = report_page.write([tmp_path / "run"]).read_text()
    for title in ("Linux as it is", "cedos"):
        assert f"<td>{title}</td>" in page
    assert page.count("src='data:image/svg+xml;base64,") == 1
    assert ".svg'" not in page, "the page holds its pictures"
    assert (tmp_path / "run" / "timeline-0.svg").stat().st_size > 10_000
    figure = report_page.draw_timeline(runs.read(tmp_path / "run"))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert any(title.startswith("cedos:") for title in titles)
    assert figure.axes[2].lines  # what cedos carried is drawn


@pytest.mark.usefixtures("no_pictures")
def test_without_room_for_its_page_a_run_is_not_finished(tmp_path, monkeypatch):
    write(tmp_path / "run")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure.savefig", full)
        with pytest.raises(DataSetError, match=r"not drawn: No space left .*cedos-emu report"):
            report_page.write([tmp_path / "run"])
    assert not (tmp_path / "run" / "report.html").exists()
    with pytest.raises(DataSetError, match="holds a run without its page"):
        runs.refuse_finished(tmp_path / "run", paged=True)
    report_page.write([tmp_path / "run"])
    with pytest.raises(DataSetError, match="holds a finished run"):
        runs.refuse_finished(tmp_path / "run", paged=True)


def test_an_earlier_run_is_replaced_and_anything_else_is_not(tmp_path):
    write(tmp_path / "run")
    write(tmp_path / "run")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(DataSetError, match="no run folder"):
        write(mine)
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_scenarios_name_what_is_wrong(tmp_path):
    file = tmp_path / "s.toml"
    file.write_bytes(msgspec.toml.encode(SCENARIO))
    assert scenario.read(file) == SCENARIO
    file.write_text('name = "x"\nplaces = "y"\nload = []\n')
    with pytest.raises(ConfigError, match="places"):
        scenario.read(file)
    file.write_text("load = 3")
    with pytest.raises(ConfigError, match="load"):
        scenario.read(file)
    file.write_text('[[load]]\nname = "a"\nhos = "x"\n')
    with pytest.raises(ConfigError, match=r":3: unknown setting hos in .*did you mean host\?"):
        scenario.read(file)
    with pytest.raises(ConfigError, match="no scenario"):
        scenario.read(tmp_path / "none.toml")
