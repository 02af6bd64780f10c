"""Threads share one heap, and what is free goes back: in a process of its own, as it holds for good."""

import subprocess
import sys

HELD = """
import ctypes, threading
from pathlib import Path
from cedos.kernel.process import memory

def held_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

def heaps():
    # A heap of a thread's own is 64 MB of addresses, aligned so, the first of them accessible.
    lines = Path("/proc/self/maps").read_text().splitlines()
    starts = [int(line.split("-")[0], 16) for line in lines if " rw-p " in line]
    return sum(start % (64 << 20) == 0 for start in starts)

def in_threads():
    go = threading.Barrier(4)
    def take():
        go.wait()
        pieces = [bytes(2_000) for _ in range(2_000)]
        go.wait()
    threads = [threading.Thread(target=take) for _ in range(4)]
    for each in threads: each.start()
    seen = heaps()
    for each in threads: each.join()
    return seen
"""


def told(script: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", HELD + script], capture_output=True, text=True, check=True
    )
    return [float(each) for each in done.stdout.split()]


def test_threads_have_no_heaps_of_their_own() -> None:
    without, with_ = (
        told("print(in_threads())")[0],
        told("memory.one_arena(); print(in_threads())")[0],
    )
    assert with_ == 0 < without


def test_free_memory_is_given_back() -> None:
    before, after = told(
        "taken = [bytes(2_000) for _ in range(20_000)]; end = bytes(2_000); del taken\n"
        "print(held_mb()); memory.give_back(); print(held_mb())"
    )
    assert after < before - 30


def test_free_memory_is_given_back_again_and_again() -> None:
    before, after = told(
        "import asyncio\n"
        "async def main():\n"
        "    async with memory.giving_back(every_s=0.05):\n"
        "        taken = [bytes(2_000) for _ in range(20_000)]; end = bytes(2_000); del taken\n"
        "        print(held_mb()); await asyncio.sleep(0.3); print(held_mb())\n"
        "asyncio.run(main())"
    )
    assert after < before - 30
