"""Limits of a probe server, and its key."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedos.errors import ConfigError
from cedos.host.monitor.probing import server as limits_module
from cedos.host.monitor.probing.keyfile import read_key, write_new_key
from cedos.host.monitor.probing.server import ProbeLimits
from cedos.host.monitor.probing.wire import RefusalReason

A, B = ip_address("192.0.2.1"), ip_address("192.0.2.2")


def test_a_source_gets_its_burst_and_then_its_rate():
    limits = ProbeLimits(8e3, 1e9, burst_s=5.0)  # 1000 bytes a second, 5000 at once
    assert limits.take(A, 5000, 100.0) is None
    assert limits.take(A, 1000, 100.0) == (RefusalReason.SOURCE_LIMIT, pytest.approx(1.0))
    assert limits.take(B, 1000, 100.0) is None
    assert limits.take(A, 1000, 101.0) is None
    assert limits.take(A, 5001, 1000.0) == (RefusalReason.TOO_LARGE, 0.0)


def test_all_together_get_no_more_than_the_total():
    limits = ProbeLimits(8e3, 16e3, burst_s=1.0)
    sources = [ip_address(f"192.0.2.{n}") for n in range(1, 10)]
    given_now = sum(limits.take(source, 1000, 0.0) is None for source in sources)
    assert given_now == 2
    refused = limits.take(sources[5], 1000, 0.0)
    assert refused[0] is RefusalReason.TOTAL_LIMIT


def test_neighbours_in_a_v6_network_are_one_source():
    limits = ProbeLimits(8e3, 1e9, burst_s=1.0)
    assert limits.take(ip_address("2001:db8::1"), 1000, 0.0) is None
    assert limits.take(ip_address("2001:db8::2"), 1000, 0.0) is not None
    assert limits.take(ip_address("2001:db8:0:1::2"), 1000, 0.0) is None


def test_a_clock_that_goes_back_gives_nothing():
    limits = ProbeLimits(8e3, 1e9, burst_s=1.0)
    assert limits.take(A, 1000, 100.0) is None
    assert limits.take(A, 1000, 0.0) is not None


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(limits_module, "_MOST_SOURCES", 10)
    limits = ProbeLimits(8e3, 1e12, burst_s=1.0)
    for number in range(50):
        limits.take(ip_address(number), 100, 0.0)
        assert len(limits) <= 10


@given(st.lists(st.tuples(st.integers(1, 3000), st.floats(0, 2)), max_size=60))
def test_nobody_ever_gets_more_than_burst_and_rate(asked):
    limits = ProbeLimits(8e3, 1e9, burst_s=2.0)
    now_s, had = 0.0, 0
    for count, pause_s in asked:
        now_s += pause_s
        had += count if limits.take(A, count, now_s) is None else 0
        assert had <= 2000 + 1000 * now_s + 1e-6


def test_a_key_is_made_once_and_for_its_owner(tmp_path):
    path = tmp_path / "probe.key"
    write_new_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    key = read_key(path)
    assert len(key) == 32
    with pytest.raises(ConfigError, match="not replaced"):
        write_new_key(path)
    assert read_key(path) == key
    write_new_key(tmp_path / "other.key")
    assert read_key(tmp_path / "other.key") != key


@pytest.mark.parametrize(
    ("content", "mode", "what"),
    [
        ("ab" * 32, 0o640, "other users can read"),
        ("ab" * 31, 0o600, "64 hexadecimal digits"),
        ("not a key", 0o600, "64 hexadecimal digits"),
        ("é" * 40, 0o600, "not text"),
        (None, 0o600, "--new-key"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path, content, mode, what):
    path = tmp_path / "probe.key"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=what):
        read_key(path)
