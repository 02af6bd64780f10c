"""Benches: each can be run by its name."""

import importlib
import math

import pytest

from cedos.errors import ConfigError
from cedos.model import NetworkKind
from emu import bench
from emu.bench import gateway, names, run, uncertainty
from emu.bench.trials import AGAIN, Case, Fetch, again
from emu.statistics import percentile


def test_each_bench_can_be_run():
    for name in names():
        assert callable(importlib.import_module(f"emu.bench.{name}").run), name


CASE = Case("some", slow_s=12.0)


def fetches(*networks):
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
def test_a_network_is_used_again_from_its_last_fetches_in_a_row(networks, expected):
    assert again(CASE, fetches(*networks)) == expected


def test_the_time_of_uncertain_decisions(monkeypatch):
    monkeypatch.setattr(uncertainty, "_DECISIONS", 12)
    monkeypatch.setattr(bench, "_WARM_UP", 2)
    figures = uncertainty.run(lambda line: None)
    assert figures.pop("samples") == 50
    assert 0.0 < figures["p50_us"] <= figures["p99_us"]
    assert figures.keys() == {"p50_us", "p99_us", "cpu_p99_us"}


def test_percentiles_are_of_the_values_themselves():
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.0
    assert percentile(range(1, 101), 0.95) == 95
    assert percentile([7.0], 0.95) == 7.0


def test_a_bench_runs_the_parts_that_it_is_given(monkeypatch):
    parts = {each: lambda _, key=each: {key: 1.0} for each in ("sum", "cuts")}
    monkeypatch.setattr(gateway, "PARTS", parts)
    assert run("gateway", lambda line: None, ["cuts"]) == {"cuts": 1.0}
    assert run("gateway", lambda line: None) == {"sum": 1.0, "cuts": 1.0}
    with pytest.raises(ConfigError, match="no part 'pages': there are sum, cuts"):
        run("gateway", lambda line: None, ["pages"])
    with pytest.raises(ConfigError, match="it has none"):
        run("uncertainty", lambda line: None, ["sum"])
