"""Benches: each can be run by its name."""

import importlib
import math
from pathlib import Path

import pytest

from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu import bench
from emu.bench import gateway, names, percentile, run, uncertainty
from emu.bench.gateway_parts import pages
from emu.bench.gateway_parts.pages import bench_places
from emu.bench.trials import AGAIN, Case, Fetch, again
from emu.places.places import ROOT
from emu.places.traces import Trace


def test_each_bench_can_be_run() -> None:
    for name in names():
        assert callable(importlib.import_module(f"emu.bench.{name}").run), name


@pytest.fixture
def real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A collection with the real places' names."""
    names = {name for name, _ in gateway._REAL} | set(pages._REAL)
    for kind in ("wifi", "cellular"):
        (tmp_path / kind).mkdir()
        Trace.constant(1e6, 5).write(tmp_path / kind / "even.trace.gz")
    rows = "\n".join(f"{name},even,even" for name in sorted(names))
    (tmp_path / "places.csv").write_text(f"place,wifi,cellular\n{rows}\n")
    monkeypatch.setenv("CEDOS_BENCH_PLACES", str(tmp_path))
    return tmp_path


def test_the_real_ones_where_they_are(real: Path) -> None:
    assert bench_places().directory == real
    assert pages._starts_s() == pages._REAL
    assert [case.name for case in gateway._all_cases(1)] == list(gateway._CASES)


def test_else_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEDOS_BENCH_PLACES", str(ROOT / "traces"))
    assert pages._starts_s() == pages._SYNTHETIC
    assert [case.name for case in gateway._all_cases(0)] == list(gateway._CASES)
    for place in pages._starts_s():
        assert bench_places()[place].networks


CASE = Case("some", slow_s=12.0)


def fetches(*networks: str) -> list[Fetch]:
    """Return one fetch each second from second 10 on."""
    return [Fetch(10.0 + at, 0.2, NetworkKind(network)) for at, network in enumerate(networks)]


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        (["cellular"] * 4 + ["wifi"] * AGAIN, 2.0),
        (["wifi"] * AGAIN, 0.0),
        (["wifi"] * (AGAIN - 1), math.inf),
        (["wifi"] * AGAIN + ["cellular"], math.inf),
        ([], math.inf),
    ],
    ids=["back", "never left", "too few", "left again", "none"],
)
def test_a_network_is_used_again_from_its_last_fetches_in_a_row(
    networks: list[str], expected: float
) -> None:
    assert again(CASE, fetches(*networks)) == expected


def test_the_time_of_uncertain_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "_DECISIONS", 12)
    monkeypatch.setattr(bench, "_WARM_UP", 2)
    figures = uncertainty.run(lambda line: None)
    assert figures.pop("samples") == 50
    assert 0.0 < figures["p50_us"] <= figures["p99_us"]
    assert figures.keys() == {"p50_us", "p99_us", "cpu_p99_us"}


def test_percentiles_are_of_the_values_themselves() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7.0], 0.95) == 7.0


def test_a_bench_runs_the_parts_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {each: lambda _, key=each: {key: 1.0} for each in ("sum", "cuts")}
    monkeypatch.setattr(gateway, "PARTS", parts)
    assert run("gateway", lambda line: None, ["cuts"]) == {"cuts": 1.0}
    assert run("gateway", lambda line: None) == {"sum": 1.0, "cuts": 1.0}
    with pytest.raises(ConfigError, match="no part 'pages': there are sum, cuts"):
        run("gateway", lambda line: None, ["pages"])
    with pytest.raises(ConfigError, match="it has none"):
        run("uncertainty", lambda line: None, ["sum"])
