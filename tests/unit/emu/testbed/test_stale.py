"""What a killed testbed leaves is found by pid and start time, and nothing else is touched."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from emu.testbed import stale


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CEDOS_EMU_RUNTIME_DIR", str(tmp_path / "run"))
    return tmp_path / "run"


@pytest.fixture
def sleeper() -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    started: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
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
        assert process.stdout is not None
        process.stdout.close()
        process.kill()
        process.wait()


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def abandon(instance: stale.Instance, **changes: object) -> None:
    file = instance.directory / "instance.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_an_instance_of_a_living_owner_stays(runtime: Path) -> None:
    instance = stale.Instance()
    assert stale.remove_stale() == []
    assert instance.directory.is_dir()
    instance.close()
    assert list(runtime.iterdir()) == []


def test_an_instance_of_a_dead_owner_goes_with_its_sessions(
    runtime: Path, sleeper: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    process = sleeper()
    assert process.stdout is not None
    child = int(process.stdout.readline())
    instance = stale.Instance()
    instance.add_session(process.pid)
    abandon(instance, pid=dead_pid())
    assert stale.remove_stale() == [instance.token]
    # It would sleep for 100 s. A shell whose child is ended first ends by itself, with 0.
    process.wait(5)
    assert stale.started_ticks(child) is None
    assert list(runtime.iterdir()) == []


def test_children_of_a_dead_session_leader_are_ended_too(
    runtime: Path, sleeper: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
    process = sleeper()
    assert process.stdout is not None
    child = int(process.stdout.readline())
    instance = stale.Instance()
    instance.add_session(process.pid)
    process.kill()
    process.wait()
    assert stale.started_ticks(child) is not None
    instance.close()
    assert stale.started_ticks(child) is None


def test_a_pid_that_was_given_again_is_left_alone(
    runtime: Path, sleeper: Callable[[], "subprocess.Popen[bytes]"]
) -> None:
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
def test_what_is_not_an_instance_is_left_alone(runtime: Path, text: str) -> None:
    folder = runtime / "other"
    folder.mkdir(parents=True)
    (folder / "instance.json").write_text(text)
    (runtime / "file").write_text("")
    assert stale.remove_stale() == []
    assert folder.is_dir()


def test_a_foreign_token_does_not_name_what_is_removed(runtime: Path) -> None:
    instance = stale.Instance()
    abandon(instance, pid=dead_pid(), token="..")
    assert stale.remove_stale() == []
    instance.close()


def test_start_times_tell_processes_apart() -> None:
    assert stale.started_ticks(os.getpid()) is not None
    assert stale.started_ticks(dead_pid()) is None
