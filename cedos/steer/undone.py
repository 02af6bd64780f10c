"""What undoing has done, in one line for people."""

from collections import Counter
from collections.abc import Sequence

_RULE, _ROUTE = ("deleted: -4 rule", "deleted: -6 rule"), ("deleted: -4 route", "deleted: -6 route")


def in_short(steps: Sequence[str]) -> str:
    """Rules and routes are counted, for there are dozens; all else is told step by step."""
    counts: Counter[str] = Counter()
    rest: list[str] = []
    for step in steps:
        if step.startswith(_RULE):
            counts["rule"] += 1
        elif step.startswith(_ROUTE):
            counts["route"] += 1
        else:
            rest.append(step)
    counted = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items()]
    parts = [f"deleted: {' and '.join(counted)}"] if counted else []
    return "; ".join([*parts, *rest]) or "nothing had been changed"
