"""The controller's outbox, commands for its caller, and the beat of its periodic work.

Equal intervals end at the same instants, so that an idle host wakes once. `cedos.kernel.netlink` does the
same for descriptors.
"""

import math
from typing import Final

from cedos.controller.commands import Command

# A beat comes this long after each full multiple of its interval, when data that others write each
# second are complete.
LATE_S: Final = 0.02


class Outbox:
    """The commands that the caller has not taken yet.

    Attributes:
        woken: there may be a reason to decide again.
        urgent: there is one.
    """

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self.woken = self.urgent = False

    def give(self, command: Command) -> None:
        self._commands.append(command)

    def take(self) -> list[Command]:
        """Return the commands since the last call, in order."""
        taken, self._commands = self._commands, []
        return taken

    def wake(self, urgent: bool = False) -> None:
        """Ask for a look at the facts; `urgent`: decide in any case."""
        self.woken = True
        self.urgent = self.urgent or urgent


def next_beat_s(now_s: float, interval_s: float) -> float:
    """Return the next beat, which is later than now, however the division is rounded.

    Equal intervals end at the same instants, so that an idle host wakes once for all of them.
    """
    beat_s = (math.floor((now_s - LATE_S) / interval_s) + 1) * interval_s + LATE_S
    return beat_s if beat_s > now_s else beat_s + interval_s
