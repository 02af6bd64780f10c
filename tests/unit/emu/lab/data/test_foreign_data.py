"""`cedos-emu evaluate` on what others may bring: figures that are numbers, or a message why not."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from cedos.errors import DataSetError
from emu.commands.evaluate import command
from emu.data import datasets
from emu.data.evaluate import evaluate
from predictors.training.examples import Settings

STRATEGIES = ("wifi", "cellular", "mptcp_wifi", "mptcp_cellular")
COUNT = 12


def columns(places: int = 3) -> dict[str, list[Any]]:
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


def judged(tmp_path: Path, raw: Mapping[str, Sequence[Any]], *options: str) -> dict[str, Any]:
    data, out = tmp_path / "data.parquet", tmp_path / "f.json"
    pq.write_table(pa.table(dict(raw)), data)
    options = options or ("--model", "shipped")
    found = CliRunner().invoke(command, [str(data), *options, "--json", str(out)])
    if found.exception is not None:
        raise found.exception

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    figures: dict[str, Any] = json.loads(out.read_text(), parse_constant=refuse)
    return figures


WITHOUT: list[tuple[str, ...]] = [
    ("start_s",),
    ("wifi_rtt_s", "cellular_past1_bps"),
    ("t_mptcp_wifi_s", "t_mptcp_cellular_s"),
    ("t_wifi_s", "t_cellular_s"),
    ("t_cellular_s", "t_mptcp_wifi_s", "t_mptcp_cellular_s"),
]


@pytest.mark.parametrize("gone", WITHOUT)
def test_columns_may_be_missing_or_empty(tmp_path: Path, gone: tuple[str, ...]) -> None:
    whole = columns()
    missing = judged(tmp_path, {name: column for name, column in whole.items() if name not in gone})
    empty = judged(tmp_path, whole | dict.fromkeys(gone, [None] * COUNT))
    assert missing["rows"] == empty["rows"] == COUNT
    assert missing["policies"].keys() == empty["policies"].keys()
    assert missing["policies"]["cedos"] == empty["policies"]["cedos"]
    never = {name for name in STRATEGIES if f"t_{name}_s" in gone}
    assert never.isdisjoint(missing["policies"])


@pytest.mark.parametrize(
    "change",
    [
        {"place": ["p"] * COUNT},
        {"mood": ["calm"] * COUNT, "t_ethernet_s": [0.1] * COUNT, "ethernet_rtt_s": [0.1] * COUNT},
        {"wifi_ap_count": [7] * COUNT, "cellular_dbm": [-97.5] * COUNT},
        {"wifi_available": [True, None, False] * (COUNT // 3)},
        {"size_bytes": [2**60] * COUNT},
        {"wifi_rtt_s": [0.0] * COUNT, "cellular_past1_bps": [1e300] * COUNT},
        {f"t_{name}_s": [1.0] * COUNT for name in STRATEGIES},
        {"censored_wifi": [True] * COUNT},
    ],
)
def test_odd_values_are_judged(tmp_path: Path, change: dict[str, list[Any]]) -> None:
    found = judged(tmp_path, columns() | change)
    assert found["rows"] == COUNT
    assert np.isfinite(found["policies"]["cedos"]["max_s"]["regret_mean"])


def test_one_row_is_judged_by_a_given_model(tmp_path: Path) -> None:
    found = judged(tmp_path, {name: column[:1] for name, column in columns().items()})
    assert found["rows"] == found["groups"] == 1


def test_strategies_measured_apart_cannot_be_compared(tmp_path: Path) -> None:
    apart = columns() | {
        f"t_{name}_s": [1.0 if n % 4 == k else None for n in range(COUNT)]
        for k, name in enumerate(STRATEGIES)
    }
    with pytest.raises(DataSetError, match=r"no row .* wifi, cellular, mptcp_wifi, mptcp_cellular"):
        judged(tmp_path, apart)


def test_too_few_groups_say_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(DataSetError, match=r"it has 2 \(in 12 rows .* random rows need none"):
        judged(tmp_path, columns(places=2), "--kind", "last-rate")


@pytest.mark.parametrize("options", [("--group-by", "row"), ("--random-split", "0.9")])
def test_random_rows_need_only_one_place(tmp_path: Path, options: tuple[str, ...]) -> None:
    found = judged(tmp_path, columns(places=1), "--kind", "last-rate", *options)
    assert found["places"] == 1


def test_a_handful_of_rows_to_learn_from_gives_numbers() -> None:
    data = datasets.from_columns(columns(), "drawn")
    found = evaluate(data, train_share=0.3, settings=Settings(kind="trees", trees=2))
    figures = found["prediction"]["completion"]["wifi"]
    assert np.isfinite([figures["median_rel_error"], figures["coverage90"]]).all()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "place;size_bytes;direction;t_wifi_s\na;1;up;1\n",
            "column place is missing; it has 'place;",
        ),
        ("a,3000,down,0.1\n", r"column place is missing; it has 'a', '3000', 'down' \.\.\."),
        ("\n\n", "column place is missing; it has none"),
        ("place, size_bytes, direction, t_wifi_s\n", "no rows"),
    ],
)
def test_a_table_of_another_kind_shows_what_was_found(
    tmp_path: Path, text: str, reason: str
) -> None:
    file = tmp_path / "other.csv"
    file.write_text(text)
    with pytest.raises(DataSetError, match=reason):
        datasets.read(file)
