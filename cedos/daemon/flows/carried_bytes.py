"""Bytes that a connection through a gateway has carried since it began."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_MOST_INTERFACES: Final = 16


@dataclass(frozen=True, slots=True)
class CarriedBytes:
    """Totals, or the difference of two."""

    down: int = 0
    up: int = 0
    by_interface: Mapping[str, int] = field(default_factory=dict)

    def at_least(self, told: "CarriedBytes") -> "CarriedBytes":
        """The larger of each: totals never shrink. Interfaces beyond 16 are not taken."""
        by = dict(self.by_interface)
        for interface, count in told.by_interface.items():
            if interface in by or (count and len(by) < _MOST_INTERFACES):
                by[interface] = max(count, by.get(interface, 0))
        return CarriedBytes(max(self.down, told.down), max(self.up, told.up), by)

    def since(self, before: "CarriedBytes") -> "CarriedBytes":
        """What is more than `before`, by which these totals have grown."""
        by = {
            interface: more
            for interface, count in self.by_interface.items()
            if (more := count - before.by_interface.get(interface, 0))
        }
        return CarriedBytes(self.down - before.down, self.up - before.up, by)

    def by_network(self, names: Mapping[str, str]) -> dict[str, int]:
        """By the networks' names; an interface without one keeps its own."""
        found: dict[str, int] = {}
        for interface, count in self.by_interface.items():
            name = names.get(interface, interface)
            found[name] = found.get(name, 0) + count
        return found
