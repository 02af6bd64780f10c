"""All benches can be run by their names."""

import importlib

from emu.bench import names


def test_each_bench_can_be_run() -> None:
    for name in names():
        assert callable(importlib.import_module(f"emu.bench.{name}").run), name
