"""What repeating a transfer changes, and what the next seconds change, by hand."""

import csv
from pathlib import Path
from types import SimpleNamespace

import pytest

from emu.experiments.delphi.analyses import noise
from emu.lab.data import datasets
from emu.lab.data.datasets import TIMES
from emu.places.traces import Trace


def written(file: Path, factors: list[float]) -> Path:
    with file.open("w", newline="") as out:
        rows = csv.writer(out)
        rows.writerow(["place", "start_s", "size_bytes", "direction", *TIMES, "censored_cellular"])
        for k, factor in enumerate(factors):
            rows.writerow([f"p{k % 3}", k, 3000, "down", factor, 2.0, 3.0, 4.0, int(k == 0)])
    return file


def test_differences_and_what_they_leave_to_a_perfect_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1 Mbit/s in the first 20 s, then three times as much.
    trace = Trace([*range(12, 20_001, 12), *range(20_004, 40_001, 4)], 40_000)
    access = SimpleNamespace(down=trace, up=trace)
    place = SimpleNamespace(networks={"wifi": access, "cellular": access})
    monkeypatch.setattr(noise.collections, "load", lambda _: {f"p{k}": place for k in range(3)})
    ours = written(tmp_path / "ours.csv", [1.0] * 5)
    # The other program is a tenth faster always, and by chance a fifth slower or faster than that.
    theirs = written(tmp_path / "theirs.csv", [0.9, 0.9, 0.9, 0.9 * 1.2, 0.9 / 1.2])
    found = noise.run(datasets.read(ours), str(theirs), "anywhere")
    assert found["rows_twice"] == 5
    assert found["repeated"]["wifi"]["3000"]["median"] == pytest.approx(1 / 0.9 - 1)
    assert found["floor"]["wifi"]["all"]["median"] == pytest.approx(0.0)
    assert found["floor"]["wifi"]["all"]["p90"] == pytest.approx(
        0.1289, abs=1e-3
    )  # log 1.2 / sqrt 2
    assert found["repeated"]["cellular"]["all"]["n"] == 4, (
        "one has not ended: its time is not known"
    )
    # Before the start of the first rows lies the trace's end, and it carried three times as much.
    assert noise.wander(datasets.read(ours), Path("anywhere"))["wifi"][0] == pytest.approx(
        2 / 3, abs=0.01
    )
