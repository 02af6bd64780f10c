"""Tests."""

import json
import tracemalloc
from math import isnan
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from kit.models import shipped

from cedos.errors import DataSetError
from cedos.storage import model_files
from emu import ROOT
from emu.commands.evaluate import command
from emu.data import datasets

HEAD = "place,group,start_s,size_bytes,direction,t_wifi_s,censored_wifi,t_cellular_s,wifi_rtt_s"
GOOD = f"{HEAD}\na-1,a,0.5,3000,down,0.2,0,0.4,0.02\na-2,,1,30000,up,30,1,,\n"


def csv(tmp_path, text):
    path = tmp_path / "data.csv"
    path.write_text(text)
    return path


def test_a_csv_becomes_typed_columns(tmp_path):
    data = datasets.read(csv(tmp_path, GOOD))
    assert len(data) == 2
    assert data.texts["group"].tolist() == ["a", "a-2"], "a place without a group is its own"
    assert data.strategies == ("wifi", "cellular")
    assert data.times_s["wifi"].tolist() == [0.2, 30.0]
    assert data.censored["wifi"].tolist() == [False, True]
    assert data.censored["cellular"].tolist() == [False, False]
    assert data.numbers["direction_up"].tolist() == [0.0, 1.0]
    assert isnan(data.times_s["cellular"][1])
    assert set(data.columns) == {"size_bytes", "direction_up", "wifi_rtt_s"}
    assert data.numbers["wifi_rtt_s"].dtype == np.float64


@pytest.mark.parametrize("name", ["again.csv", "again.parquet"])
def test_what_is_written_is_read_again(tmp_path, name):
    rows = datasets.read(csv(tmp_path, GOOD)).to_rows()
    datasets.write(tmp_path / name, rows)
    assert datasets.read(tmp_path / name).to_rows() == rows
    assert rows[1] == {
        "place": "a-2", "group": "a-2", "start_s": 1.0, "size_bytes": 30000.0, "direction": "up",
        "t_wifi_s": 30.0, "censored_wifi": 1.0,
    }  # fmt: skip


def test_what_collect_hands_over_is_written_in_designs_order(tmp_path):
    row = {
        "speed_mps": 1.5, "mood": "calm", "t_wifi_s": 0.25, "censored_wifi": False,
        "direction": "down", "size_bytes": 3000, "place": "p",
    }  # fmt: skip
    datasets.write(tmp_path / "a.csv", [row, {**row, "speed_mps": float("nan")}])
    lines = (tmp_path / "a.csv").read_text().splitlines()
    assert lines[0] == "place,size_bytes,direction,t_wifi_s,censored_wifi,speed_mps,mood"
    assert lines[1:] == ["p,3000,down,0.25,0,1.5,calm", "p,3000,down,0.25,0,,calm"]
    assert datasets.read(tmp_path / "a.csv").ignored == ("mood",)


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("0.2,0,0.4", "fast,0,0.4", "row 1, column t_wifi_s: 'fast' is no number"),
        ("30,1,,", "0,1,,", "row 2, column t_wifi_s: 0 must be more than 0"),
        ("30,1,,", "-3,1,,", "row 2, column t_wifi_s: -3 must be more than 0"),
        ("30,1,,", "inf,1,,", "row 2, column t_wifi_s: inf is infinite"),
        ("30,1,,", "30,2,,", "row 2, column censored_wifi: 2 must be 0 or 1"),
        ("3000,down", "3000,left", "row 1, column direction: 'left' is neither down nor up"),
        ("3000,down", ",down", "row 1, column size_bytes: it is empty"),
        ("3000,down", "0,down", "row 1, column size_bytes: 0 must be more than 0"),
        ("0.4,0.02", "0.4,-1", "row 1, column wifi_rtt_s: -1 must not be negative"),
        ("0.4,0.02", "0.4", "row 1 has 8 values for 9 columns"),
        ("wifi_rtt_s", "wifi_ping_loss", None),
        ("0.02\n", "7\n", None),
        (",direction", ",way", "column direction is missing"),
        (HEAD, HEAD.replace("wifi_rtt_s", "place"), "a column appears twice"),
        ("t_wifi_s", "t_fibre_s", None),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path, old, new, where):
    assert old in GOOD
    path = csv(tmp_path, GOOD.replace(old, new, 1))
    if where is None:
        datasets.read(path)
        return
    with pytest.raises(DataSetError) as refused:
        datasets.read(path)
    assert str(path) in str(refused.value)
    assert where in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PAR1 and nothing else",
        b"\xff\xfe\x00",
        HEAD.encode(),
        b"place,size_bytes,direction\n",
    ],
)
def test_files_that_are_no_data_set_are_refused(tmp_path, content):
    path = tmp_path / "wrong"
    path.write_bytes(content)
    with pytest.raises(DataSetError, match="wrong"):
        datasets.read(path)


def _table(rows, **more):
    columns = {"place": pa.array(["a"] * rows), "direction": pa.array(["up"] * rows)}
    numbers = {name: pa.array([1.0] * rows) for name in ("size_bytes", "t_wifi_s")}
    return pa.table({**columns, **numbers, **more})


def test_a_small_file_makes_no_large_data_set(tmp_path):
    """A file of 300 kB may declare 60 million rows, or a long text in each: both took all memory."""
    path = tmp_path / "data.parquet"

    def refusal(table, times=1):
        with pq.ParquetWriter(path, table.schema) as writer:
            for _ in range(times):
                writer.write_table(table)
        assert path.stat().st_size < 600_000
        tracemalloc.start()
        held = pa.total_allocated_bytes()
        with pytest.raises(DataSetError) as refused:
            datasets.read(path)
        assert tracemalloc.get_traced_memory()[1] + pa.total_allocated_bytes() - held < 20e6
        tracemalloc.stop()
        assert len(str(refused.value)) < 300
        return str(refused.value).removeprefix(f"{path}: ")

    assert refusal(_table(1200), 500) == "it has 600000 rows; 500000 may be"
    long = pa.array(["x" * 100_000]).dictionary_encode().take(pa.array([0] * 5_000))
    said = "column group: a text has 100000 letters; 200 may be"
    assert refusal(_table(5_000, group=long)) == said
    nested = pa.array([[1.0] * 1000] * 50)
    assert refusal(_table(50, wifi_rtt_s=nested)) == "column wifi_rtt_s holds lists, not values"
    named = {"y" * 100_000: pa.array([1.0])}
    assert refusal(_table(1, **named)) == "a column's name has 100000 letters; 200 may be"
    many = {f"c{number}": pa.array([1.0]) for number in range(1_000)}
    assert refusal(_table(1, **many)) == "it has 1004 columns; 1000 may be"


def test_whether_trains_were_answered_is_known_kept_and_no_indicator(tmp_path):
    answered = csv(tmp_path, "place,size_bytes,direction,t_wifi_s,wifi_udp_answered\na,9,up,1,0\n")
    data = datasets.read(answered)
    assert data.ignored == ()
    assert data.to_rows()[0]["wifi_udp_answered"] == 0.0
    assert "wifi_udp_answered" not in data.indicators
    # Other people's column of that name is no reason to refuse the rest.
    answered.write_text(answered.read_text().replace("1,0\n", "1,2\n"))
    assert datasets.read(answered).ignored == ("wifi_udp_answered",)


def test_our_own_data_set_has_no_column_that_is_not_known():
    traces = ROOT / "traces"
    assert datasets.read(traces / "transfers.parquet").ignored == ()


STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
COUNT = 12


def columns(places=3):
    drawn = np.random.default_rng(1).uniform(0.5, 2.0, (COUNT, 4))
    return {
        "place": [f"p{k % places}" for k in range(COUNT)],
        "start_s": [float(k) for k in range(COUNT)],
        "size_bytes": [3000 if k % 2 else 300_000 for k in range(COUNT)],
        "direction": ["up" if k % 3 else "down" for k in range(COUNT)],
        "wifi_rtt_s": [0.02] * COUNT,
        "cellular_past1_bps": [5e6] * COUNT,
        **{f"t_{name}_s": drawn[:, k].tolist() for k, name in enumerate(STRATEGIES)},
    }


def judged(tmp_path, raw, *options):
    data, out = tmp_path / "data.parquet", tmp_path / "f.json"
    pq.write_table(pa.table(dict(raw)), data)
    options = options or ("--model", "shipped")
    model = shipped()
    with patch.object(model_files, "load", lambda *_, **__: model):
        found = CliRunner().invoke(command, [str(data), *options, "--json", str(out)])
    if found.exception is not None:
        raise found.exception

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    return json.loads(out.read_text(), parse_constant=refuse)


WITHOUT = [
    ("start_s",),
    ("wifi_rtt_s", "cellular_past1_bps"),
    ("t_mptcp_wifi_s", "t_mptcp_cellular_s"),
    ("t_wifi_s", "t_cellular_s"),
    ("t_cellular_s", "t_mptcp_wifi_s", "t_mptcp_cellular_s"),
]


@pytest.mark.parametrize("gone", WITHOUT)
def test_columns_may_be_missing_or_empty(tmp_path, gone):
    whole = columns()
    missing = judged(tmp_path, {name: column for name, column in whole.items() if name not in gone})
    empty = judged(tmp_path, whole | dict.fromkeys(gone, [None] * COUNT))
    assert missing["rows"] == empty["rows"] == COUNT
    assert missing["policies"].keys() == empty["policies"].keys()
    assert missing["policies"]["cedos"] == empty["policies"]["cedos"]
    never = {name for name in STRATEGIES if f"t_{name}_s" in gone}
    assert never.isdisjoint(missing["policies"])


def test_what_is_not_there_cannot_be_read_or_written(tmp_path):
    with pytest.raises(
        DataSetError, match=r"nowhere\.csv: cannot be read: No such file or directory$"
    ):
        datasets.read(tmp_path / "nowhere.csv")
    with pytest.raises(DataSetError, match="no rows"):
        datasets.write(tmp_path / "a.csv", [])
    with pytest.raises(DataSetError, match="cannot be written"):
        datasets.write(tmp_path, [{"place": "p"}])
