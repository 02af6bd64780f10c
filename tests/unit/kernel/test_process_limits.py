"""Threads share one heap, and what is free goes back: in a process of its own, as it holds for good."""

import resource
import subprocess
import sys
from itertools import count

import pytest

from cedos.kernel import process_limits
from cedos.kernel.process_limits import MemoryRoom

HELD = """
import ctypes, threading
from pathlib import Path
from cedos.kernel import process_limits

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


def told(script):
    done = subprocess.run(
        [sys.executable, "-c", HELD + script], capture_output=True, text=True, check=True
    )
    return [float(each) for each in done.stdout.split()]


def test_threads_have_no_heaps_of_their_own():
    without, with_ = (
        told("print(in_threads())")[0],
        told("process_limits.one_arena(); print(in_threads())")[0],
    )
    assert with_ == 0 < without


def test_free_memory_is_given_back_again_and_again():
    before, after = told(
        "import asyncio\n"
        "async def main():\n"
        "    async with process_limits.giving_back(every_s=0.05):\n"
        "        taken = [bytes(2_000) for _ in range(20_000)]; end = bytes(2_000); del taken\n"
        "        print(held_mb()); await asyncio.sleep(0.3); print(held_mb())\n"
        "asyncio.run(main())"
    )
    assert after < before - 30


MB = 1_000_000


class Host:
    """A `/proc` and `/sys` with a unit in a slice."""

    def __init__(self, root):
        self.root = root
        self.slice = root / "sys/fs/cgroup/system.slice"
        self.unit = self.slice / "cedos-gateway.service"
        self.unit.mkdir(parents=True)
        own = root / "proc/self"
        own.mkdir(parents=True)
        (own / "cgroup").write_text("4:memory:/elsewhere\n0::/system.slice/cedos-gateway.service\n")
        (own / "statm").write_text("1 1 1 1 0 1 0\n")
        for group in (self.slice, self.unit):
            self.says(group, "max", 0)

    def says(self, group, most, used, file=0):
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon {used - file}\nfile {file}\nkernel 0\n")

    def room(self):
        """It looks anew each time that it is asked."""
        seconds = count()
        return MemoryRoom(self.root, lambda: float(next(seconds)))


@pytest.fixture
def host(tmp_path, monkeypatch):
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: no_limit)
    return Host(tmp_path)


def test_a_unit_that_nears_its_limit_is_short_until_it_does_not(host):
    room = host.room()
    for used, file, short in ((80, 0, False), (95, 0, True), (95, 30, False), (91, 0, True)):
        host.says(host.unit, 100 * MB, used * MB, file * MB)
        assert room.is_short() is short, (used, file)
    assert room.free_bytes() == 9 * MB


def test_it_gives_back_what_is_free_before_it_says_so(host, monkeypatch):
    host.says(host.unit, 100 * MB, 95 * MB)
    monkeypatch.setattr(
        process_limits, "give_back", lambda: host.says(host.unit, 100 * MB, 60 * MB)
    )
    assert not host.room().is_short()


FILL = """
import resource
from cedos.kernel.process_limits import MemoryRoom
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 100_000_000, -1))
bytearray(4 << 20)  # from here on, blocks of this size are of the heap
seconds = iter(range(1_000))
room = MemoryRoom(clock_s=lambda: next(seconds))
print(room.is_short())
held = [bytes(1_000_000) for _ in range(90)]
held.append(b"")
print(room.is_short())
del held[:90]
print(room.is_short())
"""


def test_an_address_space_that_is_nearly_full_and_freed_again():
    told = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True", "False"]


@pytest.mark.parametrize(
    ("now", "wanted", "has", "given"),
    [
        ((1024, 524_288), 16_384, 16_384, [(16_384, 524_288)]),
        ((1024, 4096), 16_384, 4096, [(4096, 4096)]),
        ((16_384, 524_288), 16_384, 16_384, []),
        ((20_000, 524_288), 16_384, 20_000, []),
        ((1024, 524_288), None, 524_288, [(524_288, 524_288)]),
    ],
)
def test_the_limit_is_raised(monkeypatch, now, wanted, has, given):
    asked = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: now)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert process_limits.allow(wanted) == has
    assert asked == given


def test_a_limit_that_cannot_be_raised_stays(monkeypatch):
    def refuse(_, __):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert process_limits.allow() == 1024
