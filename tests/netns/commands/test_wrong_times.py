"""The clock goes to 2184 and 400 days back; the disk with the state turns read-only: alive and right."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kit.waiting import wait_until

from cedos.model import Budget, Every, Resource

MOST_MB = 150
UNTIL = "2099-12-01T00:00:00"
# Of this process alone: everything else here needs the host's clock.
ITS_CLOCK = """
import os, time
_real = time.time
def _told():
    with open(os.environ["CLOCK_AHEAD"]) as file:
        return _real() + float(file.read() or 0)
time.time = _told
"""


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def ended(process: "subprocess.Popen[str]") -> str:
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0, log[-3000:]
    assert "Traceback" not in log, log[-3000:]
    return log


def test_a_clock_in_2184_and_400_days_back(
    tethered: Any, install: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = laptop.ip("rule")
    ahead = tmp_path / "ahead"
    ahead.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(ITS_CLOCK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CLOCK_AHEAD", str(ahead))
    far = (datetime(2184, 1, 1, tzinfo=UTC) - datetime.now(UTC)).total_seconds()
    with cedos.up() as process:
        cedos.client.set_budget(Budget("data", Resource.DATA, 1e9, UNTIL, every=Every.MONTH))
        for shift_s in (far, -timedelta(days=400).total_seconds(), 0.0):
            beside = tmp_path / "next"
            beside.write_text(str(shift_s))
            beside.replace(ahead)
            time.sleep(1.5)  # a beat of the budgets
            assert cedos.client.budgets()[0].spent < 1e6
            state, other = ("down", "lte0") if shift_s > 0 else ("up", "wlan0")
            laptop.ip("link", "set", "wlan0", state)
            if state == "up":
                laptop.ip("route", "replace", "default", "via", "192.168.43.1", "metric", "43")
            wait_until(lambda network=other: cedos.client.status().default.network == network)
            assert memory_mb(process.pid) < MOST_MB
        log = ended(process)
    assert log.count("the clock was set") == 3
    assert laptop.ip("rule") == before


@contextmanager
def disk(folder: Path, image: Path) -> Iterator[Path]:
    """A file system that turns read-only at an error; yields the file that brings one about."""
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    options = "loop,errors=remount-ro"
    done = subprocess.run(["mount", "-o", options, image, folder], check=False, capture_output=True)
    if done.returncode != 0:
        pytest.skip("this machine has no loop devices")
    try:
        number = folder.stat().st_dev
        device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
        yield Path(f"/sys/fs/ext4/{device}/trigger_fs_error")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_turns_read_only(tethered: Any, install: Any, tmp_path: Path) -> None:
    cedos, laptop = install(tethered.laptop), tethered.laptop
    before = laptop.ip("rule")
    with disk(tmp_path / "state", tmp_path / "image") as error, cedos.up() as process:
        wait_until(lambda: cedos.client.status().default.network == "wlan0")
        error.write_text("1")
        done = cedos.run("budget", "set", "data", "1GB", "--until", "2099-12-01")
        assert done.returncode != 0
        assert "Read-only file system" in done.stderr, done.stderr
        # What is to be undone cannot be written down: what stands already goes on being used.
        laptop.ip("link", "set", "wlan0", "down")
        wait_until(lambda: cedos.client.status().default.network == "lte0")
        assert any("cannot be kept" in each for each in cedos.client.status().problems)
        assert memory_mb(process.pid) < MOST_MB
        log = ended(process)
    assert "the journal stays, though all is undone" in log
    assert laptop.ip("rule") == before
