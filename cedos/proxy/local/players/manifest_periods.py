"""When the periods of a DASH manifest begin and end (ISO/IEC 23009-1, 5.3.2.1). Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cedos.proxy.local.players.manifest_tree import ManifestElement

_DURATION: Final = re.compile(
    r"P(?:([0-9]{1,4})Y)?(?:([0-9]{1,4})M)?(?:([0-9]{1,6})D)?"
    r"(?:T(?:([0-9]{1,8})H)?(?:([0-9]{1,8})M)?(?:([0-9]{1,10}(?:\.[0-9]{1,12})?)S)?)?"
)
_UNITS_S: Final = (365 * 86_400, 30 * 86_400, 86_400, 3_600, 60, 1)
"""Of years and months, whose lengths differ, nobody makes a film; zeros of them are common."""


@dataclass(frozen=True, slots=True)
class ManifestPeriod:
    """In s of the presentation; `end_s` None: it is not known yet."""

    start_s: float
    end_s: float | None

    def plays(self, begins_s: float, duration_s: float) -> tuple[float, float] | None:
        """When what begins so long after the period does plays, and for how long; None: not within it."""
        start_s = self.start_s + max(begins_s, 0.0)
        end_s = self.start_s + begins_s + duration_s
        if self.end_s is not None:
            end_s = min(end_s, self.end_s)
        return (start_s, end_s - start_s) if end_s > start_s else None


def periods(root: ManifestElement) -> Iterator[tuple[ManifestElement, ManifestPeriod]]:
    """All of which is known when they begin; ValueError: a duration is none."""
    elements = root.all("Period")
    is_live = root.attributes.get("type") == "dynamic"
    starts: list[float | None] = []
    ends: list[float | None] = []
    for element in elements:
        start_s = _duration_s(element, "start")
        if start_s is None:
            start_s = ends[-1] if ends else None if is_live else 0.0
        duration_s = _duration_s(element, "duration")
        starts.append(start_s)
        ends.append(None if start_s is None or duration_s is None else start_s + duration_s)
    following = [*starts[1:], _duration_s(root, "mediaPresentationDuration")]
    for element, start_s, own_s, next_s in zip(elements, starts, ends, following, strict=False):
        if start_s is not None:
            known = [each for each in (own_s, next_s) if each is not None]
            yield element, ManifestPeriod(start_s, min(known, default=None))


def _duration_s(element: ManifestElement, name: str) -> float | None:
    """None: it is not there."""
    text = element.attributes.get(name)
    if text is None:
        return None
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError(name)
    told = zip(match.groups(), _UNITS_S, strict=True)
    return sum([float(digits) * unit_s for digits, unit_s in told if digits], 0.0)
