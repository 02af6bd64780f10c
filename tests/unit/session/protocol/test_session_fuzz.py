"""Atheris on handshakes and records, and on the parser and a living session."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from emu import ROOT

HERE = Path(__file__).parent
DOCUMENT = (ROOT / "docs" / "session-protocol.md").read_text()


def fuzz(target, seconds, where, *more):
    """Run a fuzz target, which must not fail; return the number of inputs that it took."""
    command = [
        *(sys.executable, str(HERE / target), *more),
        *(f"-max_total_time={seconds}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"),
        f"-artifact_prefix={where}/",
    ]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=seconds + 100, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", run.stderr)
    return int(runs[1])


@pytest.mark.long
@pytest.mark.timeout(150)
def test_no_bytes_break_a_channel(tmp_path):
    assert fuzz("fuzz_channel.py", 30, tmp_path) > 10


@pytest.mark.long
@pytest.mark.timeout(180)
def test_nothing_but_protocol_errors_for_a_minute(tmp_path):
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    records = [bytes.fromhex(each) for each in re.findall(r"`([0-9a-f]{2,})`", DOCUMENT)]
    assert len(records) > 25
    for number, record in enumerate(records):
        (seeds / f"plain-{number}").write_bytes(record)
        (seeds / f"framed-{number}").write_bytes(len(record).to_bytes(2, "big") + record)
    framed = b"".join(len(each).to_bytes(2, "big") + each for each in records)
    (seeds / "all").write_bytes(framed)
    # All of the document's, and what came of them.
    assert fuzz("fuzz_session_records.py", 60, tmp_path, str(seeds)) > len(list(seeds.iterdir()))
