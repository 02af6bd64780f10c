"""The benches of the profiler, small: they say what was served, and leave nothing behind."""

from contextlib import contextmanager

import pytest

from emu.bench import profiler, sizes
from emu.testbed import stale
from emu.testbed.hosts import cabled
from emu.testbed.netns import RUN


@pytest.fixture(autouse=True)
def runtime(monkeypatch, tmp_path):
    monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", str(tmp_path))
    yield
    assert list(stale.runtime_directory().iterdir()) == []


def test_packets(monkeypatch):
    made = []
    create = profiler.Namespace.create

    def remember(name):
        made.append(name)
        return create(name)

    monkeypatch.setattr(profiler.Namespace, "create", remember)
    monkeypatch.setattr(profiler, "_BULK_OBJECTS", 3)
    monkeypatch.setattr(profiler, "_SMALL_OBJECTS", 50)
    lines = []
    figures = profiler.run(lines.append)
    assert 0 < figures["delivered_share"] < 0.001
    assert figures["lengths_seen_share"] == 1.0
    assert figures["us_per_packet"] > 0
    assert len(lines) == 3
    assert len(made) == 2
    assert not any((RUN / name).exists() for name in made)


@contextmanager
def few_ports(addresses):
    """Connections to different servers often have the same local port there."""
    with cabled(addresses) as hosts:
        hosts.client.sysctl("net.ipv4.ip_local_port_range", "32768 33167")
        yield hosts


def test_sizes(monkeypatch):
    for name, value in (("_SITES", 6), ("_PAGES", 1), ("_VISITS", 40)):
        monkeypatch.setattr(sizes, name, value)
    monkeypatch.setattr(sizes, "cabled", few_ports)
    figures = sizes.run(lambda line: None)
    # What states its length is told exactly; not all does.
    assert figures["http_predictable_share"] == figures["http_content_length_share"]
    assert 0.5 < figures["http_content_length_share"] < 1.0
    assert 0 < figures["http_chunked_share"] < 0.3
    assert 0 < figures["http_untold_bytes_share"] < 0.5 < figures["http_predictable_bytes_share"]
    # Few connections tell little of what is learned: so many visits that each kind has a dozen.
    assert figures["tls_seen5plus_connections"] >= 12
    assert figures["tls_seen5plus_median_rel_error"] < figures["tls_all_median_rel_error"]
