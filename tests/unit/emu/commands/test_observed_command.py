from ipaddress import ip_address

import pytest
from click.testing import CliRunner

from cedos.model import Direction, FlowKey, FlowRecord, Prediction, Subflow
from cedos.storage.history import History
from emu.commands.observed import command
from emu.data import datasets

KEY = FlowKey(ip_address("192.0.2.2"), 40_000, ip_address("198.51.100.7"), 80)
EXPECTED = {"wifi": (0.1, 0.2, 0.4, 0.2)}


def flow(took_s):
    prediction = Prediction(
        *("wifi", "wlan0", Direction.DOWN, 3000, took_s, 2.0, EXPECTED),
        columns={"size_bytes": 3000.0, "wifi_rtt_s": 0.02, "wifi_rate_age_s": 2.0},
        lengthened=2.0,
    )
    subflows = (Subflow(KEY, "wlan0", 3000, 100),)
    return FlowRecord(subflows, None, 100.0, 100.0 + took_s, prediction=prediction)


@pytest.fixture
def history(tmp_path):
    path = tmp_path / "history.sqlite"
    kept = History(path)
    for took_s in (0.2, 0.4):
        kept.add_flow(flow(took_s))
    kept.close()
    return path


def test_a_hosts_own_history_becomes_a_data_set(history, tmp_path):
    before = history.read_bytes()
    done = CliRunner().invoke(command, [str(history), "--out", str(tmp_path / "mine.parquet")])
    assert done.exit_code == 0, done.output
    assert "2 transfers" in done.output
    data = datasets.read(tmp_path / "mine.parquet")
    assert sorted(data.times_s["wifi"].tolist()) == [0.1, 0.2]
    assert data.columns["wifi_rate_age_s"].tolist() == [2.0, 2.0]
    assert history.read_bytes() == before


def test_what_is_no_history_is_named_and_stays_as_it_was(tmp_path):
    for name, content in (("a", b"no history"), ("b", b"SQLite format 3\0" + bytes(100))):
        file = tmp_path / name
        file.write_bytes(content)
        done = CliRunner().invoke(command, [str(file), "--out", str(tmp_path / "x.parquet")])
        assert done.exit_code != 0
        assert str(file) in str(done.exception)
        assert file.read_bytes() == content
