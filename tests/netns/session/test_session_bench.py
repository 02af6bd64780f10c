"""The bench of sessions in small: it measures what it says, both ends answer, nothing is left over."""

import pytest

from emu.bench import session
from emu.workloads.sessions.pair import SERVER as CABLE_SERVER
from emu.workloads.sessions.pair import cable, loopback, pair
from emu.workloads.sessions.throughput import jain


def quiet(_line):
    pass


def test_throughput_of_all_three():
    with loopback() as host, pair(host, host, "127.0.0.1") as ends:
        figures = session.throughput(ends, quiet, rounds=1, size=4_000_000)
    assert set(figures) == {
        *("loopback_clear_ratio", "loopback_aead_ratio"),
        *("cpu_s_per_gb_raw", "cpu_s_per_gb_clear", "cpu_s_per_gb_aead"),
    }
    assert all(value > 0 for value in figures.values())
    assert not host.path.exists()


def test_round_trips_in_two_ways():
    with loopback() as host, pair(host, host, "127.0.0.1") as ends:
        figures = session.round_trips(ends, quiet, rounds=20, times=1)
    assert set(figures) == {
        "message_added_us", "message_callbacks_added_us", "message_await_added_us",
    }  # fmt: skip
    assert figures["message_added_us"] > 0


def test_urgent_messages_under_load():
    with cable("10mbit") as (near, far), pair(near, far, CABLE_SERVER) as ends:
        figures = session.foreground(ends, quiet, seconds=1.0)
    assert set(figures) == {"foreground_added_ms", "foreground_added_p95_ms"}


def test_address_changes_and_black_outs():
    with cable(None) as (near, far), pair(near, far, CABLE_SERVER) as ends:
        figures = session.resume(ends, quiet, rounds=1, black_out_s=0.2)
    assert figures["resume_median_ms"] > 0
    assert figures["resume_allowed_ms"] >= 5
    assert 0 < figures["blackout_resume_s"] < 30
    assert 0 < figures["blackout_hour_resume_s"] < 30


def test_fairness_of_a_few():
    with cable("20mbit") as (near, far), pair(near, far, CABLE_SERVER) as ends:
        figures = session.fairness(ends, "jain", 2, 2, quiet, warm_s=0.5, seconds=1.0)
    assert 0.25 <= figures["jain"] <= 1.0


def test_jain():
    assert jain([5.0, 5.0, 5.0]) == pytest.approx(1.0)
    assert jain([9.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain([0.0, 0.0]) == 0.0
