"""The handshakes and records under a coverage-guided fuzzer, half a minute long."""

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 30


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 120)
def test_no_bytes_break_a_channel(tmp_path: Path) -> None:
    run = subprocess.run(
        [
            sys.executable, str(Path(__file__).with_name("fuzz_channel.py")),
            f"-max_total_time={SECONDS}", "-max_len=4096", "-print_final_stats=1",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    stats = dict(
        line.removeprefix("stat::").split(":", 1)
        for line in run.stderr.splitlines()
        if line.startswith("stat::")
    )
    # (How many there are depends on the machine and on what else it does.)
    assert int(stats["number_of_executed_units"]) > 10, run.stderr[-2000:]
