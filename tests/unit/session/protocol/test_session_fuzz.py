"""A minute of atheris on the parser and a living session, from the document's vectors as seeds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from emu.repository import ROOT

HERE = Path(__file__).parent
DOCUMENT = (ROOT / "docs" / "session-protocol.md").read_text()


@pytest.mark.long
def test_nothing_but_protocol_errors_for_a_minute(tmp_path: Path) -> None:
    seeds = tmp_path / "seeds"
    seeds.mkdir()
    records = [bytes.fromhex(each) for each in re.findall(r"`([0-9a-f]{2,})`", DOCUMENT)]
    assert len(records) > 25
    for number, record in enumerate(records):
        (seeds / f"plain-{number}").write_bytes(record)
        (seeds / f"framed-{number}").write_bytes(len(record).to_bytes(2, "big") + record)
    framed = b"".join(len(each).to_bytes(2, "big") + each for each in records)
    (seeds / "all").write_bytes(framed)
    command = [
        *(sys.executable, str(HERE / "fuzz_session_records.py"), str(seeds)),
        *("-max_total_time=60", "-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"),
        f"-artifact_prefix={tmp_path}/",
    ]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=115, cwd=ROOT
    )
    assert run.returncode == 0, run.stderr[-4000:]
    runs = re.search(r"Done (\d+) runs", run.stderr)
    assert runs is not None
    assert int(runs[1]) > len(list(seeds.iterdir()))  # all of the document's, and what came of them
