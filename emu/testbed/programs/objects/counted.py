"""What a process's memory is made of at one instant, and how that differs from another instant."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from cedos.errors import EmulationError

_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.2
_SHOWN_KB: Final = 16
_SHOWN_TYPES: Final = 8


@contextmanager
def countable(directory: Path) -> Iterator[None]:
    """What of cedos is started meanwhile can be counted; the counts come by this folder."""
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "CEDOS_OBJECTS")}
    os.environ |= {"PYTHONPATH": str(Path(__file__).parent), "CEDOS_OBJECTS": str(directory)}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True, slots=True)
class Counted:
    """`types`: objects and bytes by type; `memory_kb`: by what the kernel or malloc calls it."""

    types: Mapping[str, tuple[int, int]]
    memory_kb: Mapping[str, float]

    @classmethod
    def ask(cls, pid: int, directory: Path) -> Self:
        """EmulationError where it does not answer; it must be one that is `countable`."""
        memory = _mapped_kb(pid)
        file = directory / f"{pid}.json"
        os.kill(pid, signal.SIGUSR2)
        deadline_at_s = time.monotonic() + _WITHIN_S
        while not file.exists():
            if time.monotonic() > deadline_at_s:
                raise EmulationError(f"process {pid} does not count its objects")
            time.sleep(_POLL_S)
        found = json.loads(file.read_text())
        file.unlink()
        for name in ("malloc_used", "malloc_free", "malloc_mapped"):
            memory[name] = found[name] / 1000
        return cls({name: tuple(pair) for name, pair in found["types"].items()}, memory)

    def since(self, before: "Counted") -> str:
        """What has grown or shrunk, largest first, in words."""
        memory = [
            f"{name} {kb - before.memory_kb.get(name, 0.0):+.0f} kB"
            for name, kb in self.memory_kb.items()
        ]
        bytes_, number = Counter[str](), Counter[str]()
        for types, sign in ((self.types, 1), (before.types, -1)):
            for name, (count, size) in types.items():
                number[name] += sign * count
                bytes_[name] += sign * size
        most = sorted(bytes_, key=lambda name: -abs(bytes_[name]))[:_SHOWN_TYPES]
        objects = [
            f"{name} {number[name]:+d} ({bytes_[name] / 1000:+.0f} kB)"
            for name in most
            if abs(bytes_[name]) >= _SHOWN_KB * 1000
        ]
        total = f"objects {sum(bytes_.values()) / 1000:+.0f} kB"
        return ", ".join((*memory, total, *objects))


def _mapped_kb(pid: int) -> dict[str, float]:
    """Resident memory by kind of mapping: malloc's heap, other memory without a file, files."""
    found = {"heap": 0.0, "anonymous": 0.0, "files": 0.0}
    kind = ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else ""
            kind = "heap" if name == "[heap]" else "files" if name.startswith("/") else "anonymous"
        elif words[0] == "Rss:":
            found[kind] += float(words[1]) * 1.024
    return found
