"""The bench of sizes, small: what it says is what was served, and it leaves nothing behind."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from emu.bench import sizes
from emu.testbed import stale
from emu.testbed.hosts import Hosts, cabled


@contextmanager
def few_ports(addresses: Sequence[str]) -> Iterator[Hosts]:
    """Connections to different servers often have the same local port there."""
    with cabled(addresses) as hosts:
        hosts.client.sysctl("net.ipv4.ip_local_port_range", "32768 33167")
        yield hosts


def test_the_bench_of_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", str(tmp_path))
    for name, value in (("_SITES", 6), ("_PAGES", 1), ("_VISITS", 40)):
        monkeypatch.setattr(sizes, name, value)
    monkeypatch.setattr(sizes, "cabled", few_ports)
    figures = sizes.run(lambda line: None)
    assert figures["http_transactions"] > 20
    # What states its length is told exactly; not all does.
    assert figures["http_predictable_share"] == figures["http_content_length_share"]
    assert 0.5 < figures["http_content_length_share"] < 1.0
    assert 0 < figures["http_chunked_share"] < 0.3
    assert figures["http_stated_predictable_bytes_share"] < figures["http_predictable_bytes_share"]
    assert figures["tls_all_connections"] > 20
    # Few connections tell little of what is learned: so many visits that each kind has a dozen.
    assert figures["tls_seen5plus_median_rel_error"] < figures["tls_seen0_median_rel_error"]
    assert figures["tls_seen0_connections"] >= 2
    assert 0 < figures["tls_within_interval_share"] <= 1
    assert list(stale.runtime_directory().iterdir()) == []
