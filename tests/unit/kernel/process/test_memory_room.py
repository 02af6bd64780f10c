"""Limits of control groups are made of files, that of the address space is this host's."""

import resource
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

from cedos.kernel.process import memory_room
from cedos.kernel.process.memory_room import MemoryRoom

MB = 1_000_000


class Host:
    """A `/proc` and `/sys` with a unit in a slice."""

    def __init__(self, root: Path) -> None:
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

    def says(self, group: Path, most: int | str, used: int, file: int = 0) -> None:
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon {used - file}\nfile {file}\nkernel 0\n")

    def room(self) -> MemoryRoom:
        """It looks anew each time that it is asked."""
        seconds = count()
        return MemoryRoom(self.root, lambda: float(next(seconds)))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    no_limit = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _which: no_limit)
    return Host(tmp_path)


def test_a_host_without_limits_is_never_short(host: Host) -> None:
    room = host.room()
    assert not room.short()
    assert room.free_bytes() is None


def test_a_unit_that_nears_its_limit_is_short_until_it_does_not(host: Host) -> None:
    room = host.room()
    for used, file, short in ((80, 0, False), (95, 0, True), (95, 30, False), (91, 0, True)):
        host.says(host.unit, 100 * MB, used * MB, file * MB)
        assert room.short() is short, (used, file)
    assert room.free_bytes() == 9 * MB


def test_a_limit_above_the_unit_counts_too(host: Host) -> None:
    host.says(host.unit, 100 * MB, 10 * MB)
    host.says(host.slice, 50 * MB, 49 * MB)
    room = host.room()
    assert room.short()
    assert room.free_bytes() == 1 * MB


def test_it_gives_back_what_is_free_before_it_says_so(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.says(host.unit, 100 * MB, 95 * MB)
    monkeypatch.setattr(
        memory_room.memory, "give_back", lambda: host.says(host.unit, 100 * MB, 60 * MB)
    )
    assert not host.room().short()


FILL = """
import resource
from cedos.kernel.process.memory_room import MemoryRoom
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 100_000_000, -1))
bytearray(4 << 20)  # from here on, blocks of this size are of the heap
seconds = iter(range(1_000))
room = MemoryRoom(clock_s=lambda: next(seconds))
print(room.short())
held = [bytes(1_000_000) for _ in range(90)]
held.append(b"")
print(room.short())
del held[:90]
print(room.short())
"""


def test_an_address_space_that_is_nearly_full_and_freed_again() -> None:
    told = subprocess.run([sys.executable, "-c", FILL], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "True", "False"]
