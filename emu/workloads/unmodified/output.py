"""A program that writes what it fetches to its output."""

import os
import subprocess
import time

from emu.workloads.unmodified.watched import HalfWay, Watched, watched


def watch_output(
    process: "subprocess.Popen[bytes]",
    began_s: float,
    size: int,
    *,
    at: float = 0.3,
    half_way: HalfWay | None = None,
    after_s: float | None = None,
) -> Watched:
    """Reads all of it. `half_way` is called once `at` is there, or `after_s` seconds after `began_s`."""
    assert process.stdout is not None

    def due(count: int) -> bool:
        if after_s is not None:
            return time.monotonic() - began_s >= after_s
        return count >= at * size

    count, arrivals, call = 0, [], half_way
    with process.stdout as stream:
        while data := os.read(stream.fileno(), 1 << 18):
            count += len(data)
            arrivals.append(time.monotonic())
            if call is not None and due(count):
                call()
                call = None
    whole = process.wait(60) == 0 and count == size
    return watched(began_s, arrivals, whole=whole)
