"""The collection of data: a row that is really measured, and a collection that goes on after an end."""

import json
import subprocess
import sys

import pytest
from kit.waiting import wait_until

from cedos.model import Direction
from emu.data import datasets
from emu.data.collect import STRATEGIES, MeasuringLaptop, Row
from emu.places import synth
from emu.places.places import load

ROW = Row("static-s1", 5.0, 30_000, Direction.DOWN, 0.020, 0.060)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("places")
    synth.generate("static", 1, 40, directory)
    return directory


def test_all_strategies_are_measured_from_one_instant(directory):
    with MeasuringLaptop(directory) as bench:
        entry = bench.measure(ROW)
        upload = bench.measure(Row("static-s1", 5.0, 30_000, Direction.UP, 0.020, 0.060))
    assert upload is not None
    assert entry["wifi_rtt_min_s"] == pytest.approx(0.0215, abs=0.006)
    assert entry["cellular_rtt_min_s"] == pytest.approx(0.0615, abs=0.006)
    for measured in (entry, upload):
        for name in STRATEGIES:
            assert not measured[f"censored_{name}"]
        # Nothing is quicker than a handshake and a round trip of the network that starts.
        assert measured["t_wifi_s"] >= 2 * 0.020
        assert measured["t_mptcp_wifi_s"] >= 2 * 0.020
        assert measured["t_cellular_s"] >= 2 * 0.060
        assert measured["t_mptcp_cellular_s"] >= 2 * 0.060
    place = load(directory)["static-s1"]
    assert entry["wifi_past5_bps"] == pytest.approx(place.wifi.down.rate_bps(0, 5), abs=1)


def test_an_interrupted_collection_leaves_nothing_behind_and_goes_on(directory, tmp_path, registry):
    out = tmp_path / "mine.parquet"
    command = [
        sys.executable, "-m", "emu", "collect", "--places", str(directory), "--out", str(out),
    ]  # fmt: skip
    command += ["--starts", "1", "--size", "3000:down", "--size", "3000:up", "--jobs", "1"]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    partial = tmp_path / "mine.parquet.partial"
    wait_until(lambda: partial.exists() and partial.read_text().count("\n"), 60)
    first.send_signal(2)  # Ctrl-C
    output, _ = first.communicate(timeout=30)
    assert first.returncode not in (0, -2), output
    assert not [each for each in registry.iterdir() if each.is_dir()]
    done = [json.loads(line)["key"] for line in partial.read_text().splitlines()]
    assert len(done) == 1
    subprocess.run(command, check=True, capture_output=True, timeout=90)
    assert not partial.exists()
    assert len(datasets.read(out)) == 2
