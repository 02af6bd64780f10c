"""The testbed's parts that need no namespace: accesses, instances, counters."""

import json
import math
import subprocess
from ipaddress import ip_address

import pytest

from cedos.model import FlowKey, NetworkKind
from emu.places.traces import Trace
from emu.testbed import stale
from emu.testbed.access import ADDRESSES, Access
from emu.testbed.counters import CarriedBytes, by_connection
from emu.testbed.mahimahi import nested

SLOW, FAST = Trace.constant(6e6), Trace.constant(48e6)


def access(**changes):
    facts = {"kind": NetworkKind.WIFI, "up": SLOW, "down": FAST, "rtt_s": 0.04}
    return Access(**(facts | changes))


def test_a_queue_is_twice_rate_times_rtt_within_bounds():
    assert access().queue_down_packets == 2 * 48e6 * 0.04 / 12000
    assert access().queue_up_packets == 60
    assert access(rtt_s=10).queue_down_packets == 400


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"kind": NetworkKind.ETHERNET}, "not ethernet"),
        ({"rtt_s": -0.001}, "-0.001 s"),
        ({"rtt_s": math.nan}, "nan s"),
        ({"rtt_s": math.inf}, "inf s"),
        ({"queue_packets": 0}, "at least one packet"),
        ({"queue_packets": (10, 0)}, "at least one packet"),
        ({"loss": 1.0}, "no share"),
        ({"loss": -0.1}, "no share"),
    ],
)
def test_what_cannot_be_emulated_is_refused(changes, complaint):
    with pytest.raises(ValueError, match=complaint):
        access(**changes)


def test_shells_are_nested_and_each_waits_before_it_becomes_the_next():
    line = nested([["mm-delay", "10"], ["mm-link", "up", "down", "--"]])
    assert line[:4] == ["mm-delay", "10", "sh", "-c"]
    assert "read" in line[4]
    assert line[6:10] == ["mm-link", "up", "down", "--"]
    assert line[10:12] == ["sh", "-c"]
    assert "exec" not in line[12]


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def sleeper():
    started = []

    def start():
        # A leader with a child in its session; says so when it is there.
        process = subprocess.Popen(
            ["sh", "-c", "sleep 100 & echo $!; wait"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.stdout.close()
        process.kill()
        process.wait()


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def abandon(instance, **changes):
    file = instance.directory / "instance.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_an_instance_of_a_living_owner_stays(runtime):
    instance = stale.Instance()
    assert stale.remove_stale() == []
    assert instance.directory.is_dir()
    instance.close()
    assert list(runtime.iterdir()) == []


def test_an_instance_of_a_dead_owner_goes_with_its_sessions(runtime, sleeper):
    process = sleeper()
    child = int(process.stdout.readline())
    instance = stale.Instance()
    instance.add_session(process.pid)
    abandon(instance, pid=dead_pid())
    assert stale.remove_stale() == [instance.token]
    # It would sleep for 100 s. A shell whose child is ended first ends by itself, with 0.
    process.wait(5)
    assert stale.started_ticks(child) is None
    assert list(runtime.iterdir()) == []


def test_children_of_a_dead_session_leader_are_ended_too(runtime, sleeper):
    process = sleeper()
    child = int(process.stdout.readline())
    instance = stale.Instance()
    instance.add_session(process.pid)
    process.kill()
    process.wait()
    assert stale.started_ticks(child) is not None
    instance.close()
    assert stale.started_ticks(child) is None


def test_a_pid_that_was_given_again_is_left_alone(runtime, sleeper):
    process = sleeper()
    instance = stale.Instance()
    ticks = stale.started_ticks(process.pid)
    assert ticks is not None
    abandon(instance, started_ticks=1, sessions={str(process.pid): ticks - 1})
    assert stale.remove_stale() == [instance.token]
    assert process.poll() is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"pid": 1, "started_ticks": "x", "token": "t", "sessions": {}}']
)
def test_what_is_not_an_instance_is_left_alone(runtime, text):
    folder = runtime / "other"
    folder.mkdir(parents=True)
    (folder / "instance.json").write_text(text)
    (runtime / "file").write_text("")
    assert stale.remove_stale() == []
    assert folder.is_dir()


def test_a_foreign_token_does_not_name_what_is_removed(runtime):
    instance = stale.Instance()
    abandon(instance, pid=dead_pid(), token="..")
    assert stale.remove_stale() == []
    instance.close()


WIFI, CELLULAR = (ADDRESSES[kind] for kind in (NetworkKind.WIFI, NetworkKind.CELLULAR))


def key(local, port, remote="198.51.100.3"):
    return FlowKey(ip_address(local), port, ip_address(remote), 80)


def test_connections_that_share_a_port_are_counted_each_by_itself():
    found = by_connection(
        {key(WIFI, 5000): 150_000, key(CELLULAR, 5000, "198.51.100.4"): 2_200_000}, {}
    )
    assert found[WIFI, 5000, "198.51.100.3"] == CarriedBytes(150_000, 0)
    assert found[CELLULAR, 5000, "198.51.100.4"] == CarriedBytes(0, 2_200_000)
