"""What is made of the instants at which a watched program got something."""

import subprocess
import sys
from pathlib import Path

import pytest

from cedos.errors import EmulationError
from emu.workloads.unmodified.downloads import as_user, grown, watched


def test_the_longest_pause_is_between_two_arrivals() -> None:
    found = watched(10.0, [10.5, 10.6, 11.6, 11.7], whole=True)
    assert (found.took_s, found.stall_s, found.whole) == (
        pytest.approx(1.7),
        pytest.approx(1),
        True,
    )
    assert watched(10.0, [12.0], whole=False).stall_s == 0


def test_nothing_at_all_is_no_measurement() -> None:
    with pytest.raises(EmulationError, match="nothing"):
        watched(0.0, [], whole=False)


def test_root_needs_no_other_user() -> None:
    assert as_user(0) == ()
    assert "--reuid=7" in as_user(7)


def test_a_file_that_grows_is_watched_until_its_program_ends(tmp_path: Path) -> None:
    file = tmp_path / "growing"
    file.touch()
    step = "open(sys.argv[1], 'ab').write(bytes(10)); time.sleep(0.2)"
    writes = f"import sys, time\nfor _ in range(4): {step}"
    process = subprocess.Popen([sys.executable, "-c", writes, str(file)])
    half_way: list[int] = []
    arrivals = grown(
        process, lambda: file.stat().st_size, 40, lambda: half_way.append(file.stat().st_size)
    )
    assert process.returncode == 0
    assert 2 <= len(arrivals) <= 4
    assert arrivals == sorted(arrivals)
    (size,) = half_way  # once
    assert size > 12, "after a third"
