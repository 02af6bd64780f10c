import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from cedos.errors import ModelError
from cedos.storage import model_files
from predictors.training.examples import Examples, Settings
from predictors.training.train import fit

USUAL = {"size_bytes": 3e5, "wifi_rtt_s": 0.02, "cellular_rtt_s": 0.05}


@pytest.fixture(scope="module")
def model():
    draw = np.random.default_rng(1)
    size = draw.choice([3e3, 3e5, 3e6], 200)
    times_s = {
        name: 0.1 + size * 8e-7 * draw.lognormal(0, 0.2, 200) for name in ("wifi", "cellular")
    }
    never = {name: np.zeros(200, dtype=bool) for name in times_s}
    examples = Examples({"size_bytes": size}, times_s, never, np.arange(200) // 20)
    return fit(examples, Settings(trees=2))


@pytest.fixture
def file(model, tmp_path):
    path = tmp_path / "model.json"
    model_files.save(model, path, {"data": "made-up.csv", "date": "2026-01-31"})
    return path


def test_what_was_saved_is_loaded(model, file):
    loaded = model_files.load(file)
    assert loaded.predict(USUAL) == model.predict(USUAL)
    assert loaded.provenance["data"] == "made-up.csv"
    assert loaded.provenance["rows"] == 200
    assert [path.name for path in file.parent.iterdir()] == ["model.json"]


def test_a_file_is_replaced_whole(model, file):
    model_files.save(model, file, {"data": "second"})
    assert model_files.load(file).provenance["data"] == "second"


def test_the_shipped_model_knows_all_strategies_and_an_ordinary_moment():
    shipped = model_files.load()
    predicted = shipped.predict(
        USUAL | {"wifi_past1_bps": 20e6, "cellular_past1_bps": 20e6, "direction_up": 0.0}
    )
    assert set(predicted) == {"wifi", "cellular", "mptcp_wifi", "mptcp_cellular"}
    # 300 KB at 20 Mbit/s last 0.12 s, and a few round trips.
    assert 0.1 < predicted["wifi"].quantile(0.5) < 0.5
    assert "development" not in json.dumps(shipped.provenance)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not JSON"),
        (b"\x80\x04pickle", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "no completion model"),
        (b'{"format": "something-else", "version": 1}', "no completion model"),
        (b'{"format": "cedos-completion-model", "version": 1}', "version 1"),
        (b'{"format": "cedos-completion-model", "version": 2}', "not a completion model"),
    ],
)
def test_files_that_are_no_model_are_refused(tmp_path, content, reason):
    path = tmp_path / "wrong.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as refused:
        model_files.load(path)
    assert str(path) in str(refused.value)
    assert "cedos-emu train" in str(refused.value)


def test_a_model_of_features_that_are_not_known_is_refused(file):
    data = json.loads(file.read_text())
    data["features"].append("crystal_ball")
    file.write_text(json.dumps(data))
    with pytest.raises(ModelError, match="crystal_ball"):
        model_files.load(file)


def test_a_missing_file_and_an_unwritable_one_are_named(model, tmp_path):
    with pytest.raises(ModelError, match=r"nowhere\.json"):
        model_files.load(tmp_path / "nowhere.json")
    with pytest.raises(ModelError, match="cannot be written"):
        model_files.save(model, tmp_path / "no" / "folder.json")


def test_a_model_that_lacks_a_network_is_no_model_to_decide_with(tmp_path):
    size = np.full(40, 3e5)
    rows = Examples(
        {"size_bytes": size},
        {"cellular": np.linspace(0.1, 0.4, 40)},
        {"cellular": np.zeros(40, dtype=bool)},
        np.arange(40) // 10,
    )
    path = tmp_path / "half.json"
    model_files.save(fit(rows, Settings(trees=1)), path)
    with pytest.raises(ModelError, match="knows no times of wifi alone"):
        model_files.load(path)
    assert model_files.load(path, partial=True).strategies == ("cellular",)


def test_loading_and_predicting_need_neither_scikit_learn_nor_numpy(file):
    script = (
        "import sys; from pathlib import Path; from cedos.storage import model_files; "
        f"model_files.load(Path({str(file)!r})).predict({USUAL!r}); "
        "sys.exit(any(name in sys.modules for name in ('sklearn', 'numpy', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_the_shipped_model_is_small_in_memory():
    """14.8 MB; 19.6 with a leaf's numbers as objects, which the daemon has all its life."""
    tracemalloc.start()
    try:
        model = model_files.load()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert model.strategies
    assert held < 17e6
