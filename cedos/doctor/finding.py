"""One line of the doctor's report, and the files that it reads."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FindingState(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """`lost` is what cannot be done therefore, `remedy` how to get it; `fatal`: the daemon cannot run."""

    topic: str
    state: FindingState
    found: str
    lost: str = ""
    remedy: str = ""
    fatal: bool = False


def ok(topic: str, found: str) -> Finding:
    return Finding(topic, FindingState.OK, found)


def limited(topic: str, found: str, lost: str, remedy: str = "") -> Finding:
    return Finding(topic, FindingState.LIMITED, found, lost, remedy)


def missing(topic: str, found: str, lost: str, remedy: str = "", *, fatal: bool = False) -> Finding:
    return Finding(topic, FindingState.MISSING, found, lost, remedy, fatal)


class Files:
    """Reads /proc and /sys, or a copy of them below another root."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """The file of an absolute name."""
        return self._root / name.removeprefix("/")

    def read(self, name: str) -> str | None:
        """The file's content without white space around it, None where it cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def sysctl(self, name: str) -> str | None:
        """A sysctl's value by its dotted name."""
        return self.read("/proc/sys/" + name.replace(".", "/"))
