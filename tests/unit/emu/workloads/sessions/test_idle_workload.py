"""The bench of a million sleepers, with a few."""

from emu.bench.session import measure


def test_it_measures_a_file_that_another_process_opens() -> None:
    lines: list[str] = []
    figures = measure(lines.append, count=2_000, look_ups=500)
    assert set(figures) == {"idle_million_mb", "idle_lookup_us", "idle_reload_s"}
    assert all(0 <= value < 1000 for value in figures.values())
    assert len(lines) == 1
