"""A million sessions that sleep: what they take, how soon one is found, how soon all are there again."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final

from cedos.session.io.idle_file import KEY_BYTES, IdleFile, RecordState
from cedos.session.io.idle_sessions import RECORD_BYTES, STATE_BYTES, IdleSessions
from cedos.session.protocol.crypto import Suite
from cedos.session.protocol.handshake.credentials import CREDENTIALS_BYTES, Credentials
from cedos.session.protocol.packed import IdleRecord

_MILLION: Final = 1_000_000
_LOOK_UPS: Final = 200_000
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def measure(
    progress: Callable[[str], None], count: int = _MILLION, look_ups: int = _LOOK_UPS
) -> dict[str, float]:
    """Fills a file, then opens it in a process of its own, as after a restart.

    Returns:
        `idle_million_mb`: resident memory that the sessions add to a process, all of them touched;
        `idle_lookup_us`: a session's record by its flow id, in random order; `idle_reload_s`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "idle"
        _fill(path, count)
        command = [sys.executable, "-m", __name__, str(path), str(look_ups)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    figures: dict[str, float] = json.loads(done.stdout)
    progress(
        f"{count:,} idle flows: {figures['idle_million_mb']:.0f} MB, found in "
        f"{figures['idle_lookup_us']:.2f} us, there {figures['idle_reload_s']:.1f} s after a restart"
    )
    return figures


def _fill(path: Path, count: int) -> None:
    file, draw = IdleFile(path, RECORD_BYTES), Random(1)
    idle = IdleRecord.at_the_beginning(86_400, time.time()).to_bytes() + bytes(STATE_BYTES)
    who = Credentials(bytes(16), bytes(32), bytes(32), next(iter(Suite))).to_bytes()[KEY_BYTES:]
    for _ in range(count):
        file.put(draw.randbytes(KEY_BYTES) + who + idle, RecordState.ASLEEP)
    file.close()


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _restarted(path: Path, look_ups: int) -> dict[str, float]:
    before = _resident_bytes()
    began = time.perf_counter()
    sleepers = IdleSessions(path)
    reload_s = time.perf_counter() - began
    draw, share = Random(2), min(1.0, 2 * look_ups / max(len(sleepers), 1))
    asked = [
        each[:KEY_BYTES] for each in sleepers.records() if draw.random() < share
    ]  # touches all
    resident = _resident_bytes() - before - sys.getsizeof(asked) - 64 * len(asked)
    draw.shuffle(asked)
    del asked[look_ups:]
    began = time.perf_counter()
    for key in asked:
        sleepers.record(key)
    look_up_s = (time.perf_counter() - began) / len(asked)
    assert len(sleepers.record(asked[0]) or b"") == RECORD_BYTES > CREDENTIALS_BYTES
    return {
        "idle_million_mb": resident / 1e6,
        "idle_lookup_us": 1e6 * look_up_s,
        "idle_reload_s": reload_s,
    }


if __name__ == "__main__":
    print(json.dumps(_restarted(Path(sys.argv[1]), int(sys.argv[2]))))
