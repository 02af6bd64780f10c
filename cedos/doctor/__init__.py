"""`cedos doctor`: what this host can and cannot do. The doctor only reads; it changes nothing."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class FindingState(StrEnum):
    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report.

    `lost`: the missing ability; `remedy`: how to get it; `fatal`: the daemon cannot run.
    """

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
    """The files of /proc and /sys, or of a copy below another root."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """Return the path of a file by its absolute name."""
        return self._root / name.removeprefix("/")

    def read(self, name: str) -> str | None:
        """Return the content without surrounding white space; None: the file cannot be read."""
        try:
            return self.path(name).read_text(errors="replace").strip()
        except OSError:
            return None

    def sysctl(self, name: str) -> str | None:
        """Return the value of a sysctl by its dotted name."""
        return self.read("/proc/sys/" + name.replace(".", "/"))
