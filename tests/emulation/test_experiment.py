"""A whole run, small: two policies on a synthetic place, and its folder."""

import json
from statistics import median

import pytest
from click.testing import CliRunner

from emu.commands.cedos_emu import group
from emu.places import synth
from emu.runs import runs


def test_a_run_folder_has_what_was_promised(tmp_path, registry):
    places = tmp_path / "places"
    places.mkdir()
    synth.generate("static", 2, 40, places)
    out = tmp_path / "run"
    arguments = [
        "run", "--places", str(places), "--duration", "5", "--start", "4", "--out", str(out),
    ]  # fmt: skip
    arguments += ["--policy", "cellular-only", "--policy", "mptcp-wifi"]
    result = CliRunner().invoke(group, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "synthetic" in result.output
    for name in ("config.toml", "environment.json", "flows.parquet", "decisions.parquet",
                 "summary.json", "report.html"):  # fmt: skip
        assert (out / name).exists(), name
    run = runs.read(out)
    assert run.environment["synthetic"] is True
    plain = [f for f in run.flows if f["policy"] == "cellular-only"]
    assert plain
    assert all(not flow["censored"] for flow in run.flows)
    # The testbed's own account of the carriers: all bytes where the policy sent them.
    assert {flow["network"] for flow in plain} == {"cellular"}
    assert all(flow["cellular_bytes"] >= flow["size_bytes"] for flow in plain)
    multipath = [f for f in run.flows if f["policy"] == "mptcp-wifi"]
    assert all(f["wifi_bytes"] + f["cellular_bytes"] >= f["size_bytes"] for f in multipath)
    # On a busy machine an answer may come so late that the second subflow carries all of a small one.
    assert any(f["wifi_bytes"] > 0 for f in multipath)
    large = [f for f in multipath if f["mptcp"] and f["size_bytes"] > 1_000_000]
    assert all(f["network"] == "both" for f in large)
    figures = json.loads((out / "summary.json").read_text())["policies"]
    assert figures["cellular-only"]["cellular_mb"] == pytest.approx(
        sum(f["size_bytes"] for f in plain) / 1e6, rel=0.15
    )
    assert figures["cellular-only"]["energy_j"] > 6.5  # at least one tail
    assert not [each for each in registry.iterdir() if each.is_dir()]


def test_cedos_is_a_policy_and_leaves_its_decisions(tmp_path, registry, monkeypatch):
    places = tmp_path / "places"
    places.mkdir()
    synth.generate("static", 2, 40, places)
    monkeypatch.chdir(tmp_path)  # a run folder is where the user says, relative paths included
    arguments = ["run", "--places", str(places), "--duration", "4", "--start", "6", "--out", "run"]
    result = CliRunner().invoke(group, [*arguments, "--policy", "cedos"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    run = runs.read(tmp_path / "run")
    assert run.flows
    assert all(not flow["censored"] for flow in run.flows)
    assert run.decisions
    # The first one is about new connections; it was taken before the load began.
    assert run.decisions[0]["at_s"] < 0
    assert all(row["reason"] for row in run.decisions)
    assert not [each for each in registry.iterdir() if each.is_dir()]
    # What the daemon says that its transfers took is what the client measured.
    shares = [
        predicted["took_s"] / flow["time_s"]
        for predicted in run.predictions
        for flow in run.flows
        if 0 <= predicted["size_bytes"] - flow["size_bytes"] < 400  # the answer's head
        and abs(flow["started_s"] + flow["time_s"] - predicted["ended_s"]) < 1.0
    ]
    assert len(shares) >= 3
    assert 0.85 < median(shares) < 1.2
