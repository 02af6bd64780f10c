"""The result of undoing."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

_RULE: Final = ("deleted: -4 rule", "deleted: -6 rule")
_ROUTE: Final = ("deleted: -4 route", "deleted: -6 route")


@dataclass(frozen=True, slots=True)
class Undone:
    """`done`: what was undone, in words; `left`: what could not be, and why.

    `refused`: the kernel's first refusal; with it all may be tried again.
    """

    done: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    refused: OSError | None = None

    @property
    def in_short(self) -> str:
        """Return one line: rules and routes are counted, all other steps are named."""
        counts: Counter[str] = Counter()
        rest: list[str] = []
        for step in self.done:
            if step.startswith(_RULE):
                counts["rule"] += 1
            elif step.startswith(_ROUTE):
                counts["route"] += 1
            else:
                rest.append(step)
        counted = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items()]
        parts = [f"deleted: {' and '.join(counted)}"] if counted else []
        return "; ".join([*parts, *rest]) or "nothing had been changed"
