"""A program's output is read to its end, and what is to happen on the way happens once."""

import subprocess
import sys
import time

from emu.workloads.unmodified.downloads import watch_output

_SLOW = "import sys, time\nfor _ in range(10):\n sys.stdout.buffer.write(bytes(1000))\n"
_SLOW += " sys.stdout.flush()\n time.sleep(0.05)\n"


def _running(program: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen((sys.executable, "-c", program), stdout=subprocess.PIPE)


def test_half_way_is_called_once_when_a_third_is_there() -> None:
    called: list[float] = []
    found = watch_output(
        _running(_SLOW), time.monotonic(), 10_000, half_way=lambda: called.append(1.0)
    )
    assert found.whole
    assert len(called) == 1


def test_half_way_is_called_after_a_while() -> None:
    called: list[float] = []
    began_s = time.monotonic()
    watch_output(
        *(_running(_SLOW), began_s, 10_000),
        half_way=lambda: called.append(time.monotonic() - began_s),
        after_s=0.2,
    )
    assert len(called) == 1
    assert called[0] >= 0.2


def test_what_ends_early_or_fails_is_not_whole() -> None:
    assert not watch_output(_running(_SLOW), time.monotonic(), 10_001).whole
    assert not watch_output(_running(_SLOW + "sys.exit(3)"), time.monotonic(), 10_000).whole
