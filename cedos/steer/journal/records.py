"""The records of the journal, and changing a sysctl with its record.

Rules and routes bear our mark (a protocol number, a range of preferences, tables of our own), so one
record that stands for all of them suffices: what is found with the mark is ours, and nothing else is.
That also keeps the disk out of the way of every later change of a rule.
"""

from collections.abc import Callable
from typing import Final, Protocol

from cedos.steer.journal.journal import Record

Append = Callable[[Record], None]

ROUTING: Final[Record] = {"undo": "routing"}
FILTER: Final[Record] = {"undo": "packet-filter"}
CONNECTIONS: Final[Record] = {"undo": "connections"}
RESCUE: Final[Record] = {"undo": "rescue"}


def sysctl_record(key: str, before: str, after: str) -> Record:
    """Puts a sysctl back to `before`, unless it no longer holds what we gave it.

    Of several records of one sysctl the first one's `before` counts, and each one's `after`.
    """
    return {"undo": "sysctl", "key": key, "before": before, "after": after}


class Sysctls(Protocol):
    """A kernel, as far as its sysctls are concerned (`SteeringKernel`)."""

    def read_sysctl(self, key: str) -> str | None: ...

    def write_sysctl(self, key: str, value: str) -> None: ...


def change_sysctl(kernel: Sysctls, append: Append, key: str, after: str) -> None:
    """Sets a sysctl, the way back on the disk first; one that this kernel lacks is left out."""
    before = kernel.read_sysctl(key)
    if before is not None and before.split() != after.split():
        append(sysctl_record(key, before, after))
        kernel.write_sysctl(key, after)
