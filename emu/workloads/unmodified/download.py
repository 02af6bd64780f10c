"""One file by curl."""

import os
import subprocess
import time
from collections.abc import Callable

from emu.testbed.netns import Namespace
from emu.workloads.unmodified.watched import HalfWay, Watched, as_user, watched

_LIMIT_S = 90


def download(
    where: Namespace,
    url: str,
    size: int,
    *options: str,
    user: int = 0,
    mptcp: bool = False,
    at: float = 0.3,
    half_way: HalfWay | None = None,
    after_s: float | None = None,
) -> Watched:
    """`half_way` is called once `at` of it is there, or `after_s` seconds after it began."""
    began_s = time.monotonic()
    process: subprocess.Popen[bytes] = where.popen(
        *as_user(user),
        *(("mptcpize", "run") if mptcp else ()),
        *("curl", "-sS", "-m", str(_LIMIT_S), *options, url),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None

    def due(count: int) -> bool:
        if after_s is not None:
            return time.monotonic() - began_s >= after_s
        return count >= at * size

    count, arrivals = 0, []
    call: Callable[[], None] | None = half_way
    with process.stdout as stream:
        while data := os.read(stream.fileno(), 1 << 18):
            count += len(data)
            arrivals.append(time.monotonic())
            if call is not None and due(count):
                call()
                call = None
    whole = process.wait(60) == 0 and count == size
    return watched(began_s, arrivals, whole=whole)
