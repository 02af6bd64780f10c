"""Tests."""

import os
import subprocess
import sys
import time
from itertools import pairwise

import pytest

from cedos.errors import EmulationError
from cedos.model import Direction
from emu.workloads import mixed
from emu.workloads.downloads import grown, watch_output
from emu.workloads.mixed import Load, PlannedTransfer, schedule
from emu.workloads.tools import PackageArchive

SMALL = Load("small", "198.51.100.2", Direction.DOWN, 1000, 30_000, 120.0, 0.5)
LARGE = Load("large", "198.51.100.4", Direction.UP, 1_000_000, 4_000_000, 12.0, 0.0)


def test_a_schedule_is_drawn_from_its_seed_alone():
    first = schedule([SMALL, LARGE], duration_s=60, seed=1)
    assert first == schedule([SMALL, LARGE], duration_s=60, seed=1)
    assert first != schedule([SMALL, LARGE], duration_s=60, seed=2)
    assert [each.number for each in first] == list(range(len(first)))
    assert sorted(first, key=lambda each: each.at_s) == first
    assert all(0 < each.at_s < 60 for each in first)


PLANNED = PlannedTransfer(3, "x", 1.0, "198.51.100.2", Direction.DOWN, 5000, False)
SAID = (
    '{{"time_s": 0.25, "connect_s": 0.1, "local_ip": "192.168.43.2", "local_port": 4000, '
    '"code": "{code:03}", "down": {down}, "up": 0}}'
)


def test_loads_in_turn_have_their_time_to_themselves():
    down = Direction.DOWN
    classes = [
        Load("a", "198.51.100.2", down, 1000, 1000, 0.0, slot_s=1.0),
        Load("b", "198.51.100.2", down, 9000, 9000, 0.0, slot_s=3.0),
    ]
    plan = schedule(classes, duration_s=43.0, seed=1)
    lengths = {"a": 1.0, "b": 3.0}
    for one, after in pairwise(plan):
        assert after.at_s == one.at_s + lengths[one.name]
    assert plan[-1].at_s + lengths[plan[-1].name] <= 43.0
    # Whole rounds: each of them once before one of them again.
    rounds = [{p.name for p in plan[n : n + 2]} for n in range(0, len(plan) - 1, 2)]
    assert len(rounds) == 10
    assert all(names == {"a", "b"} for names in rounds)
    assert len({tuple(p.name for p in plan[n : n + 2]) for n in range(0, 20, 2)}) == 2
    assert plan == schedule(classes, duration_s=43.0, seed=1)
    assert plan != schedule(classes, duration_s=43.0, seed=2)


@pytest.mark.parametrize(
    ("status", "code", "down", "censored"),
    [
        (0, 200, 5000, False),
        (28, 200, 1200, True),
        (28, 0, 0, True),
        (0, 404, 5000, True),
        (0, 200, 4999, True),
    ],
)
def test_only_a_whole_answer_completes_a_transfer(status, code, down, censored):
    printed = SAID.format(code=code, down=down)
    completed = mixed._completed(PLANNED, 7.0, status, printed, "", 30.0)
    assert completed.censored is censored
    assert completed.time_s == (30.0 if censored else 0.25)
    assert (completed.problem is not None) is censored


def test_a_client_that_does_not_start_is_no_slow_network():
    with pytest.raises(EmulationError, match="nsenter: cannot"):
        mixed._completed(PLANNED, 7.0, 1, "", "nsenter: cannot open", 30.0)


_SLOW = "import sys, time\nfor _ in range(10):\n sys.stdout.buffer.write(bytes(1000))\n"
_SLOW += " sys.stdout.flush()\n time.sleep(0.05)\n"


def _running(program):
    return subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE)


def test_half_way_is_called_once_when_a_third_is_there():
    called = []
    found = watch_output(
        _running(_SLOW), time.monotonic(), 10_000, half_way=lambda: called.append(1.0)
    )
    assert found.whole
    assert len(called) == 1


def test_the_package_is_in_the_archive_and_in_its_list(tmp_path):
    www = tmp_path / "www"
    www.mkdir()
    PackageArchive(www, tmp_path / "apt", os.getuid(), 100_000)
    (package,) = (www / "packages").glob("*.deb")
    listed = (www / "packages" / "Packages").read_text()
    assert f"Filename: ./{package.name}\n" in listed
    assert f"Size: {package.stat().st_size}\n" in listed
    assert package.stat().st_size >= 100_000


def test_a_file_that_grows_is_watched_until_its_program_ends(tmp_path):
    file = tmp_path / "growing"
    file.touch()
    step = "open(sys.argv[1], 'ab').write(bytes(10)); time.sleep(0.2)"
    writes = f"import sys, time\nfor _ in range(4): {step}"
    process = subprocess.Popen([sys.executable, "-c", writes, str(file)])
    half_way = []
    arrivals = grown(
        process, lambda: file.stat().st_size, 40, lambda: half_way.append(file.stat().st_size)
    )
    assert process.returncode == 0
    assert 2 <= len(arrivals) <= 4
    assert arrivals == sorted(arrivals)
    (size,) = half_way  # once
    assert size > 12, "after a third"
