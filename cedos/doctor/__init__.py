"""`cedos doctor`: what this host can and cannot do. The doctor only reads; it changes nothing."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from cedos.plain_text import rounded
from predictors.base import Calibration

# The fewest transfers that a sentence is based on.
_LEAST: Final = 5


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


def predicted_text(name: str, held: Calibration | None) -> str:
    """Compare predictions with transfers in a sentence; empty if there were too few."""
    if held is None or held.n < _LEAST or not held.expected_over_actual_median > 0.0:
        return ""
    # Actual over expected: below 1 the forecasts were longer than the transfers.
    times = 1.0 / held.expected_over_actual_median
    how = "right"
    if not 0.95 <= times < 1.05:
        how = f"{rounded(max(times, 1.0 / times), 2)} times too {'slow' if times < 1.0 else 'fast'}"
    return f"Forecasts for {name} were {how} lately ({held.n} transfers)"
