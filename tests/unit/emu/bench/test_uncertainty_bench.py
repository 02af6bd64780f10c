from typing import Any

import pytest

from cedos.selector.uncertainty import METHODS
from emu.bench import names, uncertainty


def test_the_bench_prints_what_it_promises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncertainty, "_DECISIONS", 12)
    monkeypatch.setattr(uncertainty, "_WARM_UP", 2)
    lines: list[str] = []
    figures: dict[str, Any] = uncertainty.run(lines.append)
    assert "uncertainty" in names()
    assert {"p50_us", "p99_us", "cpu_p99_us", "samples", "p50_kept_us"} <= figures.keys()
    assert figures["samples"] == 50
    assert figures["enumeration_ratio"] > 1.0
    assert all(value > 0.0 for value in figures.values())
    assert {"p99_ways_us", "p99_bayesian_us"} <= figures.keys()
    assert len(lines) == len(METHODS) + 2
