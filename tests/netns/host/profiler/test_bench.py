from pathlib import Path

import pytest

from emu.bench import profiler
from emu.testbed import stale
from emu.testbed.netns import RUN


def test_the_bench_measures_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made: list[str] = []
    create = profiler.Namespace.create

    def remember(name: str) -> profiler.Namespace:
        made.append(name)
        return create(name)

    monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(profiler.Namespace, "create", remember)
    monkeypatch.setattr(profiler, "_BULK_OBJECTS", 3)
    monkeypatch.setattr(profiler, "_SMALL_OBJECTS", 50)
    lines: list[str] = []
    figures = profiler.run(lines.append)
    assert 0 < figures["delivered_share"] < 0.001
    assert figures["lengths_seen_share"] == 1.0
    assert figures["us_per_packet"] > 0
    assert len(lines) == 3
    assert len(made) == 2
    assert not any((RUN / name).exists() for name in made)
    assert list(stale.runtime_directory().iterdir()) == []
