"""Which places benches replay: they all begin at places that the collection has."""

from pathlib import Path

import pytest

from emu.bench import gateway
from emu.bench.gateway_parts import pages
from emu.bench.gateway_parts.bench_places import bench_places
from emu.places.places import ROOT
from emu.places.traces import Trace


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
