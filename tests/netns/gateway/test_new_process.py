"""The gateway's process changes under what it carries."""

import hashlib
import os
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.netns.gateway.conftest import ORIGIN

Laptop = Any
PROXY = "socks5h://127.0.0.1:1080"
SIZE = 12_000_000
MOST_STALL_S = 4.0


def test_hangup_begins_anew_and_breaks_nothing(laptop: Laptop, tmp_path: Path) -> None:
    laptop.world.shape("20mbit")
    data = os.urandom(SIZE)
    laptop.serve_file(data)
    laptop.forward("-D", "1080", "--fail", "closed")
    curl = laptop.curl("-x", PROXY, f"http://{ORIGIN}:8080/file")
    got, arrivals, times = bytearray(), [], 0
    while chunk := curl.stdout.read1(1 << 16):
        got += chunk
        arrivals.append(time.monotonic())
        if len(got) > (times + 1) * SIZE // 4 and times < 2:
            times += 1
            laptop.gateway.send_signal(signal.SIGHUP)
    assert curl.wait(30) == 0, curl.stderr.read()
    assert hashlib.sha256(got).digest() == hashlib.sha256(data).digest()
    assert laptop.gateway.poll() is None
    assert (tmp_path / "gateway.log").read_text().count("goes on ") == times == 2
    stall_s = max(later - earlier for earlier, later in pairwise(arrivals))
    print(f"longest stall {1e3 * stall_s:.0f} ms")
    assert stall_s < MOST_STALL_S
