"""The parts of our packet filter that are to be in place."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilterPlan:
    """`track`: flows are tracked; `rescue`: rescued flows are translated.

    `barred`: the interfaces that programs are kept off; None: no chain for that.
    """

    track: bool = False
    rescue: bool = False
    barred: tuple[str, ...] | None = None

    def __bool__(self) -> bool:
        return self.track or self.rescue or bool(self.barred)
